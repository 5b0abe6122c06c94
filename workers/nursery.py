"""Nursery: a process that has imported what children need, and forks them.

To start an interpreter and import everything takes a third of a second of a processor, and to fork one that has done so
a few milliseconds. So all children of this process that time and build are forked by one other: it runs nothing but the
imports, so what is forked is as fresh as what was started anew. `tunewright.workers.forking` is that process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from .confine import environment

MESSAGE_BYTES = 1 << 16
"""More than the settings of a child take."""


class Barren(Exception):
    """The nursery can't fork, nor tell of what it forked: it died, or the system refuses."""


class Nursery:
    """One such process. It ends with the thread that made it, or once nobody holds this nor what it forked.

    All that it forked ends with it. Any thread may use it.
    """

    def __init__(self) -> None:
        self._environment = inherited()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._turn = ours, threading.Lock()
        settings = {"socket": theirs.fileno(), "parent": os.getpid()}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tunewright.workers.forking", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=self._environment,
            )
        self._end = weakref.finalize(self, _end, ours, self._process)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether it lives, and its children have this environment."""
        return self._process.poll() is None and environment == self._environment

    def bear(self, settings: Mapping[str, Any], descriptors: Sequence[int]) -> Offspring:
        """A new process that has these descriptors, as `requests`, `replies` and log. Raises Barren."""
        reply = self._ask({"settings": dict(settings)}, descriptors)
        try:
            return Offspring(self, reply["pid"], os.pidfd_open(reply["pid"]))
        except (AttributeError, OSError) as error:
            os.kill(reply["pid"], signal.SIGKILL)
            self.reap(reply["pid"])
            raise Barren(str(error)) from error

    def reap(self, pid: int) -> int:
        """Wait for the end of a process that was forked: its exit code, negative for a signal. Raises Barren."""
        code: int = self._ask({"reap": pid})["code"]
        return code

    def _ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        try:
            with self._turn:
                socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
                reply = self._socket.recv(MESSAGE_BYTES)
        except OSError as error:
            raise Barren(str(error)) from error
        if not reply:
            raise Barren("the process that forks children has ended")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise Barren(answer["error"])
        return answer

    def leave(self) -> None:
        """In the child of a fork: it is the parent's."""
        self._end.detach()
        self._socket.close()


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.kill()
    process.wait()


class Offspring:
    """A process that was forked, with what `process.Child` uses of subprocess.Popen."""

    def __init__(self, nursery: Nursery, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.is_orphan = False  # it ended as its nursery had ended: nobody knows of what else
        self._nursery, self._descriptor = nursery, descriptor

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None and select.select([self._descriptor], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            try:
                self.returncode = self._nursery.reap(self.pid)
            except Barren:  # then what it forked was killed
                self.returncode, self.is_orphan = -signal.SIGKILL, True
            os.close(self._descriptor)
        return self.returncode


def inherited() -> dict[str, str]:
    """The environment of children that are not confined."""
    # One thread for numpy's BLAS: idle ones spin for a while, on cores that are being timed.
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return environment(os.environ, confined=False) | single

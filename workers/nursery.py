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

UNHEARD = 0
"""The number of requests whose replies nobody waits for."""


class Barren(Exception):
    """The nursery can't fork, nor tell of what it forked: it died, or the system refuses."""


class Nursery:
    """One such process. It ends with the thread that made it, or once nobody holds this nor what it forked.

    All that it forked ends with it. Any thread may use it.
    """

    def __init__(self) -> None:
        self._environment = inherited()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._turn, self._number = ours, threading.Lock(), UNHEARD
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
        """The reply to this message: there may be others, to requests that were interrupted."""
        try:
            with self._turn:
                self._number += 1
                number = self._number
                socket.send_fds(self._socket, [_numbered(number, message)], descriptors)
                while (reply := self._reply())["number"] != number:
                    self._drop(reply)
        except OSError as error:
            raise Barren(str(error)) from error
        if "error" in reply:
            raise Barren(reply["error"])
        return reply

    def _reply(self) -> dict[str, Any]:
        received = self._socket.recv(MESSAGE_BYTES)
        if not received:
            raise Barren("the process that forks children has ended")
        reply: dict[str, Any] = json.loads(received)
        return reply

    def _drop(self, reply: dict[str, Any]) -> None:
        """A process that nobody will hear of ends here."""
        if "pid" in reply:
            os.kill(reply["pid"], signal.SIGKILL)
            self._socket.send(_numbered(UNHEARD, {"reap": reply["pid"]}))

    def leave(self) -> None:
        """In the child of a fork: it is the parent's."""
        self._end.detach()
        self._socket.close()


def _numbered(number: int, message: Mapping[str, Any]) -> bytes:
    return json.dumps({"number": number, **message}).encode()


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
            self.returncode = -signal.SIGKILL  # from here on its id may be another's, also after an interrupt
            try:
                self.returncode = self._nursery.reap(self.pid)
            except Barren:  # then what it forked was killed
                self.is_orphan = True
            finally:
                os.close(self._descriptor)
        return self.returncode


def inherited() -> dict[str, str]:
    """The environment of children that are not confined."""
    # One thread for numpy's BLAS: idle ones spin for a while, on cores that are being timed.
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return environment(os.environ, confined=False) | single

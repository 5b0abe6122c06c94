"""ForkServer: a process that has imported what children need, and forks them.

Starting an interpreter with all imports takes a third of a second, forking one a few milliseconds. So one process forks
all children that build and time. It runs nothing but the imports: a forked child is as fresh as one started anew.
It is this module as a program, `python -m tunewright.workers.sandbox.fork_server SETTINGS`; it has one thread and
opens no files, so a child inherits nothing but its own pipes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .child import MEASURE_CALLS, die_with, serve
from .confine import environment

MESSAGE_BYTES = 1 << 16
"""Size of the receive buffer: the settings of a child take less."""

NO_REPLY = 0
"""The number of a request whose reply is dropped."""


class ForkError(Exception):
    """The fork server died, or the system refuses to fork."""


class ForkServer:
    """The parent's side of a fork server. Any thread may use it.

    The process ends with the thread that made it, or when neither this object nor a forked process is referenced. All
    that it forked ends with it.
    """

    def __init__(self) -> None:
        self._environment = child_environment()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._turn, self._number = ours, threading.Lock(), NO_REPLY
        settings = {"socket": theirs.fileno(), "parent": os.getpid()}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tunewright.workers.sandbox.fork_server", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=self._environment,
            )
        self._end = weakref.finalize(self, _end, ours, self._process)

    def is_usable(self, environment: Mapping[str, str]) -> bool:
        """Whether it runs, and its children have this environment."""
        return self._process.poll() is None and environment == self._environment

    def fork(self, settings: Mapping[str, Any], descriptors: Sequence[int]) -> ForkedProcess:
        """Fork a process with these descriptors: `requests`, `replies` and the log. Raises ForkError."""
        reply = self._ask({"settings": dict(settings)}, descriptors)
        try:
            return ForkedProcess(self, reply["pid"], os.pidfd_open(reply["pid"]))
        except (AttributeError, OSError) as error:
            os.kill(reply["pid"], signal.SIGKILL)
            self.reap(reply["pid"])
            raise ForkError(str(error)) from error

    def reap(self, pid: int) -> int:
        """Wait for the end of a forked process: its exit code, negative for a signal. Raises ForkError."""
        code: int = self._ask({"reap": pid})["code"]
        return code

    def _ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a message and return its reply. Replies to interrupted requests are dropped."""
        try:
            with self._turn:
                self._number += 1
                number = self._number
                socket.send_fds(self._socket, [_encode(number, message)], descriptors)
                while (reply := self._reply())["number"] != number:
                    self._drop(reply)
        except OSError as error:
            raise ForkError(str(error)) from error
        if "error" in reply:
            raise ForkError(reply["error"])
        return reply

    def _reply(self) -> dict[str, Any]:
        message = self._socket.recv(MESSAGE_BYTES)
        if not message:
            raise ForkError("the process that forks children has ended")
        reply: dict[str, Any] = json.loads(message)
        return reply

    def _drop(self, reply: dict[str, Any]) -> None:
        """Kill and reap the process of a reply that nobody waits for."""
        if "pid" in reply:
            os.kill(reply["pid"], signal.SIGKILL)
            self._socket.send(_encode(NO_REPLY, {"reap": reply["pid"]}))

    def detach(self) -> None:
        """Give it up in a fork of this process: it belongs to the parent."""
        self._end.detach()
        self._socket.close()


def _encode(number: int, message: Mapping[str, Any]) -> bytes:
    return json.dumps({"number": number, **message}).encode()


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


class ForkedProcess:
    """A forked process, with the methods of subprocess.Popen that `process.Child` uses."""

    def __init__(self, fork_server: ForkServer, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.is_orphan = False  # its fork server ended: its own exit code is unknown
        self._fork_server, self._descriptor = fork_server, descriptor

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None and select.select([self._descriptor], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = -signal.SIGKILL  # from here on its id may be reused, also after an interrupt
            try:
                self.returncode = self._fork_server.reap(self.pid)
            except ForkError:  # the system killed it with its fork server
                self.is_orphan = True
            finally:
                os.close(self._descriptor)
        return self.returncode


def child_environment() -> dict[str, str]:
    """The environment of children that are not confined."""
    # One thread for numpy's BLAS: idle ones spin for a while, on cores that are being timed.
    single_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return environment(os.environ, confined=False) | single_thread


DESCRIPTORS = 3

GC_THRESHOLD = 50_000
"""Objects between two garbage collections: some tens of builds, which take 3% longer by default."""


def main() -> None:
    """Settings: descriptor `socket`, process id `parent`."""
    settings = json.loads(sys.argv[1])
    die_with(settings["parent"])
    _prepare()
    gc.collect()
    gc.freeze()  # pages that no collection writes to are shared with the children
    gc.set_threshold(GC_THRESHOLD)
    with socket.socket(fileno=settings["socket"]) as parent:
        while True:
            message, descriptors, _, _ = socket.recv_fds(parent, MESSAGE_BYTES, DESCRIPTORS)
            if not message:
                return
            request = json.loads(message)
            reply = _answer(request, descriptors, parent)
            parent.send(json.dumps(reply | {"number": request["number"]}).encode())


def _prepare() -> None:
    """Import and compile what all children need."""
    importlib.import_module(MEASURE_CALLS)
    from tunewright.codegen.host import machine
    from tunewright.codegen.runtime.library import pool_object

    machine()
    with suppress(OSError):  # the first candidate reports it
        pool_object()


def _answer(request: dict[str, Any], descriptors: list[int], parent: socket.socket) -> dict[str, Any]:
    """Fork or reap. Errors of the system are replies: ending here would end all children."""
    try:
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            return {"code": os.waitstatus_to_exitcode(status)}
        return {"pid": _fork(request["settings"], descriptors, parent)}
    except OSError as error:
        return {"error": str(error)}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(settings: dict[str, Any], descriptors: list[int], parent: socket.socket) -> int:
    """Fork a child; its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        parent.close()
        _run_child(settings | {"parent": server}, *descriptors)
    return pid


def _run_child(settings: dict[str, Any], requests: int, replies: int, log: int) -> None:
    """Serve, then exit as an interpreter does."""
    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        serve(settings | {"requests": requests, "replies": replies})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - the interpreter would print it too
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()

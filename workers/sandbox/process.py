"""Child: the parent's side of a process that candidates run in. It can be killed, and restarts on the next request."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.host import available_memory_bytes
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal

from ..pool import Unfit
from .child import LARGEST_BYTES, MEASURE_CALLS, BrokenFrame, frame, take
from .confine import environment
from .fork_server import ForkedProcess, ForkError, ForkServer, child_environment

START_S = 60.0
"""Time limit of a child's start. Its imports take a third of a second, more on a machine that swaps."""

LOG_BYTES = 4096
"""Size of the stored end of a child's output."""

CHUNK_BYTES = 1 << 16

Result = TypeVar("Result")

MEMORY_WORDS = re.compile(r"out of memory|bad_alloc|cannot allocate memory|memoryerror", re.IGNORECASE)


class RequestFailed(Exception):
    """A request that the child did not survive or had no memory for. The text is one line for people."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self._text = text

    def __str__(self) -> str:
        return self._text


class RequestStopped(RequestFailed):
    """A request during which this process killed the child, or after the end of a child with `once`: nobody's fault."""


class ChildError(Exception):
    """A bug in the code that runs in the child, or a failed start. Carries the child's traceback."""


class ChildStartError(ChildError):
    """A child that can't start, or that ended with its fork server. Carries the end of its output.

    It is no failure of the request.
    """


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of a child, and whether it is `confined` (by `confine`)."""

    memory_bytes: int | None = None  # of memory that can be written; None: half of the machine's
    cpu_s: float | None = None  # processor time of a request, all threads together, in whole seconds rounded up
    reply_bytes: int = LARGEST_BYTES  # size of a reply, which this process parses
    confined: bool = False  # for untrusted input


class Child(Closeable):
    """A process that serves the `CALLS` of a module. The first request starts it, and the next one after its death.

    `CALLS` is a dictionary of functions that take and return plain data. `plugins` are modules that the child imports
    first, for sketches and calls outside of the package. `once`: it is not started again, as its state is lost; a
    request after its death raises RequestStopped. One thread may use it at a time; `kill` may be called from any.
    Messages and texts of errors come from the child unchecked: check those of a confined one.
    """

    def __init__(
        self,
        limits: ChildLimits | None = None,
        plugins: Sequence[str] = (),
        calls: str = MEASURE_CALLS,
        once: bool = False,
    ) -> None:
        self.provenance: dict[str, str] = {}  # of the last start; empty before the first
        self._limits = limits or ChildLimits()
        self.memory_bytes = self._limits.memory_bytes or available_memory_bytes() // 2
        self._plugins = list(plugins)
        self._calls = calls
        self._once = once
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._killed = False
        self._reap_lock = threading.Lock()  # held while the process is reaped, after which its id may be reused
        self._requests, self._replies, self._log = -1, -1, -1
        self._received = bytearray()
        self._tail = bytearray()

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return self._process.pid if self._process else None

    def request(self, call: str, timeout_s: float, **arguments: Any) -> Any:
        """Make a call; its result, as plain data.

        Raises RequestFailed if the child crashed, was stopped at `timeout_s` or out of processor time, or ran out of
        memory; Illegal; Unfit; ChildError, of which ChildStartError is nobody's fault.
        """
        if self._process is not None and (self._killed or self._process.poll() is not None):
            self._end()  # it died between requests, which is not the fault of this one
            if self._once:
                raise RequestStopped(Status.CRASH, f"{call}: the process died before")
        if self._process is None:
            self._start()
        message = frame({"call": call, "arguments": arguments})
        reply = self._exchange(call, message, timeout_s)
        match reply:
            case {"result": result}:
                return result
            case {"out_of_memory": text}:
                raise RequestFailed(Status.OUT_OF_MEMORY, f"{call}: {text}")
            case {"illegal": text}:
                raise Illegal(text)
            case {"unfit": text}:
                raise Unfit(text)
        raise ChildError(reply.get("bug", f"{call}: no reply but {reply}"))

    def kill(self) -> None:
        """End the process at once, from any thread. A request that is under way raises RequestStopped."""
        with self._reap_lock:
            if self._process is not None and self._process.returncode is None:
                self._killed = True
                _kill_group(self._process.pid)

    def close(self) -> None:
        """End the process, if there is one; the next request starts another."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        """Start the process and wait until it is ready."""
        requests_in, self._requests = os.pipe()
        self._replies, replies_out = os.pipe()
        self._log, log_in = os.pipe()
        for descriptor in (self._requests, self._replies, self._log):
            os.set_blocking(descriptor, False)
        self._received.clear()
        self._tail.clear()
        self._killed = False
        settings = {
            "requests": requests_in,
            "replies": replies_out,
            "parent": os.getpid(),
            "memory_bytes": self.memory_bytes,
            "cpu_s": self._limits.cpu_s,
            "confined": self._limits.confined,
            "plugins": self._plugins,
            "calls": self._calls,
        }
        try:
            self._process = _spawner().submit(partial(_spawn, settings, log_in)).result()
        except BaseException as error:  # a child that did start ends with its pipes
            self._close_pipes()
            if isinstance(error, OSError):
                raise ChildStartError(f"no child process: {error}") from error
            raise
        finally:
            for descriptor in (requests_in, replies_out, log_in):
                os.close(descriptor)
        try:
            self.provenance = self._exchange("start", b"", START_S)["provenance"]
        except RequestFailed as error:
            log = self._tail.decode(errors="replace")
            raise ChildStartError(f"no child process: {error}\n{log}") from error

    def _exchange(self, call: str, message: bytes, timeout_s: float) -> dict[str, Any]:
        """Send a message and wait for the reply; close the child on any error."""
        try:
            return self._poll(call, message, timeout_s)
        except BaseException:  # also on an interrupt: a late reply must not answer the next request
            self.close()
            raise

    def _poll(self, call: str, message: bytes, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        poll.register(self._log, select.POLLIN)
        if message:
            poll.register(self._requests, select.POLLOUT)
        unsent = memoryview(message)
        while True:
            if (reply := self._take(call)) is not None:
                return reply
            remaining_s = deadline_s - time.monotonic()
            ready = dict(poll.poll(remaining_s * 1e3)) if remaining_s > 0 else {}
            if not ready:
                raise RequestFailed(Status.TIMEOUT, f"{call}: stopped after {timeout_s:g} s")
            if self._log in ready and not self._keep_log():
                poll.unregister(self._log)
            if self._requests in ready:
                unsent = unsent[self._write(unsent) :]
                if not unsent:
                    poll.unregister(self._requests)
            if self._replies in ready and not self._read():
                raise self._death(call)

    def _take(self, call: str) -> dict[str, Any] | None:
        """The reply, if it is complete."""
        try:
            return take(self._received, self._limits.reply_bytes)
        except BrokenFrame as error:
            raise RequestFailed(Status.CRASH, f"{call}: sent {error}") from error

    def _write(self, message: memoryview) -> int:
        """The number of bytes sent. A closed pipe counts as all sent: reading the reply reports the dead child."""
        try:
            return os.write(self._requests, message[:CHUNK_BYTES])
        except BrokenPipeError:
            return len(message)

    def _read(self) -> bool:
        """Receive available bytes. False at the end of the stream."""
        data = os.read(self._replies, CHUNK_BYTES)
        self._received += data
        return bool(data)

    def _keep_log(self) -> bool:
        """Store the end of the child's output. False at the end of the stream."""
        data = os.read(self._log, CHUNK_BYTES)
        self._tail += data
        del self._tail[:-LOG_BYTES]
        return bool(data)

    def _death(self, call: str) -> RequestFailed | ChildStartError:
        """Why the child died, which has closed its pipes."""
        while select.select([self._log], [], [], 0)[0] and self._keep_log():
            pass
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last_line = f": {_printable(lines[-1].strip())}" if lines else ""
        killed, process, code = self._killed, self._process, self._end()
        if killed:
            return RequestStopped(Status.CRASH, f"{call}: stopped")
        if isinstance(process, ForkedProcess) and process.is_orphan:
            return ChildStartError(
                f"{call}: the process that forks children has ended, and this one with it{last_line}"
            )
        if code == -signal.SIGKILL:
            return RequestFailed(
                Status.OUT_OF_MEMORY, f"{call}: killed, as the system does when memory runs out{last_line}"
            )
        if code == -signal.SIGXCPU:
            return RequestFailed(Status.TIMEOUT, f"{call}: stopped, its processor time was over")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        status = Status.OUT_OF_MEMORY if MEMORY_WORDS.search(last_line) else Status.CRASH
        return RequestFailed(status, f"{call}: {cause}{last_line}")

    def _end(self) -> int:
        """Kill and reap. The exit code, negative for a signal: of an earlier death, else of the kill."""
        assert self._process is not None
        with self._reap_lock:
            process, self._process = self._process, None
            if process.returncode is None:  # else its id may be reused
                _kill_group(process.pid)
            code = process.wait()
        self._close_pipes()
        return code

    def _close_pipes(self) -> None:
        for descriptor in (self._requests, self._replies, self._log):
            os.close(descriptor)


def _printable(text: str) -> str:
    """The text with control characters replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _kill_group(pid: int) -> None:
    """Kill a process and its descendants. It is not reaped yet, so its id is its own, unless its fork server died."""
    with suppress(ProcessLookupError):  # an orphan, which the system has reaped
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet leader of its group
            os.kill(pid, signal.SIGKILL)


class _Spawner:
    """The thread that starts children: the system ends them with the *thread* that started them, so it never ends.

    It is a daemon thread, not an executor's: an executor whose `submit` was interrupted may wait for its thread for
    ever at exit.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._work, name="tunewright-spawner", daemon=True).start()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Run a function in the thread."""
        future: Future[Result] = Future()
        self._queue.put((future, work))
        return future

    def _work(self) -> None:
        while True:
            future, work = self._queue.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                future.set_exception(error)
            del future, work


@cache
def _spawner() -> _Spawner:
    """The spawner of this process."""
    return _Spawner()


_fork_server: ForkServer | None = None  # of the spawner


def start_fork_server() -> None:
    """Start the fork server ahead of the first child, in the background."""
    _spawner().submit(_usable_fork_server)


def _usable_fork_server() -> ForkServer:
    """The fork server of this process; a new one if the environment has changed or it has died."""
    global _fork_server
    if _fork_server is None or not _fork_server.is_usable(child_environment()):
        _fork_server = ForkServer()
    return _fork_server


def _after_fork() -> None:
    """Forget threads and processes of the parent in a fork of this process."""
    global _fork_server
    _spawner.cache_clear()
    if _fork_server is not None:
        _fork_server.detach()
        _fork_server = None


os.register_at_fork(after_in_child=_after_fork)


def _spawn(settings: dict[str, Any], log: int) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a child: forked, unless it is confined or serves other calls than the fork server has imported."""
    if settings["calls"] == MEASURE_CALLS and not settings["confined"]:
        with suppress(ForkError):
            return _usable_fork_server().fork(settings, (settings["requests"], settings["replies"], log))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tunewright.workers.sandbox.child", json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(settings["requests"], settings["replies"]),
        start_new_session=True,
        env=environment(os.environ, confined=True) if settings["confined"] else child_environment(),
    )

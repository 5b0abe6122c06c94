"""Child: this side of a process that candidates run in. It can be killed, and comes back when it is needed again."""

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
from typing import Any, Self, TypeVar

from tunewright.codegen.host import available_memory_bytes
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal

from .child import MEASURING
from .confine import environment
from .frames import LARGEST_BYTES, BrokenFrame, frame, take
from .nursery import Barren, Nursery, Offspring, inherited
from .pool import Unfit

START_S = 60.0
"""Time that a child has to import what it needs: a third of a second, more on a machine that swaps."""

LOG_BYTES = 4096
"""How much of the end of a child's output is kept."""

CHUNK_BYTES = 1 << 16

Result = TypeVar("Result")

MEMORY_WORDS = re.compile(r"out of memory|bad_alloc|cannot allocate memory|memoryerror", re.IGNORECASE)


class Failed(Exception):
    """A request that the child did not survive, or had not the memory for. The text is one line for people."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self._text = text

    def __str__(self) -> str:
        return self._text


class Stopped(Failed):
    """A request under way when this side killed the child, or after the end of one that lives once: nobody's fault."""


class ChildError(Exception):
    """A bug in what runs in the child, or one that can't start at all. Carries the child's traceback."""


class NotStarted(ChildError):
    """A child that can't start, or that ended with the process that forked it. Carries the end of what it printed.

    It tells nothing about what was requested.
    """


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a child may take, and whether it is `confined`: see `confine`."""

    memory_bytes: int | None = None  # of memory that can be written; None: half of the machine's
    cpu_s: float | None = None  # processor time of a request, all threads together, in whole seconds rounded up
    reply_bytes: int = LARGEST_BYTES  # of the text of a reply: what is parsed on this side
    confined: bool = False  # for one that handles what strangers sent


class Child:
    """A process that serves the `CALLS` of a module, started when it is first needed, and again after its death.

    `CALLS` is a dictionary of functions that take and return plain data. `plugins` are modules that the child imports
    first, for sketches and calls that are not part of the package. `once`: it is not started again, since what it held
    is gone; a request after its death raises Stopped. One thread may use it at a time; `kill` may be called from any.
    Messages and texts of errors are as the child wrote them: where it is confined, check them.
    """

    def __init__(
        self,
        limits: ChildLimits | None = None,
        plugins: Sequence[str] = (),
        calls: str = MEASURING,
        once: bool = False,
    ) -> None:
        self.provenance: dict[str, str] = {}  # of the last start; empty before the first
        self._limits = limits or ChildLimits()
        self.memory_bytes = self._limits.memory_bytes or available_memory_bytes() // 2
        self._plugins = list(plugins)
        self._calls = calls
        self._once = once
        self._process: subprocess.Popen[bytes] | Offspring | None = None
        self._killed = False
        self._reaping = threading.Lock()  # held where the process id may cease to be ours
        self._requests, self._replies, self._log = -1, -1, -1
        self._received = bytearray()
        self._tail = bytearray()

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return self._process.pid if self._process else None

    def request(self, call: str, timeout_s: float, **arguments: Any) -> Any:
        """What the call returns, as plain data.

        Raises Failed if the child crashed, was stopped at `timeout_s` or out of processor time, or ran out of memory;
        Illegal; Unfit; ChildError, of which NotStarted is nobody's fault.
        """
        if self._process is not None and (self._killed or self._process.poll() is not None):
            self._end()  # it died between requests: no fault of this one
            if self._once:
                raise Stopped(Status.CRASH, f"{call}: the process died before")
        if self._process is None:
            self._start()
        message = frame({"call": call, "arguments": arguments})
        reply = self._exchange(call, message, timeout_s)
        match reply:
            case {"result": result}:
                return result
            case {"out_of_memory": text}:
                raise Failed(Status.OUT_OF_MEMORY, f"{call}: {text}")
            case {"illegal": text}:
                raise Illegal(text)
            case {"unfit": text}:
                raise Unfit(text)
        raise ChildError(reply.get("bug", f"{call}: no reply but {reply}"))

    def kill(self) -> None:
        """End the process at once, from any thread. A request that is under way raises Stopped."""
        with self._reaping:
            if self._process is not None and self._process.returncode is None:
                self._killed = True
                _kill_group(self._process.pid)

    def close(self) -> None:
        """End the process, if there is one; the next request starts another."""
        if self._process is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
            self._hang_up()
            if isinstance(error, OSError):
                raise NotStarted(f"no child process: {error}") from error
            raise
        finally:
            for descriptor in (requests_in, replies_out, log_in):
                os.close(descriptor)
        try:
            self.provenance = self._exchange("start", b"", START_S)["provenance"]
        except Failed as error:
            log = self._tail.decode(errors="replace")
            raise NotStarted(f"no child process: {error}\n{log}") from error

    def _exchange(self, call: str, message: bytes, timeout_s: float) -> dict[str, Any]:
        """Send a message, and wait for the next one from the child."""
        try:
            return self._poll(call, message, timeout_s)
        except BaseException:  # an interrupt as well: a late reply must not answer the next request
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
            left_s = deadline_s - time.monotonic()
            ready = dict(poll.poll(left_s * 1e3)) if left_s > 0 else {}
            if not ready:
                raise Failed(Status.TIMEOUT, f"{call}: stopped after {timeout_s:g} s")
            if self._log in ready and not self._keep_log():
                poll.unregister(self._log)
            if self._requests in ready:
                unsent = unsent[self._write(unsent) :]
                if not unsent:
                    poll.unregister(self._requests)
            if self._replies in ready and not self._read():
                raise self._death(call)

    def _take(self, call: str) -> dict[str, Any] | None:
        """The reply, if it is here."""
        try:
            return take(self._received, self._limits.reply_bytes)
        except BrokenFrame as error:
            raise Failed(Status.CRASH, f"{call}: sent {error}") from error

    def _write(self, data: memoryview) -> int:
        """Bytes sent; all of them, as it were, where nobody listens: then the reply tells that the child is dead."""
        try:
            return os.write(self._requests, data[:CHUNK_BYTES])
        except BrokenPipeError:
            return len(data)

    def _read(self) -> bool:
        """Receive what there is. False where the child has hung up."""
        data = os.read(self._replies, CHUNK_BYTES)
        self._received += data
        return bool(data)

    def _keep_log(self) -> bool:
        """Keep the end of the child's output. False where it has hung up."""
        data = os.read(self._log, CHUNK_BYTES)
        self._tail += data
        del self._tail[:-LOG_BYTES]
        return bool(data)

    def _death(self, call: str) -> Failed | NotStarted:
        """Why the child, which has hung up, died."""
        while select.select([self._log], [], [], 0)[0] and self._keep_log():
            pass
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last = f": {_printable(lines[-1].strip())}" if lines else ""
        killed, process, code = self._killed, self._process, self._end()
        if killed:
            return Stopped(Status.CRASH, f"{call}: stopped")
        if isinstance(process, Offspring) and process.is_orphan:
            return NotStarted(f"{call}: the process that forks children has ended, and this one with it{last}")
        if code == -signal.SIGKILL:
            return Failed(Status.OUT_OF_MEMORY, f"{call}: killed, as the system does when memory runs out{last}")
        if code == -signal.SIGXCPU:
            return Failed(Status.TIMEOUT, f"{call}: stopped, its processor time was over")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        status = Status.OUT_OF_MEMORY if MEMORY_WORDS.search(last) else Status.CRASH
        return Failed(status, f"{call}: {how}{last}")

    def _end(self) -> int:
        """Kill and reap. Exit code, negative for a signal: what it was dying of if it was, else that of the kill."""
        assert self._process is not None
        with self._reaping:
            process, self._process = self._process, None
            if process.returncode is None:  # else its id may be another's by now
                _kill_group(process.pid)
            code = process.wait()
        self._hang_up()
        return code

    def _hang_up(self) -> None:
        for descriptor in (self._requests, self._replies, self._log):
            os.close(descriptor)


def _printable(text: str) -> str:
    """The text for a terminal: what could move its cursor is replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _kill_group(pid: int) -> None:
    """Kill a process and what it started. Unless its nursery died it is not reaped, so that its id is still its own."""
    with suppress(ProcessLookupError):  # an orphan, which the system has reaped
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet leader of its group
            os.kill(pid, signal.SIGKILL)


class _Spawner:
    """The thread that starts children: the system ends them with the *thread* that started them, so it must stay.

    It is a daemon and no executor's: one whose `submit` was interrupted may wait for its thread for ever at the end.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._work, name="tunewright-spawner", daemon=True).start()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have something done there."""
        future: Future[Result] = Future()
        self._asked.put((future, work))
        return future

    def _work(self) -> None:
        while True:
            future, work = self._asked.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - for whoever asked
                future.set_exception(error)
            del future, work


@cache
def _spawner() -> _Spawner:
    """That of this process."""
    return _Spawner()


_nursery: Nursery | None = None  # of the spawner


def expect() -> None:
    """Children will be needed soon: what they have in common is imported meanwhile."""
    _spawner().submit(_ready_nursery)


def _ready_nursery() -> Nursery:
    """That of this process: another one where the environment has changed, or it has died."""
    global _nursery
    if _nursery is None or not _nursery.serves(inherited()):
        _nursery = Nursery()
    return _nursery


def _after_fork() -> None:
    """The threads and processes are the parent's."""
    global _nursery
    _spawner.cache_clear()
    if _nursery is not None:
        _nursery.leave()
        _nursery = None


os.register_at_fork(after_in_child=_after_fork)


def _spawn(settings: dict[str, Any], log: int) -> subprocess.Popen[bytes] | Offspring:
    """Fork it where all that it has in common with others may be imported before it is confined."""
    if settings["calls"] == MEASURING and not settings["confined"]:
        with suppress(Barren):
            return _ready_nursery().bear(settings, (settings["requests"], settings["replies"], log))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tunewright.workers.child", json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(settings["requests"], settings["replies"]),
        start_new_session=True,
        env=environment(os.environ, confined=True) if settings["confined"] else inherited(),
    )

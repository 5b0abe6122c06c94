"""Readers: pools of limited child processes, which read uploaded models a few at once.

A child lives on between requests, so that the second model needs no new process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import anyio

from tunewright.graph.onnx_import import ModelError
from tunewright.workers.sandbox.process import ChildStartError

from .problems import Problem, ProblemKind

if TYPE_CHECKING:
    from tunewright.tuner.models.reader import Reader

WAIT_S = 30.0
"""How long a request waits for a worker."""

MOST_WAITING = 32
"""Requests that may wait for a worker at once."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.api")


class Worker(Protocol):
    """A worker with a child process. One thread may use it at a time."""

    def close(self) -> None:
        """End the child."""
        ...


Own = TypeVar("Own", bound=Worker)


class WorkerPool(Generic[Own]):
    """So many workers, made when they are first needed. `things` are what they work on, and `doing` what they do."""

    def __init__(self, make: Callable[[], Own], count: int, things: str, doing: str) -> None:
        self._make = make
        self._things, self._doing = things, doing
        self._idle: SimpleQueue[Own | None] = SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._count = count
        self._turn = anyio.Semaphore(count)
        self._threads = anyio.CapacityLimiter(count)  # those of other requests are not for waiting on children
        self._waiting = 0

    async def ask(self, work: Callable[[Own], Result]) -> Result:
        """The result of `work` by a worker. Raises Problem where none is free."""
        await self._take_turn()
        try:
            return await anyio.to_thread.run_sync(self._call, work, limiter=self._threads)
        except ChildStartError as error:
            _log.warning("no process for %s", self._things, extra={"reason": str(error)})
            raise Problem(
                ProblemKind.BUSY, f"no process could be started for {self._things}", retry_after_s=10
            ) from error
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Problem(ProblemKind.BUSY, f"too many {self._things} are being {self._doing}", retry_after_s=10)
        self._waiting += 1
        try:
            with anyio.fail_after(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise Problem(
                ProblemKind.BUSY, f"other {self._things} are still being {self._doing}", retry_after_s=10
            ) from None
        finally:
            self._waiting -= 1

    def _call(self, work: Callable[[Own], Result]) -> Result:
        worker = self._idle.get()
        try:
            worker = worker or self._make()
            return work(worker)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the children, when no request is under way."""
        for _ in range(self._count):
            worker = self._idle.get()
            if worker is not None:
                worker.close()


class Readers(WorkerPool["Reader"]):
    """So many readers, made when they are first needed."""

    def __init__(self, make: Callable[[], Reader], count: int) -> None:
        super().__init__(make, count, "models", "read")

    async def read(self, work: Callable[[Reader], Result]) -> Result:
        """The result of `work` by a reader. Raises Problem where the model can't be read, or not now."""
        try:
            return await self.ask(work)
        except ModelError as error:
            raise Problem(ProblemKind.BAD_MODEL, str(error)) from error

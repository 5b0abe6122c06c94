"""Readers: reads what was uploaded, a few models at once, each in the limited child process of a reader.

A child lives on between requests, so that the second model needs no new process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import anyio

from tunewright.graph.onnx_import import ModelError
from tunewright.graph.task import Task
from tunewright.tuner.models.assembly import Assembly
from tunewright.workers.process import NotStarted

from .problems import Kind, Problem

WAIT_S = 30.0
"""How long a request waits for a worker."""

MOST_WAITING = 32
"""Requests that may wait for a worker at once."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.api")


class Described(Protocol):
    """What is known of a model when it was read."""

    @property
    def with_weights(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...


class Tasks(Protocol):
    """What there is to tune in a model."""

    @property
    def tasks(self) -> Sequence[tuple[Task, int]]:
        """The distinct tasks and how often each occurs."""
        ...

    @property
    def assembly(self) -> Assembly:
        """What of them the model may be put together from."""
        ...


class ModelReader(Protocol):
    """What reads models: `tunewright.tuner.models.reading.Reader`. One thread may use it at a time."""

    def describe(self, path: Path) -> Described:
        """Raises ModelError."""
        ...

    def tasks(self, path: Path, dims: Mapping[str, int]) -> Tasks:
        """Raises ModelError."""
        ...

    def close(self) -> None:
        """End the child."""
        ...


class Worker(Protocol):
    """What does things in a child process. One thread may use it at a time."""

    def close(self) -> None:
        """End the child."""
        ...


Own = TypeVar("Own", bound=Worker)


class Crew(Generic[Own]):
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
        """What a worker says. Raises Problem where none can work now."""
        await self._take_turn()
        try:
            return await anyio.to_thread.run_sync(self._asked, work, limiter=self._threads)
        except NotStarted as error:
            _log.warning("no process for %s", self._things, extra={"reason": str(error)})
            raise Problem(Kind.BUSY, f"no process could be started for {self._things}", retry_after_s=10) from error
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Problem(Kind.BUSY, f"too many {self._things} are being {self._doing}", retry_after_s=10)
        self._waiting += 1
        try:
            with anyio.fail_after(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise Problem(Kind.BUSY, f"other {self._things} are still being {self._doing}", retry_after_s=10) from None
        finally:
            self._waiting -= 1

    def _asked(self, work: Callable[[Own], Result]) -> Result:
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


class Readers(Crew[ModelReader]):
    """So many readers, made when they are first needed."""

    def __init__(self, make: Callable[[], ModelReader], count: int) -> None:
        super().__init__(make, count, "models", "read")

    async def read(self, work: Callable[[ModelReader], Result]) -> Result:
        """What a reader says. Raises Problem where the model can't be read, or not now."""
        try:
            return await self.ask(work)
        except ModelError as error:
            raise Problem(Kind.BAD_MODEL, str(error)) from error

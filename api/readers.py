"""Readers: reads what was uploaded, a few models at once, each in the limited child process of a reader.

A reader's child lives on between requests, so that the second model needs no new process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import anyio

from tunewright.graph.onnx_import import ModelError
from tunewright.graph.task import Task
from tunewright.tuner.models.assembly import Assembly
from tunewright.workers.process import NotStarted

from .problems import Kind, Problem

WAIT_S = 30.0
"""How long a request waits for a reader."""

MOST_WAITING = 32
"""Requests that may wait for a reader at once."""

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


class Readers:
    """So many readers, made when they are first needed."""

    def __init__(self, make: Callable[[], ModelReader], count: int) -> None:
        self._make = make
        self._idle: SimpleQueue[ModelReader | None] = SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._count = count
        self._turn = anyio.Semaphore(count)
        self._threads = anyio.CapacityLimiter(count)  # those of other requests are not for waiting on children
        self._waiting = 0

    async def read(self, ask: Callable[[ModelReader], Result]) -> Result:
        """What a reader says. Raises Problem where the model can't be read, or not now."""
        await self._take_turn()
        try:
            return await anyio.to_thread.run_sync(self._asked, ask, limiter=self._threads)
        except ModelError as error:
            raise Problem(Kind.BAD_MODEL, str(error)) from error
        except NotStarted as error:
            _log.warning("no process that reads models", extra={"reason": str(error)})
            raise Problem(Kind.BUSY, "no process could be started to read it in", retry_after_s=10) from error
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Problem(Kind.BUSY, "too many models are being read", retry_after_s=10)
        self._waiting += 1
        try:
            with anyio.fail_after(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise Problem(Kind.BUSY, "other models are still being read", retry_after_s=10) from None
        finally:
            self._waiting -= 1

    def _asked(self, ask: Callable[[ModelReader], Result]) -> Result:
        reader = self._idle.get()
        try:
            reader = reader or self._make()
            return ask(reader)
        finally:
            self._idle.put(reader)

    def close(self) -> None:
        """End the children, when no request is under way."""
        for _ in range(self._count):
            reader = self._idle.get()
            if reader is not None:
                reader.close()

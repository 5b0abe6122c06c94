"""Descriptions: the parts of pages about schedules that take long to make, each made once and cached.

Whatever lowers or compiles runs in the limited child of a describer, since tasks come from strangers. Analyses by the
cost model run in a thread of this process, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import anyio
from fastapi import Depends, Request

from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.tuner.explain.texts import DiffLine

from .async_cache import AsyncCache
from .problems import Problem, ProblemKind
from .readers import WorkerPool

if TYPE_CHECKING:
    from tunewright.tuner.explain.describer import ScheduleDescriber, ScheduleDescription

PATIENCE_S = 0.3
"""How long a page waits for what it shows beside other things."""

TEXT_PATIENCE_S = 5.0
"""How long a page waits for a text that was asked for."""

RENEW_S = 20.0
"""What the cost model says of a task's trials is worked out no more often than that while trials come in."""

DESCRIBERS = 1
"""Processes that lower and compile for pages."""

MOST_FORMS, MOST_TEXTS, MOST_CODES, MOST_ANALYSES = 256, 64, 16, 64
"""Entries of each cache."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something can't be shown, one line for people."""

    why: str


class Descriptions:
    """Cached descriptions. In one event loop.

    Whoever asks waits for up to `patience_s`; by default no longer than a page may take.
    """

    def __init__(
        self, make_describer: Callable[[], ScheduleDescriber] | None = None, patience_s: float | None = None
    ) -> None:
        self._patience_s = patience_s
        self._describers = WorkerPool(make_describer or _describer, DESCRIBERS, "kernels", "shown")
        self._forms: AsyncCache[ScheduleDescription | Failure] = AsyncCache(MOST_FORMS)
        self._outlines: AsyncCache[LoopOutline | Failure] = AsyncCache(MOST_FORMS)
        self._texts: AsyncCache[str | Failure] = AsyncCache(MOST_TEXTS)
        self._differences: AsyncCache[Sequence[DiffLine] | Failure] = AsyncCache(MOST_TEXTS)
        self._launchables: AsyncCache[Launchable | Failure] = AsyncCache(MOST_CODES)
        self._linkables: AsyncCache[Linkable | Failure] = AsyncCache(MOST_CODES)
        self._analyses: AsyncCache[Any] = AsyncCache(MOST_ANALYSES, RENEW_S)
        self._analysis_threads = anyio.CapacityLimiter(1)

    async def form(self, task: Task, target: Target, schedule: Schedule) -> ScheduleDescription | Failure | None:
        """A schedule in words and as loops; None while that is being worked out."""
        key = task.key, target.key, schedule.key
        return await self._get(self._forms, key, PATIENCE_S, lambda it: it.picture(task, target, schedule))

    async def outline(self, task: Task, target: Target, schedule: Schedule) -> LoopOutline | Failure | None:
        """A schedule in numbers that any compiler knows; None while that is being worked out."""
        key = task.key, target.key, schedule.key
        return await self._get(self._outlines, key, TEXT_PATIENCE_S, lambda it: it.outline(task, target, schedule))

    async def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str | Failure | None:
        """A text of a schedule; None while it is being made."""
        key = task.key, target.key, schedule.key, part
        return await self._get(self._texts, key, TEXT_PATIENCE_S, lambda it: it.text(task, target, schedule, part))

    async def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> Sequence[DiffLine] | Failure | None:
        """The difference from a text of another schedule to that of this one; None while it is being made."""

        def work(describer: ScheduleDescriber) -> Sequence[DiffLine]:
            return describer.difference(task, target, schedule, against, part)

        key = task.key, target.key, schedule.key, against.key, part
        return await self._get(self._differences, key, TEXT_PATIENCE_S, work)

    async def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable | Failure | None:
        """Code and launches of a schedule for a GPU; None while it is being built."""
        key = task.key, target.key, schedule.key
        return await self._get(
            self._launchables, key, TEXT_PATIENCE_S, lambda it: it.launchable(task, target, schedule)
        )

    async def linkable(self, task: Task, target: Target, schedule: Schedule) -> Linkable | Failure | None:
        """Functions of a schedule for a processor; None while they are being built."""
        key = task.key, target.key, schedule.key
        return await self._get(self._linkables, key, TEXT_PATIENCE_S, lambda it: it.linkable(task, target, schedule))

    def _waits_s(self, of_a_page_s: float) -> float:
        return of_a_page_s if self._patience_s is None else self._patience_s

    async def _get(
        self,
        cache: AsyncCache[Result | Failure],
        key: Hashable,
        patience_s: float,
        work: Callable[[ScheduleDescriber], Result],
    ) -> Result | Failure | None:
        """The result of `work`; None while it is being made, a failure where nobody has time to make it now."""
        try:
            return await cache.get(key, partial(self._describe, work), patience_s=self._waits_s(patience_s))
        except Problem as problem:
            if problem.kind is not ProblemKind.BUSY:
                raise
            return Failure(problem.detail)

    async def _describe(self, work: Callable[[ScheduleDescriber], Result]) -> Result | Failure:
        from tunewright.tuner.explain.describer import DescriptionError  # takes a while to import

        try:
            return await self._describers.ask(work)
        except DescriptionError as error:
            return Failure(str(error))
        except Illegal:
            return Failure("today's sketches have no such schedule for the task; another version may have had")

    async def analyse(self, key: Hashable, mark: Hashable, work: Callable[[], Result]) -> Result | None:
        """The result of `work` in a thread, or the previous one; None while it runs for the first time.

        `key` says what it is of, and `mark` changes with what it follows from.
        """
        make = partial(anyio.to_thread.run_sync, work, limiter=self._analysis_threads)
        patience_s = self._waits_s(PATIENCE_S)
        result: Result | None = await self._analyses.get(key, make, mark=mark, patience_s=patience_s)
        return result

    async def close(self) -> None:
        """End the children, when no request is under way."""
        for_others = self._outlines, self._launchables, self._linkables
        for cache in (self._forms, self._differences, self._texts, *for_others, self._analyses):
            await cache.close()
        self._describers.close()


async def descriptions_of(request: Request) -> Descriptions:
    """The descriptions of the service that a request came to."""
    return cast("Descriptions", request.app.state.descriptions)


DescriptionsDep = Annotated[Descriptions, Depends(descriptions_of)]
"""Type of a route's parameter that is the cached descriptions."""


def _describer() -> ScheduleDescriber:
    from tunewright.tuner.explain.describer import ScheduleDescriber  # takes a while to import

    return ScheduleDescriber()

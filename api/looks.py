"""Looks: what pages show of schedules that takes long to find out, each found out once and then kept.

Whatever lowers or compiles runs in the limited child of a shower, since tasks come from strangers. What the cost model
says is worked out in a thread of this process, for one page at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar, cast

import anyio
from fastapi import Depends, Request

from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.tuner.insight.nest import Part
from tunewright.tuner.insight.texts import DiffLine

from .kept import Kept
from .problems import Kind, Problem
from .readers import Crew

PATIENCE_S = 0.3
"""How long a page waits for what it shows beside other things."""

TEXT_PATIENCE_S = 5.0
"""How long it waits for a text that somebody asked for."""

RENEW_S = 20.0
"""What the cost model says of a task's trials is worked out no more often than that while trials come in."""

SHOWERS = 1
"""Processes that lower and compile for pages."""

MOST_FORMS, MOST_TEXTS, MOST_LAUNCHABLES, MOST_JUDGED = 256, 64, 16, 64
"""How many are kept."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something can't be shown, one line for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Form:
    """A schedule in words and as loops."""

    words: Sequence[str]
    parts: Sequence[Part]


class KernelPicture(Protocol):
    """What a schedule is for people."""

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def nest(self) -> Sequence[Part]: ...


class KernelShower(Protocol):
    """What lowers and compiles: `tunewright.tuner.insight.showing.Shower`. One thread may use it at a time.

    All methods raise NotShown where the task allows no better, and Illegal where the schedule is in no space of it.
    """

    def picture(self, task: Task, target: Target, schedule: Schedule) -> KernelPicture:
        """The schedule in words and as loops."""
        ...

    def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str:
        """One of its texts."""
        ...

    def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> Sequence[DiffLine]:
        """What leads from the text of another schedule to that of this one."""
        ...

    def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable:
        """What it takes to launch it on a GPU."""
        ...

    def close(self) -> None:
        """End the child."""
        ...


class Looks:
    """What was found out lately. In one event loop.

    Whoever asks waits for up to `patience_s`; by default no longer than a page may take.
    """

    def __init__(self, make_shower: Callable[[], KernelShower] | None = None, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._showers = Crew(make_shower or _shower, SHOWERS, "kernels", "shown")
        self._forms: Kept[Form | Failure] = Kept(MOST_FORMS)
        self._texts: Kept[str | Failure] = Kept(MOST_TEXTS)
        self._differences: Kept[Sequence[DiffLine] | Failure] = Kept(MOST_TEXTS)
        self._launchables: Kept[Launchable | Failure] = Kept(MOST_LAUNCHABLES)
        self._judged: Kept[Any] = Kept(MOST_JUDGED, RENEW_S)
        self._judging = anyio.CapacityLimiter(1)

    async def form(self, task: Task, target: Target, schedule: Schedule) -> Form | Failure | None:
        """A schedule in words and as loops; None while that is being worked out."""

        def work(shower: KernelShower) -> Form:
            picture = shower.picture(task, target, schedule)
            return Form(picture.words, picture.nest)

        key = task.key, target.key, schedule.key
        return await _told(self._forms.get(key, partial(self._shown, work), patience_s=self._waits_s(PATIENCE_S)))

    async def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str | Failure | None:
        """A text of a schedule; None while it is being made."""

        def work(shower: KernelShower) -> str:
            return shower.text(task, target, schedule, part)

        key, patience_s = (task.key, target.key, schedule.key, part), self._waits_s(TEXT_PATIENCE_S)
        return await _told(self._texts.get(key, partial(self._shown, work), patience_s=patience_s))

    async def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> Sequence[DiffLine] | Failure | None:
        """What leads from a text of another schedule to that of this one; None while it is being made."""

        def work(shower: KernelShower) -> Sequence[DiffLine]:
            return shower.difference(task, target, schedule, against, part)

        key, patience_s = (task.key, target.key, schedule.key, against.key, part), self._waits_s(TEXT_PATIENCE_S)
        return await _told(self._differences.get(key, partial(self._shown, work), patience_s=patience_s))

    async def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable | Failure | None:
        """What it takes to launch a schedule on a GPU; None while it is being built."""

        def work(shower: KernelShower) -> Launchable:
            return shower.launchable(task, target, schedule)

        key, patience_s = (task.key, target.key, schedule.key), self._waits_s(TEXT_PATIENCE_S)
        return await _told(self._launchables.get(key, partial(self._shown, work), patience_s=patience_s))

    def _waits_s(self, of_a_page_s: float) -> float:
        return of_a_page_s if self._patience_s is None else self._patience_s

    async def _shown(self, work: Callable[[KernelShower], Result]) -> Result | Failure:
        from tunewright.tuner.insight.showing import NotShown  # takes a while to import

        try:
            return await self._showers.ask(work)
        except NotShown as error:
            return Failure(str(error))
        except Illegal:
            return Failure("today's sketches have no such schedule for the task; another version may have had")

    async def judged(self, key: Hashable, mark: Hashable, work: Callable[[], Result]) -> Result | None:
        """What `work` finds out in a thread, or did a while ago; None while it is at it for the first time.

        `key` says what it is of, and `mark` changes with what it follows from.
        """
        make = partial(anyio.to_thread.run_sync, work, limiter=self._judging)
        patience_s = self._waits_s(PATIENCE_S)
        found: Result | None = await self._judged.get(key, make, mark=mark, patience_s=patience_s)
        return found

    async def close(self) -> None:
        """End the children, when no request is under way."""
        for kept in (self._forms, self._differences, self._texts, self._launchables, self._judged):
            await kept.close()
        self._showers.close()


async def looks_of(request: Request) -> Looks:
    """What was found out of schedules lately."""
    return cast("Looks", request.app.state.looks)


Looking = Annotated[Looks, Depends(looks_of)]
"""Type of a route's parameter that finds out of schedules what takes long."""


async def _told(shown: Awaitable[Result | Failure | None]) -> Result | Failure | None:
    """What is shown, or that nobody has time to make it now."""
    try:
        return await shown
    except Problem as problem:
        if problem.kind is not Kind.BUSY:
            raise
        return Failure(problem.detail)


def _shower() -> KernelShower:
    from tunewright.tuner.insight.showing import Shower  # takes a while to import

    return Shower()

"""Sketch: one way to write one family of tasks on one kind of target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .description import SchedulePoint
from .schedule import Schedule
from .space import BlockShape, Columns, Knob, Space, Tiling

LOCAL_BYTES = 3 << 20
"""Most memory of a chunk: it is on the stack, and of no use beyond the caches of one core."""

BODY_LIMIT = 512
"""Multiply-adds in one copy of the innermost body, in chunks that go through several nests."""

PREFETCH = "Packed weights are prefetched."
"""What the knob says by which products read their weights ahead."""

CACHED_SPACES = 512
"""Spaces that are cached, of all sketches together: every lowering and every validity check asks for one."""

Pattern = TypeVar("Pattern")


class Sketch(Protocol):
    """An expert fixes the structure here; the search fixes the numbers.

    `space` states legality where the fact is known. `lower` is pure: the same arguments give the same kernel, and it
    raises Illegal for a schedule outside the space. `version` rises when the same values begin to mean another kernel.
    Every implementation passes `test_sketches.py` and, for processors of all kinds, `test_targets.py`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def applies(self, task: Task, target: Target) -> bool:
        """Whether the task has the form that this sketch writes, on targets of this kind. See `find_space`."""
        ...

    def space(self, task: Task, target: Target) -> Space:
        """The schedules it offers. Only for tasks of the form that it writes; empty where no point is legal."""
        ...

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        """The kernel that the schedule stands for; its params are the task's inputs then outputs."""
        ...

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        """The schedule in sentences, for people who know what a tile is."""
        ...


class PatternSketch(ABC, Generic[Pattern]):
    """A sketch of the tasks that have a pattern: what `recognise` finds in a task, `offer` and `write` work on."""

    name: str
    version: int
    kind: str = "cpu"  # of the targets that it writes for

    @abstractmethod
    def recognise(self, task: Task, target: Target) -> Pattern | None:
        """The pattern of a task that it writes for a target, which is of its kind; None for all other tasks."""

    @abstractmethod
    def offer(self, task: Task, pattern: Pattern, target: Target) -> Space:
        """The schedules of a task, made by `space_of`."""

    @abstractmethod
    def write(self, task: Task, pattern: Pattern, schedule: Schedule, target: Target) -> Kernel:
        """The kernel of a schedule, which is in the space."""

    @abstractmethod
    def describe(self, point: SchedulePoint) -> Iterator[str]:
        """See `Sketch`."""

    def pattern(self, task: Task, target: Target) -> Pattern:
        """The pattern of a task to which the sketch applies."""
        pattern = self.recognise(task, target)
        assert pattern is not None
        return pattern

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == self.kind and self.recognise(task, target) is not None

    def space(self, task: Task, target: Target) -> Space:
        return _space(self, task, target)

    def space_of(
        self,
        knobs: tuple[Knob, ...],
        *,
        legal: Callable[[Columns], NDArray[np.bool_]],
        tiling: Callable[[Columns], Tiling],
        preferred: Mapping[str, int],
        first_choice: bool = True,
        block: Callable[[Columns], BlockShape] | None = None,
    ) -> Space:
        """A space of this sketch and version."""
        return Space(self.name, self.version, knobs, legal, tiling, preferred, first_choice, block)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        return self.write(task, self.pattern(task, target), schedule, target)


@lru_cache(maxsize=CACHED_SPACES)
def _space(sketch: PatternSketch[Any], task: Task, target: Target) -> Space:
    return sketch.offer(task, sketch.pattern(task, target), target)


def find_space(sketch: Sketch, task: Task, target: Target) -> Space | None:
    """The space of a sketch for a task; None where it does not apply, or no point is legal."""
    if not sketch.applies(task, target):
        return None
    space = sketch.space(task, target)
    return None if space.is_empty else space

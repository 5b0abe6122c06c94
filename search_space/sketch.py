"""Sketch: one way to write one family of tasks on one kind of target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol, TypeVar

from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .description import SchedulePoint
from .schedule import Schedule
from .space import Space

LOCAL_BYTES = 3 << 20
"""Most memory of a chunk: it is on the stack, and of no use beyond the caches of one core."""

BODY_LIMIT = 512
"""Multiply-adds in one copy of the innermost body, in chunks that go through several nests."""

PREFETCH = "Packed weights are prefetched."
"""What the knob says by which products read their weights ahead."""

CACHED_SPACES = 64
"""Spaces that a sketch caches: the tasks of the largest models."""

S = TypeVar("S")
P = TypeVar("P")


def cache_space(space: Callable[[S, Task, Target], Space]) -> Callable[[S, Task, Target], Space]:
    """Cache `Sketch.space` by task and target: every lowering and every validity check calls it."""
    return lru_cache(maxsize=CACHED_SPACES)(space)


def require(pattern: P | None) -> P:
    """Return the pattern of a task that has it: `Sketch.space` and `Sketch.lower` are for tasks to which it applies."""
    assert pattern is not None
    return pattern


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


def find_space(sketch: Sketch, task: Task, target: Target) -> Space | None:
    """Return the space of a sketch for a task; None where it does not apply, or no point is legal."""
    if not sketch.applies(task, target):
        return None
    space = sketch.space(task, target)
    return None if space.is_empty else space

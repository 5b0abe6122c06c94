"""A plugin for the children of a pool: kernels among the sound ones that do what none should.

The sketch "planted.<fault>" is the default kernel of the task, with a line in it that ends all well-being.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunewright.codegen.cuda import build
from tunewright.codegen.cuda.source import Source
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketch import Sketch, offered
from tunewright.search_space.space import Space
from tunewright.workers import measure

FAULTS: Mapping[str, tuple[str, Status]] = {
    "hang": ("for (volatile int planted = 0; planted >= 0;) {}", Status.TIMEOUT),
    "crash": ("*reinterpret_cast<volatile int*>(8) = 1;", Status.CRASH),
    "wrong": ("if (blockIdx.x == 0) return;", Status.WRONG_RESULT),
}
"""What a fault's kernel begins with, and what is to be said of it."""

PREFIX = "planted."

HEAD = ") {\n"
"""How the head of a function ends."""


@dataclass(frozen=True)
class PlantedSketch:
    """The first real sketch that applies, at its default."""

    fault: str
    version: int = 1

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.fault}"

    def applies(self, task: Task, target: Target) -> bool:
        return True

    def space(self, task: Task, target: Target) -> Space:
        return _real(task, target).space(task, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        return _real(task, target).lower(task, self.space(task, target).default, target)


def _real(task: Task, target: Target) -> Sketch:
    return next(one for one in REAL if offered(one, task, target))


REAL = sketches.SKETCHES
PLANTED = tuple(PlantedSketch(fault) for fault in FAULTS)


def schedule(fault: str) -> Schedule:
    """The one of a fault."""
    return Schedule(f"{PREFIX}{fault}", 1, ())


def with_fault(made: Source, fault: str) -> Source:
    """The text of a kernel that begins with a fault."""
    begin = made.text.index('extern "C" __global__')
    end = made.text.index(HEAD, begin) + len(HEAD)
    return Source(f"{made.text[:end]}  {FAULTS[fault][0]}\n{made.text[end:]}", made.launches)


def install() -> None:
    """Have the functions that children call use it."""
    sketches.SKETCHES = (*REAL, *PLANTED)
    lowered: list[Candidate] = []
    plain_source = build.source

    def lower(candidate: Candidate) -> Kernel:
        lowered[:] = [candidate]
        return sketches.lower(candidate)

    def source(kernel: Kernel, target: Target) -> Source:
        made, name = plain_source(kernel, target), lowered[0].schedule.sketch
        return with_fault(made, name.removeprefix(PREFIX)) if name.startswith(PREFIX) else made

    setattr(measure, "lower", lower)  # noqa: B010 - names that it imports
    setattr(build, "source", source)  # noqa: B010

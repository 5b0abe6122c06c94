"""A plugin for the children of a pool: sketches whose kernels hang, crash or compute a wrong result.

The sketch "planted.<fault>" is the default kernel of the task with a faulty line in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunewright.codegen.cuda import build
from tunewright.codegen.cuda.emit import CudaSource
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space import sketches
from tunewright.search_space.description import SchedulePoint
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.space import Space
from tunewright.workers.measure import measure

FAULTS: Mapping[str, tuple[str, Status]] = {
    "hang": ('while (true) asm volatile("nanosleep.u32 1000;" ::: "memory");', Status.TIMEOUT),
    "crash": ("*reinterpret_cast<volatile int*>(8) = 1;", Status.CRASH),
    "wrong": ("if (blockIdx.x == 0) return;", Status.WRONG_RESULT),
}
"""By fault: the line that its kernel begins with, and the expected status."""

PREFIX = "planted."

HEAD = ") {\n"
"""The end of a function's head."""


@dataclass(frozen=True)
class FaultSketch:
    """The default of the first sound sketch that applies, with a fault in its kernel."""

    fault: str
    version: int = 1

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.fault}"

    def applies(self, task: Task, target: Target) -> bool:
        return True

    def space(self, task: Task, target: Target) -> Space:
        return _real_sketch(task, target).space(task, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        return _real_sketch(task, target).lower(task, self.space(task, target).default, target)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield f"The fault {self.fault}, in the kernel of another sketch."


def _real_sketch(task: Task, target: Target) -> Sketch:
    return next(sketch for sketch in REAL if find_space(sketch, task, target))


REAL = sketches.SKETCHES
FAULT_SKETCHES = tuple(FaultSketch(fault) for fault in FAULTS)


def schedule(fault: str) -> Schedule:
    """The schedule of a fault."""
    return Schedule(f"{PREFIX}{fault}", 1, ())


def insert_fault(kernel_source: CudaSource, fault: str) -> CudaSource:
    """The source of a kernel with a fault at its beginning."""
    begin = kernel_source.text.index('extern "C" __global__')
    end = kernel_source.text.index(HEAD, begin) + len(HEAD)
    return CudaSource(
        f"{kernel_source.text[:end]}  {FAULTS[fault][0]}\n{kernel_source.text[end:]}", kernel_source.launches
    )


def install() -> None:
    """Patch the functions that children call."""
    sketches.SKETCHES = (*REAL, *FAULT_SKETCHES)
    lowered: list[Candidate] = []
    plain_source = build.source

    def lower(candidate: Candidate) -> Kernel:
        lowered[:] = [candidate]
        return sketches.lower(candidate)

    def source(kernel: Kernel, target: Target) -> CudaSource:
        kernel_source, name = plain_source(kernel, target), lowered[0].schedule.sketch
        return insert_fault(kernel_source, name.removeprefix(PREFIX)) if name.startswith(PREFIX) else kernel_source

    setattr(measure, "lower", lower)  # noqa: B010 - names that it imports
    setattr(build, "source", source)  # noqa: B010

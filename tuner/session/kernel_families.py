"""KernelFamilies: kernels of one model at several sizes, which share code where one does for several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tunewright.codegen.artifact import Artifact, SymbolicArtifact
from tunewright.codegen.llvm.build import ObjectCache, build_all, build_symbolic
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.graph.task_family import TaskFamily
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower
from tunewright.search_space.symbolic import lower_family

MOST_VARIANTS = 64
"""Kernels of one schedule for different sizes of a family, such as with and without smaller tiles at the end."""

MOST_TASKS = 4
"""Tasks of a family that others are compared with."""


class _FamilyKernel(NamedTuple):
    family: TaskFamily
    code: SymbolicArtifact


class KernelFamilies:
    """What a process has built for a model at some sizes, for the next ones.

    The first size gets kernels for its numbers alone. At the second one tasks of the same form tell which numbers of
    them change with the size; these are symbolic from then on. A kernel then serves all sizes at which its sketch does
    the same, with the same schedule.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, list[Task]] = {}  # by family, of the sizes so far
        self._kernels: dict[tuple[str, Schedule, Target], list[_FamilyKernel]] = {}

    def build(
        self, tasks: Mapping[str, Task], schedules: Mapping[str, Schedule], target: Target, cache: ObjectCache | None
    ) -> dict[str, Artifact]:
        """Task key -> the code of its schedule, for the model at one size. Raises BuildError."""
        found = {key: self._find(task, schedules[key], target, cache) for key, task in tasks.items()}
        rest = [key for key, artifact in found.items() if artifact is None]
        kernels = (lower(Candidate(tasks[key], target, schedules[key])) for key in rest)
        built = dict(zip(rest, build_all(kernels, target, cache), strict=True))
        for task in tasks.values():
            seen = self._tasks.setdefault(task.family, [])
            seen[:] = [task, *seen][:MOST_TASKS]
        return {key: artifact if artifact is not None else built[key] for key, artifact in found.items()}

    def _find(self, task: Task, schedule: Schedule, target: Target, cache: ObjectCache | None) -> Artifact | None:
        """The code of a kernel for several sizes; None where there is none."""
        known = self._kernels.setdefault((task.family, schedule, target), [])
        for kernel in known:
            values = kernel.family.match(task)
            artifact = kernel.code.at(values) if values is not None else None
            if artifact is not None:
                return artifact
        family = self._closest(task)
        if family is None or len(known) == MOST_VARIANTS:
            return None
        values = family.match(task)
        assert values is not None  # it is of the family that it was compared for
        symbolic = lower_family(family, values, schedule, target)
        if symbolic is None:
            return None
        known.append(_FamilyKernel(family, build_symbolic(*symbolic, target, cache)))
        return known[-1].code.at(values)

    def _closest(self, task: Task) -> TaskFamily | None:
        """The family with the task of another size that differs in fewest numbers; None if there is no such task."""
        families = [TaskFamily.of(other, task) for other in self._tasks.get(task.family, [])]
        return min(filter(None, families), key=lambda family: family.differences, default=None)

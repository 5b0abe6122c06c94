"""The recorded cases: the heaviest task of some operators, on one thread and on all, in thinned spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tunewright.bench.suite.operators import OPERATORS
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Space
from tunewright.tuner.models.model import open_model

from .subspace import thin_space

POINTS = 256
"""The most legal points of a case, over all its spaces: half a minute of measurements."""

NAMES = (
    "gemm 384x512x512",
    "conv 3x3 128-128 at 28x28",
    "depthwise 3x3 144 at 56x56",
    "softmax 512x1024",
    "batched matmul 12x128x64x128",
    "conv 1x1 256-1024 at 14x14",
    "depthwise 3x3, conv 1x1 96-24 at 56x56",
    "max pool 3x3 stride 1 192 at 28x28",
    "conv 3x3 stride 2 256-256 at 28x28",
    "layer norm 128x768",
    "dense 128x768x768",
    "attention 12x128x64",
)
"""Operators, quick ones of each kind, in the order of recording."""


@dataclass(frozen=True, slots=True)
class TabularCase:
    """A task on a target, and the spaces to search."""

    name: str
    task: Task
    target: Target
    spaces: tuple[Space, ...]

    @property
    def points(self) -> list[Schedule]:
        """Every legal point."""
        return [space.schedule(row) for space in self.spaces for row in space.points]


def make_case(name: str, task: Task, target: Target, most: int = POINTS) -> TabularCase:
    """A task in thinned spaces, which share `most` points equally."""
    task_spaces = spaces(task, target)
    return TabularCase(name, task, target, tuple(thin_space(space, most // len(task_spaces)) for space in task_spaces))


def cases(names: Sequence[str] = NAMES) -> Iterator[TabularCase]:
    """The cases of operators on one thread and on all."""
    for name in names:
        for threads in sorted({1, detect().threads}):
            yield make_case(f"{name}, threads: {threads}", _heaviest(name), detect(threads))


@cache
def _heaviest(name: str) -> Task:
    """The task of an operator with the most operations, fused where there is a choice."""
    tasks = open_model(OPERATORS[name].build()).tasks.values()
    return max((task for task, _ in tasks), key=lambda task: (task.flops, task.traffic_bytes))

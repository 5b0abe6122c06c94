"""Examples: what was measured, as a cost model learns it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces


def grouped(examples: Iterable[tuple[Candidate, Measurement]]) -> Iterator[Trials]:
    """The trials of each space of each task and target, in order of first appearance."""
    places: dict[tuple[str, str], tuple[Task, Target]] = {}
    measured: dict[tuple[str, str], list[tuple[Schedule, Measurement]]] = {}
    for candidate, measurement in examples:
        key = candidate.task.key, candidate.target.key
        places.setdefault(key, (candidate.task, candidate.target))
        measured.setdefault(key, []).append((candidate.schedule, measurement))
    for key, (task, target) in places.items():
        for space in spaces(task, target):
            yield Trials.of(task, target, space, measured[key])

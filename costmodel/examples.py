"""Examples: what was measured, as a cost model learns it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

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
    key_of = cache(lambda target: target.key)  # a digest, for thousands of examples of a few targets
    for candidate, measurement in examples:
        key = candidate.task.key, key_of(candidate.target)
        places.setdefault(key, (candidate.task, candidate.target))
        measured.setdefault(key, []).append((candidate.schedule, measurement))
    for key, (task, target) in places.items():
        for space in spaces(task, target):
            yield Trials.of(task, target, space, measured[key])

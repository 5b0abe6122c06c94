"""Examples: measurements grouped into the trials that a cost model learns from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces

from .labels import TaskOnTarget, task_on_target
from .model import Trials


def group_trials(examples: Iterable[tuple[Candidate, Measurement]]) -> Iterator[Trials]:
    """The trials of each space of each task and target, in order of first appearance."""
    tasks: dict[TaskOnTarget, tuple[Task, Target]] = {}
    measured: dict[TaskOnTarget, list[tuple[Schedule, Measurement]]] = {}
    for candidate, measurement in examples:
        key = task_on_target(candidate.task, candidate.target)
        tasks.setdefault(key, (candidate.task, candidate.target))
        measured.setdefault(key, []).append((candidate.schedule, measurement))
    for key, (task, target) in tasks.items():
        for space in spaces(task, target):
            yield Trials.of(task, target, space, measured[key])

"""CostModel: which schedules are likely to be fast, without building them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

from .roofline import estimate_space_s

Scores = NDArray[np.float64]  # [points], higher is better


TaskOnTarget = tuple[str, str]
"""The keys of a task and a target. Speeds are relative to the fastest of these."""


class TrialTimes(Protocol):
    """The part of a `Measurement` that a cost model learns from."""

    @property
    def status(self) -> Status: ...

    @property
    def median_s(self) -> float | None: ...

    @property
    def low_s(self) -> float | None: ...

    @property
    def high_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Trials:
    """Measured points of one space: what a cost model learns from."""

    task: Task
    target: Target
    space: Space
    rows: Rows
    times_s: NDArray[np.float64]  # [points]; inf where the candidate failed
    spans_s: NDArray[np.float64] | None = None  # [points, 2]; the intervals of the times, where they are known

    @property
    def key(self) -> TaskOnTarget:
        """The keys of their task and target."""
        return self.task.key, self.target.key

    @staticmethod
    def of(task: Task, target: Target, space: Space, measured: Iterable[tuple[Schedule, TrialTimes]]) -> Trials:
        """The trials of the measurements whose schedule lies in `space`; others are ignored."""
        measured = list(measured)
        rows, indices = space.rows([schedule for schedule, _ in measured])
        return Trials.at(task, target, space, rows, [measured[index][1] for index in indices])

    @staticmethod
    def at(task: Task, target: Target, space: Space, rows: Rows, measured: Sequence[TrialTimes]) -> Trials:
        """The trials of points of the space and their measurements."""
        times_s = np.array([_times_s(measurement) for measurement in measured], np.float64).reshape(len(measured), 3)
        return Trials(task, target, space, rows, np.ascontiguousarray(times_s[:, 0]), times_s[:, 1:])

    def join(self, others: Trials) -> Trials:
        """These trials and others of the same space; with intervals only if both have them."""
        spans_s = None
        if self.spans_s is not None and others.spans_s is not None:
            spans_s = np.concatenate([self.spans_s, others.spans_s])
        rows, times_s = np.concatenate([self.rows, others.rows]), np.concatenate([self.times_s, others.times_s])
        return replace(self, rows=rows, times_s=times_s, spans_s=spans_s)


def _times_s(measurement: TrialTimes) -> tuple[float, float, float]:
    """The time and the ends of its interval; inf of a failure. An end that an import lacks is taken to be the time."""
    time_s, low_s, high_s = measurement.median_s, measurement.low_s, measurement.high_s
    if measurement.status is not Status.OK or time_s is None:
        return np.inf, np.inf, np.inf
    return time_s, time_s if low_s is None else low_s, time_s if high_s is None else high_s


def group_trials(examples: Iterable[tuple[Candidate, Measurement]]) -> Iterator[Trials]:
    """The trials of each space of each task and target, in order of first appearance."""
    tasks: dict[TaskOnTarget, tuple[Task, Target]] = {}
    measured: dict[TaskOnTarget, list[tuple[Schedule, Measurement]]] = {}
    for candidate, measurement in examples:
        key = (candidate.task.key, candidate.target.key)
        tasks.setdefault(key, (candidate.task, candidate.target))
        measured.setdefault(key, []).append((candidate.schedule, measurement))
    for key, (task, target) in tasks.items():
        for space in spaces(task, target):
            yield Trials.of(task, target, space, measured[key])


class CostModel(Protocol):
    """Ranks the schedules of one task on one target.

    - A score is minus log2 of seconds: what is expected where the model has something to go by, else what an estimate
      makes of it. Within a task, in all its spaces, the order is what counts.
    - A score follows from the point, the trials of the last `fit` and the seed: not from what is scored beside it, nor
      from the order of the trials.
    - A model that has learned nothing yet still answers.

    Every implementation passes `tests/costmodel/test_model.py`.
    """

    @property
    def ready(self) -> bool:
        """Whether the scores rest on measurements."""
        ...

    def knows(self, space: Space) -> bool:
        """Whether the scores rest on measurements of the space's sketch, where it is known of which."""
        ...

    def fit(self, trials: Sequence[Trials]) -> None:
        """Learn from these trials, of any tasks and targets, and from nothing else."""
        ...

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        """Higher is better; finite."""
        ...

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        """The standard deviation of the scores [points]; 0 where the model doesn't know it."""
        ...


class AnalyticModel:
    """The estimate of `roofline`, from the loops and the target's numbers alone: nothing to learn."""

    @property
    def ready(self) -> bool:
        return False

    def knows(self, space: Space) -> bool:
        return False

    def fit(self, trials: Sequence[Trials]) -> None:
        pass

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        log_s = np.log2(estimate_space_s(task, target, space, rows)).astype(np.float32)  # as coarse as the feature is
        return -log_s.astype(np.float64)

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        return np.zeros(len(rows))

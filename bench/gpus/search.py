"""A search on a GPU with a pool and the base cost model: no database, no learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tunewright.codegen.target import CUDA, Target
from tunewright.costmodel.base import base
from tunewright.costmodel.xgb import XGBModel
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.lookup.predictor import pick_by
from tunewright.tuner.search.strategies.evolutionary import Evolutionary
from tunewright.tuner.search.strategies.history import SearchProblem
from tunewright.workers.pool import Pool

BATCH = 16
"""Candidates that are built together. The first batch is the default alone."""


class NoWorkingSchedule(Exception):
    """All trials of a task failed. The text is one line."""


@dataclass(frozen=True, slots=True)
class TaskSearch:
    """The trials of a task, in order."""

    trials: Sequence[tuple[Schedule, Measurement]]

    @property
    def best(self) -> tuple[Schedule, float]:
        """The fastest schedule and its seconds. Raises NoWorkingSchedule."""
        works = [(schedule, m.median_s) for schedule, m in self.trials if m.median_s is not None]
        if not works:
            raise NoWorkingSchedule(f"none of {len(self.trials)} schedules works: {self.statuses}")
        return min(works, key=lambda pair: pair[1])

    @property
    def statuses(self) -> dict[str, int]:
        """The number of trials by status."""
        counts: dict[str, int] = {}
        for _, measurement in self.trials:
            counts[measurement.status.value] = counts.get(measurement.status.value, 0) + 1
        return counts


def base_model() -> XGBModel:
    """The base model; where there is none, the analytic estimate."""
    shipped = base(CUDA)
    return XGBModel(shipped.learned if shipped else None)


def first_pick(task: Task, target: Target) -> Schedule:
    """The schedule of a task without any trial: what the base model picks, else the default."""
    model = base_model()
    pick = pick_by(model, task, target, ()) if model.ready else None
    return pick.schedule if pick else default_schedule(task, target)


def search_task(pool: Pool, task: Task, target: Target, trials: int, *, seed: int = 0) -> TaskSearch:
    """Search a task with so many trials, or fewer if its spaces are exhausted."""
    strategy = Evolutionary(SearchProblem.of(task, target, spaces(task, target), base_model(), seed))
    search_trials: list[tuple[Schedule, Measurement]] = []
    best_s = inf
    while len(search_trials) < trials:
        schedules = strategy.ask(min(BATCH if search_trials else 1, trials - len(search_trials)))
        if not schedules:
            break
        batch = [Candidate(task, target, schedule) for schedule in schedules]
        batch_trials = [
            (candidate.schedule, m) for candidate, m in pool.measure(batch, best_s if best_s < inf else None)
        ]
        strategy.tell(batch_trials)
        search_trials += batch_trials
        best_s = min([best_s, *(m.median_s for _, m in batch_trials if m.median_s is not None)])
    return TaskSearch(search_trials)

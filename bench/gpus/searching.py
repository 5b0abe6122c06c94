"""A search on a GPU of this machine, with nothing but a pool and the analytic cost model: no database, no learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tunewright.codegen.target import Target
from tunewright.costmodel.model import AnalyticModel
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.tuner.jobs.strategies.evolutionary import Evolutionary
from tunewright.tuner.jobs.strategies.problem import Problem
from tunewright.workers.pool import Pool

BATCH = 16
"""Candidates that are built together. The first is the default alone."""


class NoneWorks(Exception):
    """All that was tried of a task fails. One line."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What was tried of a task, in order."""

    tried: Sequence[tuple[Schedule, Measurement]]

    @property
    def best(self) -> tuple[Schedule, float]:
        """The fastest that works, and its seconds. Raises NoneWorks where none does."""
        works = [(schedule, m.median_s) for schedule, m in self.tried if m.median_s is not None]
        if not works:
            raise NoneWorks(f"none of {len(self.tried)} schedules works: {self.statuses}")
        return min(works, key=lambda one: one[1])

    @property
    def statuses(self) -> dict[str, int]:
        """How many trials ended in which way."""
        found: dict[str, int] = {}
        for _, measurement in self.tried:
            found[measurement.status.value] = found.get(measurement.status.value, 0) + 1
        return found


def searched(pool: Pool, task: Task, target: Target, trials: int, *, seed: int = 0) -> Searched:
    """So many trials of a task, fewer where there are no more schedules."""
    strategy = Evolutionary(Problem.of(task, target, spaces(task, target), AnalyticModel(), seed))
    tried: list[tuple[Schedule, Measurement]] = []
    best_s = inf
    while len(tried) < trials:
        asked = strategy.ask(min(BATCH if tried else 1, trials - len(tried)))
        if not asked:
            break
        batch = [Candidate(task, target, schedule) for schedule in asked]
        told = [(one.schedule, m) for one, m in pool.measure(batch, best_s if best_s < inf else None)]
        strategy.tell(told)
        tried += told
        best_s = min([best_s, *(m.median_s for _, m in told if m.median_s is not None)])
    return Searched(tried)

"""Learning: the cost model of a job, and what it is taught."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from tunewright.codegen.target import Target
from tunewright.costmodel.examples import grouped
from tunewright.costmodel.model import Trials
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.store import Store

from .task_state import TaskState

HISTORY = 5_000
"""Most trials of the database that the cost model learns from, the newest first."""

REFIT = 16
"""Trials between two fits of the cost model."""


class Learning:
    """Fits the cost model now and then, to the trials of the job's tasks and to what other tasks taught before."""

    def __init__(self, store: Store, target: Target, task_keys: Collection[str], seed: int) -> None:
        self.costs = XGBModel(seed=seed)
        self._target = target
        self._others = list(_history(store, target, task_keys))
        self._new = REFIT  # trials since the last fit

    def note(self, trials: int) -> None:
        """There are more trials."""
        self._new += trials

    def refit(self, states: Sequence[TaskState]) -> None:
        """Learn from all trials, if there are enough new ones."""
        if self._new < REFIT:
            return
        own = [
            Trials.of(state.task, self._target, space, state.measured.values())
            for state in states
            for space in state.spaces
        ]
        self.costs.fit([*self._others, *own])
        self._new = 0


def _history(store: Store, target: Target, own: Collection[str]) -> Iterator[Trials]:
    """What other tasks and targets of the kind taught."""
    return grouped(
        (candidate, measurement)
        for candidate, measurement in islice(store.examples(target.kind), HISTORY)
        if candidate.task.key not in own or candidate.target.key != target.key
    )

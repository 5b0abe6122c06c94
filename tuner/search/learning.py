"""Learning: the cost model of a job, fitted to its trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials, group_trials
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.snapshot import Snapshot
from tunewright.db.store import Store

from ..lookup.experience import experience, learn
from .task_state import TaskState

OTHERS = 500
"""Most trials of other tasks, newer than the last snapshot, that the model learns from beside the job's own."""

REFIT, REFIT_SHARE = 16, 0.1
"""New trials after which the model is fitted again: so many, and so large a part of those that it has learned from."""


class Learning:
    """Fits the cost model now and then to the trials of the job's tasks, above all that was learned before."""

    def __init__(self, store: Store, target: Target, task_keys: Collection[str], seed: int) -> None:
        learn(store, target.kind)  # from what was imported, say
        known = experience(store, target.kind)
        self.costs = XGBModel(known.learned, seed)
        self._store, self._target = store, target
        self._others = _others(store, target, task_keys, known.snapshot)
        self._own: dict[str, list[Trials]] = {}  # of the job's tasks by their keys, at the last fit
        self._counts: dict[str, int] = {}  # how many of these there were, with those that are in no space any more
        self._new, self._known = REFIT, 0  # trials since the last fit, and at it

    def note(self, trials: int) -> None:
        """Count new trials."""
        self._new += trials

    def refit(self, states: Sequence[TaskState]) -> None:
        """Learn from all trials, if there are enough new ones."""
        if self._new < max(REFIT, REFIT_SHARE * self._known):
            return
        own = [trials for state in states for trials in self._trials(state)]
        self.costs.fit([*self._others, *own])
        self._new, self._known = 0, sum(len(each.times_s) for each in (*self._others, *own))

    def _trials(self, state: TaskState) -> list[Trials]:
        """The trials of a task of the job, by space; features of those of the last fit are reused."""
        at_hand = self._own.get(state.task.key) or [
            Trials.of(state.task, self._target, space, ()) for space in state.spaces
        ]
        new = list(islice(state.measured.values(), self._counts.get(state.task.key, 0), None))  # the latest come last
        own = [each.join(Trials.of(state.task, self._target, each.space, new)) for each in at_hand]
        self._own[state.task.key], self._counts[state.task.key] = own, len(state.measured)
        return own

    def keep(self, job_id: int | None) -> None:
        """Keep a snapshot for other jobs, where there are enough new trials."""
        learn(self._store, self._target.kind, job_id)


def _others(store: Store, target: Target, own: Collection[str], newest: Snapshot | None) -> list[Trials]:
    """Trials of other tasks and targets of the kind since the newest snapshot."""
    examples = store.examples(target.kind, after=newest.newest_trial_id if newest else 0)
    others = (
        (candidate, measurement)
        for candidate, measurement in examples
        if candidate.task.key not in own or candidate.target.key != target.key
    )
    return list(group_trials(islice(others, OTHERS)))

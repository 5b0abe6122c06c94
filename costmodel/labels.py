"""What trees learn from: features of each trial, and the speed of its schedule beside the fastest one of its task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .features import NAMES, features
from .forest import RANKS, Forest, Growth, Labels, Members, Values
from .model import Trials

TaskOnTarget = tuple[str, str]
"""Keys of a task and a target: what speeds are relative to."""


def task_on_target(task: Task, target: Target) -> TaskOnTarget:
    """Their keys."""
    return task.key, target.key


def task_of(trials: Trials) -> TaskOnTarget:
    """Whose trials these are."""
    return task_on_target(trials.task, trials.target)


def _seen(trials: Trials) -> Values:
    return features(trials.task, trials.target, trials.space, trials.rows).values


@dataclass(frozen=True, slots=True)
class Lesson:
    """Trials as trees learn them, in an order that doesn't depend on how they arrived, so that sums round alike.

    Only of tasks that have more than one, for a single one is the best of its task whatever it is.
    """

    sets: Sequence[Trials]
    values: Values  # of all of them
    speeds: Labels  # best time of the task / time, in (0, 1]; of failures 0
    groups: NDArray[np.int64]  # the number of the task and target, ascending: what can be ranked

    @staticmethod
    def of(trials: Sequence[Trials], seen: Callable[[Trials], Values] = _seen) -> Lesson:
        """What these trials teach. `seen` gives what a model sees of points: their features, by default worked out."""
        sets = _comparable(trials)
        values = np.concatenate([np.empty((0, len(NAMES)), np.float32), *map(seen, sets)])
        return Lesson(sets, values, _speeds(sets), _groups(sets))

    @property
    def teaches(self) -> bool:
        """Whether any schedule is better than another."""
        return len(self.speeds) > 0 and bool(self.speeds.min() < self.speeds.max())

    @property
    def tasks(self) -> int:
        """How many there are, one on two targets twice."""
        return len(np.unique(self.groups))

    def forest(
        self,
        growth: Growth,
        *,
        members: int,
        seed: int,
        before: Members | None = None,
        objective: str = RANKS,
    ) -> Forest:
        """Trees that have learned it: see `Forest.fit`."""
        return Forest.fit(
            self.values, self.speeds, self.groups, growth,
            members=members, seed=seed, before=before, objective=objective,
        )  # fmt: skip


def _comparable(trials: Sequence[Trials]) -> list[Trials]:
    count = Counter(key for each in trials for key in [task_of(each)] * len(each.times_s))
    sets = []
    for each in sorted(trials, key=lambda t: (task_of(t), t.space.sketch, t.space.version)):
        if count[task_of(each)] > 1 and len(each.times_s):
            order = np.lexsort((each.times_s, each.space.codes(each.rows)))
            spans_s = None if each.spans_s is None else each.spans_s[order]
            sets.append(replace(each, rows=each.rows[order], times_s=each.times_s[order], spans_s=spans_s))
    return sets


def _speeds(sets: Sequence[Trials]) -> Labels:
    """They have no unit and no size, so trials of all tasks and shapes teach one model."""
    times_s = [_undisturbed_s(each) for each in sets]
    best_s: dict[TaskOnTarget, float] = {}
    for each, known_s in zip(sets, times_s, strict=True):
        best_s[task_of(each)] = min(best_s.get(task_of(each), np.inf), float(known_s.min(initial=np.inf)))
    parts = [np.empty(0)]
    for each, known_s in zip(sets, times_s, strict=True):
        ok = np.isfinite(known_s)
        parts.append(np.divide(best_s[task_of(each)], known_s, out=np.zeros(len(ok)), where=ok))
    return np.concatenate(parts).astype(np.float32)


def _undisturbed_s(trials: Trials) -> NDArray[np.float64]:
    """The times, nearer to the low ends of their intervals: of few samples the median may be of disturbed ones.

    The geometric mean of both orders 0.2% more of the pairs of tasks held out than the median does.
    """
    if trials.spans_s is None:
        return trials.times_s
    known = np.isfinite(trials.times_s)
    found = np.full(len(known), np.inf)
    found[known] = np.sqrt(trials.times_s[known] * trials.spans_s[known, 0])
    return found


def _groups(sets: Sequence[Trials]) -> NDArray[np.int64]:
    numbers: dict[TaskOnTarget, int] = {}
    parts = [np.full(len(each.times_s), numbers.setdefault(task_of(each), len(numbers))) for each in sets]
    return np.concatenate([np.empty(0, np.int64), *parts])

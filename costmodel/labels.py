"""Training data of trees: features of each trial, and the speed of its schedule relative to the task's fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tunewright.search_space.space import Space

from .features import features, names_of
from .forest import RANKS, Forest, Growth, Labels, Members, Values
from .model import TaskOnTarget, Trials


def _features(trials: Trials) -> Values:
    return features(trials.task, trials.target, trials.space, trials.rows).values


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Trials as trees learn them, in an order that doesn't depend on how they arrived, so that sums round the same.

    Tasks with a single trial are left out: it would be the best of its task whatever it is.
    """

    sets: Sequence[Trials]
    values: Values  # of all of them
    speeds: Labels  # best time of the task / time, in (0, 1]; of failures 0
    groups: NDArray[np.int64]  # the number of the task and target, ascending: what can be ranked

    @staticmethod
    def of(trials: Sequence[Trials], features_of: Callable[[Trials], Values] = _features) -> TrainingData:
        """The training data in some trials; `features_of` gives the features of their points."""
        sets = _comparable_sets(trials)
        values = np.concatenate([np.empty((0, len(names_of(_kind(sets)))), np.float32), *map(features_of, sets)])
        return TrainingData(sets, values, _speeds(sets), _groups(sets))

    @property
    def kind(self) -> str:
        """The kind of the targets, which is one; processors' where there is none."""
        return _kind(self.sets)

    @property
    def sketches(self) -> frozenset[str]:
        """The sketches of the trials, by `sketch_mark`."""
        return frozenset(sketch_mark(each.space) for each in self.sets)

    @property
    def is_informative(self) -> bool:
        """Whether any schedule is better than another."""
        return len(self.speeds) > 0 and bool(self.speeds.min() < self.speeds.max())

    @property
    def tasks(self) -> int:
        """The number of tasks, one on two targets counted twice."""
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
        """A forest fitted to this data: see `Forest.fit`."""
        return Forest.fit(
            self.values, self.speeds, self.groups, growth,
            members=members, seed=seed, before=before, objective=objective,
        )  # fmt: skip


def sketch_mark(space: Space) -> str:
    """The sketch of a space with its version, and the knobs that set it apart: others write other kernels."""
    return " ".join((space.sketch, str(space.version), *(knob.name for knob in space.knobs if knob.is_apart)))


def _kind(sets: Sequence[Trials]) -> str:
    return sets[0].target.kind if sets else "cpu"


def _comparable_sets(trials: Sequence[Trials]) -> list[Trials]:
    count = Counter(key for each in trials for key in [each.key] * len(each.times_s))
    sets = []
    for each in sorted(trials, key=lambda t: (t.key, t.space.sketch, t.space.version)):
        if count[each.key] > 1 and len(each.times_s):
            order = np.lexsort((each.times_s, each.space.codes(each.rows)))
            spans_s = None if each.spans_s is None else each.spans_s[order]
            sets.append(replace(each, rows=each.rows[order], times_s=each.times_s[order], spans_s=spans_s))
    return sets


def _speeds(sets: Sequence[Trials]) -> Labels:
    """Speeds relative to the best of each task: without a unit, so that trials of all tasks teach one model."""
    times_s = [_steady_times_s(each) for each in sets]
    best_s: dict[TaskOnTarget, float] = {}
    for each, task_times_s in zip(sets, times_s, strict=True):
        best_s[each.key] = min(best_s.get(each.key, np.inf), float(task_times_s.min(initial=np.inf)))
    parts = [np.empty(0)]
    for each, task_times_s in zip(sets, times_s, strict=True):
        succeeded = np.isfinite(task_times_s)
        parts.append(np.divide(best_s[each.key], task_times_s, out=np.zeros(len(succeeded)), where=succeeded))
    return np.concatenate(parts).astype(np.float32)


def _steady_times_s(trials: Trials) -> NDArray[np.float64]:
    """The times, moved towards the low ends of their intervals: with few samples the median may be a disturbed one.

    The geometric mean of both orders 0.2% more of the pairs of tasks held out than the median does.
    """
    if trials.spans_s is None:
        return trials.times_s
    succeeded = np.isfinite(trials.times_s)
    times_s = np.full(len(succeeded), np.inf)
    times_s[succeeded] = np.sqrt(trials.times_s[succeeded] * trials.spans_s[succeeded, 0])
    return times_s


def _groups(sets: Sequence[Trials]) -> NDArray[np.int64]:
    numbers: dict[TaskOnTarget, int] = {}
    parts = [np.full(len(each.times_s), numbers.setdefault(each.key, len(numbers))) for each in sets]
    return np.concatenate([np.empty(0, np.int64), *parts])

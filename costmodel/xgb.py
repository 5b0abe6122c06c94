"""XGBModel: boosted trees over `features`, learned from every trial at hand.

The only home of xgboost, which is imported when a model is first fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.space import Rows, Space

from .features import features
from .model import AnalyticModel, Scores, Trials

if TYPE_CHECKING:
    import xgboost

ENOUGH = 200
"""Comparisons within tasks (trials of a task beyond its first) that are always enough to learn from."""


def enough(tasks: int) -> int:
    """Comparisons from which trees rank better than the analytic estimate: 16 where there is one task, and with more
    tasks two for each, measured on 18 convolutions, products, poolings and reductions.
    """
    return min(14 + 2 * tasks, ENOUGH)


class XGBModel:
    """Predicts how near a point comes to the fastest known one of its task: best time / time, in (0, 1]; failures 0.

    That label has no unit and no size, so trials of all tasks and shapes teach one model. Squared error on it ranks
    better than a ranking loss does: of pairs not trained on it orders 83% rightly after 64 trials of one task
    (rank:pairwise: 82%), 81% after 24 trials each of 18 tasks (79%), and it is faster to fit.
    With fewer trials than `enough` it answers with the analytic estimate.
    """

    def __init__(self, seed: int = 0, threads: int = 1, rounds: int = 90) -> None:
        self._parameters: Mapping[str, Any] = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_bin": 64,
            "max_depth": 5,
            "eta": 0.12,
            "min_child_weight": 1.0,
            "subsample": 0.8,
            "colsample_bytree": 0.25,
            "seed": seed,
            "nthread": threads,
            "verbosity": 0,
        }
        self._rounds = rounds
        self._booster: xgboost.Booster | None = None
        self._untaught = AnalyticModel()
        self._known: dict[tuple[str, ...], dict[int, NDArray[np.float32]]] = {}  # features by space, then by code

    @property
    def ready(self) -> bool:
        return self._booster is not None

    def fit(self, trials: Sequence[Trials]) -> None:
        sets = _comparable(trials)
        labels = _labels(sets)
        tasks = len({_group(each) for each in sets})
        if len(labels) - tasks < enough(tasks) or labels.min() == labels.max():
            self._booster = None
            return
        import xgboost

        values = self._features(sets)
        shared = {name: self._parameters[name] for name in ("max_bin", "nthread")}
        data = xgboost.QuantileDMatrix(values, label=labels, **shared)
        self._booster = xgboost.train(dict(self._parameters), data, self._rounds)

    def _features(self, sets: Sequence[Trials]) -> NDArray[np.float32]:
        """Of all points; those of the last fit are at hand, and of a growing job most are."""
        known, self._known = self._known, {}
        values = []
        for each in sets:
            key = (*_group(each), each.space.sketch, str(each.space.version))
            codes = each.space.codes(each.rows).tolist()
            at_hand = self._known.setdefault(key, known.get(key, {}))
            new = [i for i, code in enumerate(codes) if code not in at_hand]
            fresh = features(each.task, each.target, each.space, each.rows[new]).values
            at_hand.update(zip([codes[i] for i in new], fresh, strict=True))
            values += [at_hand[code] for code in codes]
        return np.stack(values)

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._booster is None:
            return self._untaught.score(task, target, space, rows)
        values = features(task, target, space, rows).values
        if not len(values):
            return np.empty(0)
        return np.asarray(self._booster.inplace_predict(values), np.float64)


def _group(trials: Trials) -> tuple[str, str]:
    """What the labels are relative to."""
    return trials.task.key, trials.target.key


def _comparable(trials: Sequence[Trials]) -> list[Trials]:
    """The trials of tasks that have more than one, for a single one is the best of its task whatever it is.

    In an order that doesn't depend on how they arrived, so that sums in the trees round alike.
    """
    count = Counter(group for each in trials for group in [_group(each)] * len(each.times_s))
    sets = []
    for each in sorted(trials, key=lambda t: (_group(t), t.space.sketch, t.space.version)):
        if count[_group(each)] > 1 and len(each.times_s):
            order = np.lexsort((each.times_s, each.space.codes(each.rows)))
            sets.append(replace(each, rows=each.rows[order], times_s=each.times_s[order]))
    return sets


def _labels(sets: Sequence[Trials]) -> NDArray[np.float32]:
    best_s: dict[tuple[str, str], float] = {}
    for each in sets:
        best_s[_group(each)] = min(best_s.get(_group(each), np.inf), float(each.times_s.min()))
    labels = [np.empty(0)]
    for each in sets:
        ok = np.isfinite(each.times_s)
        labels.append(np.divide(best_s[_group(each)], each.times_s, out=np.zeros(len(ok)), where=ok))
    return np.concatenate(labels).astype(np.float32)

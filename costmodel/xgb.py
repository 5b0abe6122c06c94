"""XGBModel: boosted trees over `features`, on top of what was learned before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

from . import labels
from .features import NAMES, features
from .forest import Forest, Growth, Members, Values
from .labels import Place
from .learned import Learned
from .model import AnalyticModel, Scores, Trials
from .roofline import floor_s

ENOUGH = 200
"""Comparisons within tasks (trials of a task beyond its first) that are always enough to learn from."""

LEAST_SPEED = 0.02
"""Trees may predict any number; a schedule 50 times slower than the best is as slow as can be told."""

OWN = Growth(rounds=40, max_depth=4, eta=0.15, colsample_bytree=0.3)
"""A layer on what was learned before: a few dozen trials, in 50 ms. More rounds or depth rank no better."""

ALONE = Growth(rounds=90, max_depth=5, eta=0.12, colsample_bytree=0.25)
"""With nothing learned before."""

ANCHORS = 10_000
"""Tasks whose expected best times are kept."""


def enough(tasks: int) -> int:
    """Comparisons from which trees rank better than the analytic estimate: 16 where there is one task, and with more
    tasks two for each, measured on 18 convolutions, products, poolings and reductions.
    """
    return min(14 + 2 * tasks, ENOUGH)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one feature adds to the speed that is predicted of a schedule, 1 being the best of its task."""

    feature: str
    value: float  # of the feature
    speed: float


class XGBModel:
    """Predicts how near a point comes to the fastest one of its task: best time / time; failures 0.

    Squared error on that label ranks better than a ranking loss does, and is faster to fit; figures are in the data
    card of the base model. What was learned `before` is a sum of layers of trees, to which `fit` adds one that learns
    what these get wrong about the trials at hand. With nothing before and fewer trials than `enough`, it answers with
    the analytic estimate.
    """

    def __init__(self, before: Learned | None = None, seed: int = 0, threads: int = 1) -> None:
        self._before, self._seed, self._threads = before, seed, threads
        self._learned = before
        self._untaught = AnalyticModel()
        self._anchors_s: dict[Place, float] = {}  # the best time that is expected of a task, by its trials
        self._reaches_s: OrderedDict[Place, float] = OrderedDict()  # the same, without trials
        self._known: dict[tuple[str, ...], dict[int, NDArray[np.float32]]] = {}  # features by space, then by code

    @property
    def ready(self) -> bool:
        return self._learned is not None

    def fit(self, trials: Sequence[Trials]) -> None:
        self._learned = self._before
        self._anchors_s = {}
        sets = labels.comparable(trials)
        speeds, groups = labels.speeds(sets), labels.groups(sets)
        if self._suffices(speeds, len(np.unique(groups))):
            values = self._features(sets)
            before = self._before.members(values) if self._before else None
            added = None if before is None else np.mean(before, axis=0, keepdims=True)
            growth = OWN if self._before else ALONE
            layer = Forest.fit(
                values, speeds, groups, growth, members=1, seed=self._seed, threads=self._threads, before=added
            )
            self._learned = self._before.with_layer(layer) if self._before else Learned((layer,), None)
        self._anchor(trials)

    def _suffices(self, speeds: NDArray[np.float32], tasks: int) -> bool:
        """Whether there is anything to learn."""
        if not len(speeds) or speeds.min() == speeds.max():
            return False
        return self._before is not None or len(speeds) - tasks >= enough(tasks)

    def _features(self, sets: Sequence[Trials]) -> Values:
        """Of all points; those of the last fit are at hand, and of a growing job most are."""
        known, self._known = self._known, {}
        values = []
        for each in sets:
            key = (*labels.place(each), each.space.sketch, str(each.space.version))
            codes = each.space.codes(each.rows).tolist()
            at_hand = self._known.setdefault(key, known.get(key, {}))
            new = [i for i, code in enumerate(codes) if code not in at_hand]
            fresh = features(each.task, each.target, each.space, each.rows[new]).values
            at_hand.update(zip([codes[i] for i in new], fresh, strict=True))
            values += [at_hand[code] for code in codes]
        return np.stack(values)

    def _anchor(self, trials: Sequence[Trials]) -> None:
        """Note the best time that each trial lets expect of its task; the median of these is what is expected."""
        if self._learned is None:
            return
        expected_s: dict[Place, list[NDArray[np.float64]]] = {}
        for each in trials:
            ok = np.isfinite(each.times_s)
            if ok.any():
                speed = self._speed(self._members(each.task, each.target, each.space, each.rows[ok]))
                expected_s.setdefault(labels.place(each), []).append(each.times_s[ok] * speed)
        self._anchors_s = {spot: float(np.median(np.concatenate(parts))) for spot, parts in expected_s.items()}

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._learned is None:
            return self._untaught.score(task, target, space, rows)
        speed = self._speed(self._members(task, target, space, rows))
        return np.asarray(np.log2(speed) - np.log2(self._best_s(task, target)))

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._learned is None or self._learned.layers[0].members == 1:
            return np.zeros(len(rows))
        members = np.log2(np.maximum(self._members(task, target, space, rows), LEAST_SPEED))
        return np.asarray(members.std(axis=0) * self._learned.spread_scale, np.float64)

    def explain(self, task: Task, target: Target, space: Space, rows: Rows, count: int = 8) -> list[list[Contribution]]:
        """For each point the features that move its predicted speed most, the largest first; none while untaught."""
        if self._learned is None:
            return [[] for _ in rows]
        values = features(task, target, space, rows).values
        explained = []
        for point, parts in zip(values, self._learned.contributions(values), strict=True):
            order = np.argsort(-np.abs(parts[: len(NAMES)]), kind="stable")[:count]
            explained.append([Contribution(NAMES[n], float(point[n]), float(parts[n])) for n in order])
        return explained

    def _members(self, task: Task, target: Target, space: Space, rows: Rows) -> Members:
        assert self._learned is not None
        return self._learned.members(features(task, target, space, rows).values)

    @staticmethod
    def _speed(members: Members) -> NDArray[np.float64]:
        return np.asarray(np.maximum(members.mean(axis=0, dtype=np.float64), LEAST_SPEED))

    def _best_s(self, task: Task, target: Target) -> float:
        """The best time that is expected of a task: by its trials, or by those of others."""
        spot = task.key, target.key
        if (known_s := self._anchors_s.get(spot)) is not None:
            return known_s
        if (reach_s := self._reaches_s.get(spot)) is None:
            reach_s = self._reaches_s[spot] = self._reach_s(task, target)
            while len(self._reaches_s) > ANCHORS:
                self._reaches_s.popitem(last=False)
        return reach_s

    def _reach_s(self, task: Task, target: Target) -> float:
        least_s = floor_s(task, target)
        if self._before is None or self._before.reach is None:
            return least_s
        space = spaces(task, target)[0]
        default = features(task, target, space, space.row(space.default)[None]).values
        return float(least_s * np.exp2(self._before.reach.predict(default).mean()))

"""XGBModel: boosted trees over `features`, above layers learned before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

from .features import features, names_of
from .forest import SQUARES, Forest, Growth, Members, Values
from .labels import TrainingData
from .layered_model import LayeredModel
from .model import AnalyticModel, Scores, TaskOnTarget, Trials
from .point_tables import PointTable, PointTables
from .roofline import floor_s

MAX_COMPARISONS = 200
"""Comparisons within tasks (trials of a task beyond its first) that are enough for any number of tasks."""

OWN = Growth(rounds=80, max_depth=4, eta=0.1, colsample_bytree=0.3)
"""The growth of the top layer above others: a few dozen trials, in 80 ms."""

ALONE = Growth(rounds=90, max_depth=5, eta=0.12, colsample_bytree=0.25)
"""The growth of a layer alone: by squared error on speeds, as a few dozen trials have too few pairs to rank by."""

ALONE_SCALE = 1.8
"""Log2 of the time that a speed of 1 more is worth, where speeds are about 0.8."""

ORIGINS = 10_000
"""Most tasks whose defaults' ranks are kept."""

MAX_POINTS = 1 << 15
"""Most points whose features and ranks are kept, about 700 bytes each."""


def enough_comparisons(tasks: int) -> int:
    """Comparisons from which trees rank better than the analytic estimate: 16 where there is one task, and with more
    tasks two for each, measured on 18 convolutions, products, poolings and reductions.
    """
    return min(14 + 2 * tasks, MAX_COMPARISONS)


@dataclass(frozen=True, slots=True)
class Contribution:
    """The part of one feature in log2 of the predicted speed of a schedule."""

    feature: str
    value: float  # of the feature
    log2_speed: float


class XGBModel:
    """Ranks the points of a task by boosted trees.

    What was learned `before` is a sum of layers, which learned from pairs of trials of a task which one is faster: that
    orders more pairs rightly than squared error on speeds does; figures are in the data card of the base model. `fit`
    adds a layer that corrects these layers on the trials at hand, by pairs too. With nothing before it learns speeds by
    squared error, and with fewer trials than `enough_comparisons` it answers with the analytic estimate.

    From the first `fit` on, `kept_points` are kept with their features and ranks. A model that is never fitted keeps
    none: it scores most points once, and in many threads.
    """

    def __init__(self, before: LayeredModel | None = None, seed: int = 0, *, kept_points: int = MAX_POINTS) -> None:
        self._before, self._seed = before, seed
        self._top_layer: Forest | None = None  # the layer on top, which `fit` made
        self._learned = before
        self._analytic = AnalyticModel()
        self._anchors: dict[TaskOnTarget, float] = {}  # log2 of the time that trials let expect of their task's default
        self._origins: OrderedDict[TaskOnTarget, tuple[Members, float]] = OrderedDict()  # see `_origin`
        self._kept_points = kept_points
        self._tables: PointTables | None = None  # until the first `fit`, and where no points are kept

    @property
    def ready(self) -> bool:
        return self._learned is not None

    def knows(self, space: Space) -> bool:
        return self._learned is not None and self._learned.knows(space)

    def fit(self, trials: Sequence[Trials]) -> None:
        if self._tables is not None:
            self._tables.forget_ranks()
        elif self._kept_points:
            self._tables = PointTables(self._kept_points)
        self._origins.clear()
        self._top_layer, self._learned = None, self._before
        data = TrainingData.of(trials, self._features)
        if self._is_enough(data):
            self._top_layer = self._layer(data)
            alone = LayeredModel((self._top_layer,), None, scale=ALONE_SCALE, kind=data.kind)
            self._learned = self._before.with_layer(self._top_layer) if self._before else alone
        self._anchors = self._expected_defaults(trials)

    def _is_enough(self, data: TrainingData) -> bool:
        """Whether there is anything to learn, and enough of it."""
        return data.is_informative and (
            self._before is not None or len(data.speeds) - data.tasks >= enough_comparisons(data.tasks)
        )

    def _layer(self, data: TrainingData) -> Forest:
        """Fit the top layer."""
        if self._before is None:
            return data.forest(ALONE, members=1, seed=self._seed, objective=SQUARES)
        below = np.concatenate([self._ranks_below(each) for each in data.sets], axis=1).mean(axis=0, keepdims=True)
        return data.forest(OWN, members=1, seed=self._seed, before=below)

    def _features(self, trials: Trials) -> Values:
        table = self._table(trials.task, trials.target, trials.space)
        return table.values(table.slots(trials.rows))

    def _ranks_below(self, trials: Trials) -> Members:
        """The ranks of trials by the layers before."""
        table = self._table(trials.task, trials.target, trials.space)
        return table.below(table.slots(trials.rows))

    def _expected_defaults(self, trials: Sequence[Trials]) -> dict[TaskOnTarget, float]:
        """Log2 of the time of each task's default: the median of what its trials and their ranks say."""
        if self._learned is None:
            return {}
        expected: dict[TaskOnTarget, list[NDArray[np.float64]]] = {}
        for each in trials:
            succeeded = np.isfinite(each.times_s)
            if succeeded.any():
                gains = self._gains(each.task, each.target, each.space, each.rows[succeeded]).mean(axis=0)
                expected.setdefault(each.key, []).append(np.log2(each.times_s[succeeded]) + gains)
        return {key: float(np.median(np.concatenate(parts))) for key, parts in expected.items()}

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._learned is None:
            return self._analytic.score(task, target, space, rows)
        key = task.key, target.key
        default = self._anchors[key] if key in self._anchors else self._origin(task, target)[1]
        return np.asarray(self._gains(task, target, space, rows).mean(axis=0) - default)

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._learned is None or self._learned.layers[0].members == 1:
            return np.zeros(len(rows))
        return np.asarray(self._gains(task, target, space, rows).std(axis=0) * self._learned.spread_scale)

    def explain(self, task: Task, target: Target, space: Space, rows: Rows, count: int = 8) -> list[list[Contribution]]:
        """For each point the features that move its rank most, the largest first; none while untaught."""
        if not self.ready:
            return [[] for _ in rows]
        explained, names = [], names_of(target.kind)
        for point, parts in zip(*self.contributions(task, target, space, rows), strict=True):
            order = np.argsort(-np.abs(parts), kind="stable")[:count]
            explained.append([Contribution(names[n], float(point[n]), float(parts[n])) for n in order])
        return explained

    def contributions(self, task: Task, target: Target, space: Space, rows: Rows) -> tuple[Values, Values]:
        """The features of points, and what each adds to log2 of their speed, both [points, features]; 0 while untaught.

        What the features of two points of a task add, in one space or in two, differs by as much as their scores do.
        """
        values = _values(task, target, space, rows)
        if self._learned is None:
            return values, np.zeros_like(values)
        return values, self._learned.contributions(values)[:, : values.shape[1]]

    def _gains(self, task: Task, target: Target, space: Space, rows: Rows) -> NDArray[np.float64]:
        """Log2 of the speed of points over that of the task's default, by each member [members, points]."""
        assert self._learned is not None
        ranks = self._ranks(task, target, space, rows)
        return np.asarray(self._learned.scale * (ranks - self._origin(task, target)[0]), np.float64)

    def _ranks(self, task: Task, target: Target, space: Space, rows: Rows) -> Members:
        """The ranks by each member [members, points]."""
        if self._tables is None:  # a table of these points alone would only copy them
            return self._rank_features(_values(task, target, space, rows))
        table = self._table(task, target, space)
        slots = table.slots(rows)
        return table.ranks(slots, self._top_layer.predict) if self._top_layer else table.below(slots)

    def _rank_features(self, values: Values) -> Members:
        """The ranks by each member from features, without a table."""
        below = self._below(values)
        return below + self._top_layer.predict(values) if self._top_layer else below

    def _table(self, task: Task, target: Target, space: Space) -> PointTable:
        """The table of a space."""
        make = partial(
            PointTable, space, len(names_of(target.kind)), partial(_values, task, target, space), self._below
        )
        if self._tables is None:
            return make()
        key = task.key, target, space.sketch, space.version, space.knobs  # fewer choices, other codes
        return self._tables.table(key, make)

    def _below(self, values: Values) -> Members:
        """The ranks by the layers before, to which the top layer adds."""
        return self._before.members(values) if self._before else np.zeros((1, len(values)), np.float32)

    def _origin(self, task: Task, target: Target) -> tuple[Members, float]:
        """The rank of a task's default by each member, [members, 1], and log2 of the time that is expected of it.

        Ranks of one task mean nothing beside those of another, nor those of one member beside another's.
        """
        key = task.key, target.key
        if (origin := self._origins.get(key)) is None:
            origin = self._origins[key] = self._default(task, target)
            while len(self._origins) > ORIGINS:
                self._origins.popitem(last=False)
        return origin

    def _default(self, task: Task, target: Target) -> tuple[Members, float]:
        assert self._learned is not None
        space = spaces(task, target)[0]
        row = space.row(space.default)[None]
        reach = self._learned.reach
        values = _values(task, target, space, row)
        nearness = float(reach.predict(values).mean()) if reach else 0.0
        return self._rank_features(values), float(np.log2(floor_s(task, target))) + nearness


def _values(task: Task, target: Target, space: Space, rows: Rows) -> Values:
    return features(task, target, space, rows).values

"""XGBModel: boosted trees over `features`, on top of what was learned before."""

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

from .features import NAMES, features
from .forest import SQUARES, Forest, Growth, Members, Values
from .labels import Lesson, TaskOnTarget, task_of, task_on_target
from .learned import Learned
from .model import AnalyticModel, Scores, Trials
from .roofline import floor_s
from .sheets import Sheet, Sheets

ENOUGH = 200
"""Comparisons within tasks (trials of a task beyond its first) that are always enough to learn from."""

OWN = Growth(rounds=80, max_depth=4, eta=0.1, colsample_bytree=0.3)
"""A layer on what was learned before: a few dozen trials, in 80 ms."""

ALONE = Growth(rounds=90, max_depth=5, eta=0.12, colsample_bytree=0.25)
"""With nothing learned before: by squared error on speeds, as a few dozen trials have too few pairs to rank by."""

ALONE_SCALE = 1.8
"""Log2 of the time that a speed of 1 more is worth, where speeds are about 0.8."""

ORIGINS = 10_000
"""Tasks whose defaults' ranks are kept."""

KEPT = 1 << 15
"""Points whose features and ranks are kept, about 700 bytes each."""


def enough(tasks: int) -> int:
    """Comparisons from which trees rank better than the analytic estimate: 16 where there is one task, and with more
    tasks two for each, measured on 18 convolutions, products, poolings and reductions.
    """
    return min(14 + 2 * tasks, ENOUGH)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one feature adds to log2 of the speed that is predicted of a schedule."""

    feature: str
    value: float  # of the feature
    log2_speed: float


class XGBModel:
    """Ranks the points of a task by boosted trees.

    What was learned `before` is a sum of layers, which learned from pairs of trials of a task which one is faster: that
    orders more pairs rightly than squared error on speeds does; figures are in the data card of the base model. `fit`
    adds a layer that learns, by pairs too, what these get wrong about the trials at hand. With nothing before it learns
    their speeds by squared error, and with fewer trials than `enough` it answers with the analytic estimate.

    From the first `fit` on, `kept_points` are kept with their features and ranks. A model that is never fitted keeps
    none: it scores most points once, and in many threads.
    """

    def __init__(self, before: Learned | None = None, seed: int = 0, *, kept_points: int = KEPT) -> None:
        self._before, self._seed = before, seed
        self._own: Forest | None = None  # the layer on top, which `fit` made
        self._learned = before
        self._untaught = AnalyticModel()
        self._anchors: dict[TaskOnTarget, float] = {}  # log2 of the time that trials let expect of their task's default
        self._origins: OrderedDict[TaskOnTarget, tuple[Members, float]] = OrderedDict()  # see `_origin`
        self._kept_points = kept_points
        self._sheets: Sheets | None = None  # until the first `fit`, and where no points are kept

    @property
    def ready(self) -> bool:
        return self._learned is not None

    def fit(self, trials: Sequence[Trials]) -> None:
        if self._sheets is not None:
            self._sheets.forget_ranks()
        elif self._kept_points:
            self._sheets = Sheets(self._kept_points)
        self._origins.clear()
        self._own, self._learned = None, self._before
        lesson = Lesson.of(trials, self._seen)
        if self._suffices(lesson):
            self._own = self._layer(lesson)
            alone = Learned((self._own,), None, scale=ALONE_SCALE)
            self._learned = self._before.with_layer(self._own) if self._before else alone
        self._anchors = self._anchored(trials)

    def _suffices(self, lesson: Lesson) -> bool:
        """Whether there is anything to learn, and enough of it."""
        return lesson.teaches and (
            self._before is not None or len(lesson.speeds) - lesson.tasks >= enough(lesson.tasks)
        )

    def _layer(self, lesson: Lesson) -> Forest:
        """What is learned from it, above all that was before."""
        if self._before is None:
            return lesson.forest(ALONE, members=1, seed=self._seed, objective=SQUARES)
        below = np.concatenate([self._ranked(each) for each in lesson.sets], axis=1).mean(axis=0, keepdims=True)
        return lesson.forest(OWN, members=1, seed=self._seed, before=below)

    def _seen(self, trials: Trials) -> Values:
        sheet = self._sheet(trials.task, trials.target, trials.space)
        return sheet.values(sheet.slots(trials.rows))

    def _ranked(self, trials: Trials) -> Members:
        """By what was learned before."""
        sheet = self._sheet(trials.task, trials.target, trials.space)
        return sheet.below(sheet.slots(trials.rows))

    def _anchored(self, trials: Sequence[Trials]) -> dict[TaskOnTarget, float]:
        """What each trial lets expect of its task's default, by how it ranks beside it; the median of these."""
        if self._learned is None:
            return {}
        expected: dict[TaskOnTarget, list[NDArray[np.float64]]] = {}
        for each in trials:
            ok = np.isfinite(each.times_s)
            if ok.any():
                gains = self._gains(each.task, each.target, each.space, each.rows[ok]).mean(axis=0)
                expected.setdefault(task_of(each), []).append(np.log2(each.times_s[ok]) + gains)
        return {key: float(np.median(np.concatenate(parts))) for key, parts in expected.items()}

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        if self._learned is None:
            return self._untaught.score(task, target, space, rows)
        key = task_on_target(task, target)
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
        explained = []
        for point, parts in zip(*self.contributions(task, target, space, rows), strict=True):
            order = np.argsort(-np.abs(parts), kind="stable")[:count]
            explained.append([Contribution(NAMES[n], float(point[n]), float(parts[n])) for n in order])
        return explained

    def contributions(self, task: Task, target: Target, space: Space, rows: Rows) -> tuple[Values, Values]:
        """The features of points, and what each adds to log2 of their speed, both [points, features]; 0 while untaught.

        What the features of two points of a task add, in one space or in two, differs by as much as their scores do.
        """
        values = _values(task, target, space, rows)
        if self._learned is None:
            return values, np.zeros_like(values)
        return values, self._learned.contributions(values)[:, : len(NAMES)]

    def _gains(self, task: Task, target: Target, space: Space, rows: Rows) -> NDArray[np.float64]:
        """Log2 of the speed of points over that of the task's default, by each member [members, points]."""
        assert self._learned is not None
        ranks = self._ranks(task, target, space, rows)
        return np.asarray(self._learned.scale * (ranks - self._origin(task, target)[0]), np.float64)

    def _ranks(self, task: Task, target: Target, space: Space, rows: Rows) -> Members:
        """By each member [members, points]."""
        if self._sheets is None:  # a sheet of these points alone would only copy them about
            return self._ranked_alone(_values(task, target, space, rows))
        sheet = self._sheet(task, target, space)
        slots = sheet.slots(rows)
        return sheet.ranks(slots, self._own.predict) if self._own else sheet.below(slots)

    def _ranked_alone(self, values: Values) -> Members:
        """The same from their features, which are on no sheet."""
        below = self._below(values)
        return below + self._own.predict(values) if self._own else below

    def _sheet(self, task: Task, target: Target, space: Space) -> Sheet:
        """What is known of points of a space."""
        made = partial(Sheet, space, len(NAMES), partial(_values, task, target, space), self._below)
        if self._sheets is None:
            return made()
        key = task.key, target, space.sketch, space.version, space.knobs  # fewer choices, other codes
        return self._sheets.sheet(key, made)

    def _below(self, values: Values) -> Members:
        """The ranks that those of our own layer are added to."""
        return self._before.members(values) if self._before else np.zeros((1, len(values)), np.float32)

    def _origin(self, task: Task, target: Target) -> tuple[Members, float]:
        """The rank of a task's default by each member, [members, 1], and log2 of the time that is expected of it.

        Ranks of one task mean nothing beside those of another, nor those of one member beside another's.
        """
        key = task_on_target(task, target)
        if (known := self._origins.get(key)) is None:
            known = self._origins[key] = self._default(task, target)
            while len(self._origins) > ORIGINS:
                self._origins.popitem(last=False)
        return known

    def _default(self, task: Task, target: Target) -> tuple[Members, float]:
        assert self._learned is not None
        space = spaces(task, target)[0]
        row = space.row(space.default)[None]
        reach = self._learned.reach
        values = _values(task, target, space, row)
        nearness = float(reach.predict(values).mean()) if reach else 0.0
        return self._ranked_alone(values), float(np.log2(floor_s(task, target))) + nearness


def _values(task: Task, target: Target, space: Space, rows: Rows) -> Values:
    return features(task, target, space, rows).values

"""Evolutionary: points bred from the fastest known ones, ranked by the cost model, picked apart from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.costmodel.model import CostModel, Scores
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.space import Rows, Space

from ..history import History, Point

WHOLE = 2048
"""Fresh points up to which all of a space is scored, and nothing is left to breeding."""

POPULATION = 256
ROUNDS = 4
PARENTS = 32
"""Measured points that enter the first population, fastest first."""

POLISHED = 4
"""Measured points, fastest first, all of whose neighbours enter the first population."""

EXPLORED = 0.1
"""Share of each batch drawn at random: what the model is wrong about shows only there."""

UNTAUGHT_EXPLORED = 0.2
"""The same while the model has learned nothing yet."""

CROWDING = 0.5
"""Standard deviations that a candidate's score drops by for each pick that it is a neighbour of."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Scored fresh points of one space."""

    number: int  # of the space
    rows: Rows
    scores: Scores


class Evolutionary:
    """The default strategy. Follows Ansor's search (OSDI '20, section 5.1), on rows of choice numbers."""

    def __init__(
        self,
        task: Task,
        target: Target,
        spaces: Sequence[Space],
        model: CostModel,
        seed: int,
        records: Iterable[Record] = (),
    ) -> None:
        self._task = task
        self._target = target
        self._model = model
        self._history = History(spaces, task.key, target.key, records)
        self._seed = (seed, int(task.key[:16], 16))

    def ask(self, n: int) -> list[Schedule]:
        history = self._history
        # Drawn from what is known alone, not from earlier draws: a resumed search has the same randomness.
        rng = np.random.default_rng([*self._seed, history.measured, history.pending])
        schedules = history.take(history.defaults()[:n])
        wanted = n - len(schedules)
        if wanted:
            share = EXPLORED if self._model.ready else UNTAUGHT_EXPLORED
            drawn = int(share * wanted + rng.random())
            schedules += history.take(self._ranked(wanted - drawn, rng))
            schedules += history.take(history.draw(n - len(schedules), rng))
        return schedules

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        for schedule, measurement in measured:
            self._history.tell(schedule, measurement)

    def promise(self) -> float | None:
        return None

    def _ranked(self, count: int, rng: np.random.Generator) -> list[Point]:
        if not count:
            return []
        return _picked([self._pool(number, rng) for number in range(len(self._history.spaces))], count)

    def _pool(self, number: int, rng: np.random.Generator) -> Pool:
        left = self._history.remaining(number)
        if left is not None and len(left) <= WHOLE:
            return Pool(number, left, self._scores(number, left))
        rows = self._history.fresh(number, self._bred(number, rng))
        return Pool(number, rows, self._scores(number, rows))

    def _scores(self, number: int, rows: Rows) -> Scores:
        if not len(rows):
            return np.empty(0)
        return self._model.score(self._task, self._target, self._history.spaces[number], rows)

    def _bred(self, number: int, rng: np.random.Generator) -> Rows:
        """Some rounds of selection, mutation and crossing; the best of all that was seen, measured points too."""
        space = self._history.spaces[number]
        parents = self._history.best(number, PARENTS)
        rows = _distinct(space, [parents, space.neighbours(parents[:POLISHED]), space.sample(POPULATION // 2, rng)])
        scores = self._scores(number, rows)
        for _ in range(ROUNDS):
            if not len(rows):
                break
            left, right, alone = (rows[_selected(scores, POPULATION // 2, rng)] for _ in range(3))
            children = _distinct(space, [rows, space.mutate(alone, rng), space.cross(left, right, rng)])[len(rows) :]
            rows = np.concatenate([rows, children])
            scores = np.concatenate([scores, self._scores(number, children)])
            kept = np.argsort(-scores, kind="stable")[: 2 * POPULATION]
            rows, scores = rows[kept], scores[kept]
        return rows


def _distinct(space: Space, parts: Sequence[Rows]) -> Rows:
    """The distinct rows of all parts, in order of first appearance."""
    rows = np.concatenate(parts)
    _, first = np.unique(space.codes(rows), return_index=True)
    return rows[np.sort(first)]


def _selected(scores: Scores, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions drawn with repeats; the chance falls with the rank, to 1/e at every eighth of the population."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    weights = np.exp(-8.0 * ranks / len(scores))
    return rng.choice(len(scores), count, p=weights / weights.sum())


def _picked(pools: Sequence[Pool], count: int) -> list[Point]:
    """The highest scores one by one; each pick lowers those of its neighbours, so that a batch isn't one hill."""
    scores = np.concatenate([pool.scores for pool in pools])
    if not len(scores):
        return []
    starts = np.cumsum([0, *(len(pool.rows) for pool in pools)])
    step = CROWDING * float(np.std(scores))
    points: list[Point] = []
    for _ in range(min(count, len(scores))):
        best = int(np.argmax(scores))
        which = int(np.searchsorted(starts, best, side="right")) - 1
        pool, row = pools[which], pools[which].rows[best - starts[which]]
        points.append((pool.number, row))
        near = np.sum(pool.rows != row, axis=1) <= 1
        scores[starts[which] : starts[which + 1]][near] -= step
        scores[best] = -np.inf
    return points

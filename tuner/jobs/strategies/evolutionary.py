"""Evolutionary: points bred from the fastest known ones, ranked by the cost model, picked apart from each other.

The figures in docstrings are of `./dev bench strategies`: 24 recorded spaces of 12 operators, of which random search
finds 96.9% of the best speed in 16 trials. They are of models that were taught by the other operators.
"""

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
from .draft import drafted

ROUNDS = 2

PARENTS = 32
"""Measured points that enter the first population of a space, fastest first."""

POLISHED = 4
"""Measured points, fastest first, all of whose neighbours are looked at."""

SAMPLED = 2048
"""Points drawn for the draft where a space is too large to be written out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What `Evolutionary` does beside taking the highest scores. Each can be left out, to see what it is good for."""

    kappa: float = 0.5
    """Deviations of the cost model that a point's score is taken higher by: 98.5% of the best speed after 8 trials and
    98% after 7.0 in the mean; without it 98.0% and 8.0. With 2 too much is spent on what is merely unknown."""

    crowding: float = 0.5
    """Standard deviations of the scores that a candidate drops by for each pick that it is a neighbour of: 98.5% of the
    best speed after 8 trials, 97.4% without; of ten searches nine are at 95% after 8 trials, 18 without."""

    explored: float = 0.1
    """Share of each batch drawn at random where the model has learned but doesn't tell its deviation."""

    untaught: float = 0.2
    """The same while it has learned nothing: 98.2% of the best speed after 16 trials, 96.9% with neither. A model that
    tells its deviation needs none of it."""

    descent: float = 0.25
    """Share of each batch, once `descent_from` points are measured, for neighbours of the fastest. By then a recorded
    space has nothing to gain, so it is no better there, and no worse; half of each batch from 9 points on is worse."""

    descent_from: int = 48

    whole: int = 512
    """Fresh points up to which all of a space is scored; nothing is left to breeding."""

    population: int = 256
    """Points bred from; all rounds together score three times as many."""

    draft: float = 0.25
    """Share of the first population that has the least estimated time: of ten searches nine are at 95% after 12 trials,
    15 without. The others can't be spared: where memory counts, as for depthwise windows and softmax, what is best has
    a third of its space before it by that estimate, and a model that starts from nothing is slower with more."""


POLICY = Policy()
"""The default."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Scored fresh points of one space."""

    number: int  # of the space
    rows: Rows
    scores: Scores  # what the model expects
    hopes: Scores  # what they may turn out to be: the scores, and some deviations more


class Evolutionary:
    """The default strategy. Follows Ansor's search (OSDI '20, section 5.1), on rows of choice numbers.

    Where a space is small all of it is scored. Else part of the first population is drafted by the roofline estimate,
    as in Pruner (ASPLOS '25), and the cost model sees only these, a few at random, the neighbours of the fastest points
    and what is bred from all.
    """

    def __init__(
        self,
        task: Task,
        target: Target,
        spaces: Sequence[Space],
        model: CostModel,
        seed: int,
        records: Iterable[Record] = (),
        policy: Policy = POLICY,
    ) -> None:
        self._task = task
        self._target = target
        self._model = model
        self._policy = policy
        self._history = History(spaces, task.key, target.key, records)
        self._seed = (seed, int(task.key[:16], 16))
        self._next: float | None = None  # the highest score of what was not picked last

    def ask(self, n: int) -> list[Schedule]:
        history, policy = self._history, self._policy
        # Drawn from what is known alone, not from earlier draws: a resumed search has the same randomness.
        rng = np.random.default_rng([*self._seed, history.measured, history.pending])
        schedules = history.take(history.defaults()[:n])
        wanted = n - len(schedules)
        if wanted:
            pools = [self._pool(number, rng) for number in range(len(history.spaces))]
            drawn = int(self._explored(pools) * wanted + rng.random())
            near = int(policy.descent * (wanted - drawn)) if history.measured >= policy.descent_from else 0
            schedules += history.take(self._picked(self._around(), near))
            schedules += history.take(self._picked([self._fresh(pool) for pool in pools], n - drawn - len(schedules)))
            schedules += history.take(history.draw(n - len(schedules), rng))
        return schedules

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        for schedule, measurement in measured:
            self._history.tell(schedule, measurement)

    def promise(self) -> float | None:
        best_s = self._history.best_s
        return None if self._next is None or not np.isfinite(best_s) else self._next + float(np.log2(best_s))

    def _explored(self, pools: Sequence[Pool]) -> float:
        """The share drawn at random: what a model is wrong about shows only there, unless it knows where it may be."""
        if not self._model.ready:
            return self._policy.untaught
        doubts = any(np.any(pool.hopes > pool.scores) for pool in pools)
        return 0.0 if doubts else self._policy.explored

    def _scores(self, number: int, rows: Rows) -> Scores:
        if not len(rows):
            return np.empty(0)
        return self._model.score(self._task, self._target, self._history.spaces[number], rows)

    def _hoped(self, number: int, rows: Rows, scores: Scores) -> Pool:
        if not len(rows):
            return Pool(number, rows, scores, scores)
        doubts = self._model.deviation(self._task, self._target, self._history.spaces[number], rows)
        return Pool(number, rows, scores, scores + self._policy.kappa * doubts)

    def _fresh(self, pool: Pool) -> Pool:
        """What is left of a pool after some of its points were taken."""
        left = self._history.is_fresh(pool.number, pool.rows)
        return Pool(pool.number, pool.rows[left], pool.scores[left], pool.hopes[left])

    def _around(self) -> list[Pool]:
        """The neighbours of the fastest points of all spaces: descent along one knob at a time."""
        fastest = self._history.fastest(POLISHED)
        pools = []
        for number, space in enumerate(self._history.spaces):
            rows = [row for where, row in fastest if where == number]
            if rows:
                near = self._history.fresh(number, space.neighbours(np.array(rows)))
                pools.append(self._hoped(number, near, self._scores(number, near)))
        return pools

    def _pool(self, number: int, rng: np.random.Generator) -> Pool:
        left = self._history.remaining(number)
        if left is not None and len(left) <= self._policy.whole:
            return self._hoped(number, left, self._scores(number, left))
        rows, scores = self._bred(number, left, rng)
        fresh = self._history.is_fresh(number, rows)
        return self._hoped(number, rows[fresh], scores[fresh])

    def _bred(self, number: int, left: Rows | None, rng: np.random.Generator) -> tuple[Rows, Scores]:
        """Some rounds of selection, mutation and crossing; the best of all that was seen, measured points too."""
        space, half = self._history.spaces[number], self._policy.population // 2
        rows = self._first(number, left, rng)
        scores = self._scores(number, rows)
        for _ in range(ROUNDS):
            if not len(rows):
                break
            one, other, alone = (rows[_selected(scores, half, rng)] for _ in range(3))
            children = _distinct(space, [rows, space.mutate(alone, rng), space.cross(one, other, rng)])[len(rows) :]
            rows = np.concatenate([rows, children])
            scores = np.concatenate([scores, self._scores(number, children)])
            kept = np.argsort(-scores, kind="stable")[: 2 * self._policy.population]
            rows, scores = rows[kept], scores[kept]
        return rows, scores

    def _first(self, number: int, left: Rows | None, rng: np.random.Generator) -> Rows:
        """The first population: measured points, their neighbours, a draft, and any others."""
        space, count = self._history.spaces[number], self._policy.population
        stock = space.sample(SAMPLED, rng) if left is None else left
        best = drafted(self._task, self._target, space, stock, int(self._policy.draft * count))
        anyone = stock[rng.permutation(len(stock))[: count - len(best)]]
        parents = self._history.best(number, PARENTS)
        return _distinct(space, [parents, space.neighbours(parents[:POLISHED]), best, anyone])

    def _picked(self, pools: Sequence[Pool], count: int) -> list[Point]:
        """The highest hopes one by one; each pick lowers those of its neighbours, so that a batch isn't one hill."""
        hopes = np.concatenate([np.empty(0), *(pool.hopes for pool in pools)])
        starts = np.cumsum([0, *(len(pool.rows) for pool in pools)])
        step = self._policy.crowding * float(np.std(hopes)) if len(hopes) else 0.0
        points: list[Point] = []
        for _ in range(min(count, len(hopes))):
            best = int(np.argmax(hopes))
            which = int(np.searchsorted(starts, best, side="right")) - 1
            pool, row = pools[which], pools[which].rows[best - starts[which]]
            points.append((pool.number, row))
            near = np.sum(pool.rows != row, axis=1) <= 1
            hopes[starts[which] : starts[which + 1]][near] -= step
            hopes[best] = -np.inf
        scores = np.concatenate([np.empty(0), *(pool.scores for pool in pools)])[np.isfinite(hopes)]
        self._next = float(scores.max()) if self._model.ready and len(scores) else None
        return points


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

"""Evolutionary: points bred from the fastest known ones, ranked by the cost model, picked apart from each other.

The figures in docstrings are of `./dev bench strategies`: 24 recorded spaces of 12 operators, of which random search
finds 97.6% of the best speed in 24 trials. With trees they are of a model that had learned nothing before.
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

ROUNDS = 3

PARENTS = 32
"""Measured points that enter the first population of a space, fastest first."""

POLISHED = 4
"""Measured points, fastest first, all of whose neighbours are looked at."""

SAMPLED = 4096
"""Points drawn for the draft where a space is too large to be written out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What `Evolutionary` does beside taking the highest scores. Each can be left out, to see what it is good for."""

    kappa: float = 0.5
    """Deviations of the cost model that a point's score is taken higher by: 97.3% of the best speed after 4 trials,
    96.9% without. With 2, 96.4%: too much is spent on what is merely unknown."""

    crowding: float = 0.5
    """Standard deviations of all scores that a candidate drops by for each pick that it is a neighbour of: 98% of the
    best speed after 7.6 trials in the mean, 8.8 without."""

    explored: float = 0.1
    """Share of each batch drawn at random where the model has learned but doesn't tell its deviation."""

    untaught: float = 0.2
    """The same while it has learned nothing: 98.4% of the best speed after 16 trials, 96.9% with neither. A model that
    tells its deviation needs none of it."""

    descent: float = 0.5
    """Share of each batch, once `descent_from` points are measured, for neighbours of the fastest: 99.5% of the best
    speed after 15.7 trials in the mean, 16.6 without. Half as much from 9 points on takes 10% longer: too early."""

    descent_from: int = 24

    whole: int = 1024
    """Fresh points up to which all of a space is scored, which takes 10 ms; nothing is left to breeding."""

    population: int = 256
    """Points bred from. Three rounds score five times as many, in 10 ms."""

    draft: float = 0.5
    """Share of the first population that has the least estimated time. The others can't be spared: where memory counts,
    as for depthwise windows and softmax, what is best has a third of its space before it by that estimate."""


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

    Where a space is small all of it is scored. Else half of the first population is drafted by the roofline estimate,
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

    def _scored(self, number: int, rows: Rows) -> Pool:
        if not len(rows):
            return Pool(number, rows, np.empty(0), np.empty(0))
        given = self._task, self._target, self._history.spaces[number], rows
        scores = self._model.score(*given)
        return Pool(number, rows, scores, scores + self._policy.kappa * self._model.deviation(*given))

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
                pools.append(self._scored(number, self._history.fresh(number, space.neighbours(np.array(rows)))))
        return pools

    def _pool(self, number: int, rng: np.random.Generator) -> Pool:
        left = self._history.remaining(number)
        if left is not None and len(left) <= self._policy.whole:
            return self._scored(number, left)
        return self._bred(number, left, rng)

    def _bred(self, number: int, left: Rows | None, rng: np.random.Generator) -> Pool:
        """Some rounds of selection, mutation and crossing; the best of all that was seen and is fresh."""
        space, half = self._history.spaces[number], self._policy.population // 2
        pool = self._scored(number, self._first(number, left, rng))
        for _ in range(ROUNDS):
            if not len(pool.rows):
                break
            one, other, alone = (pool.rows[_selected(pool.hopes, half, rng)] for _ in range(3))
            children = [pool.rows, space.mutate(alone, rng), space.cross(one, other, rng)]
            added = self._scored(number, _distinct(space, children)[len(pool.rows) :])
            pool = _joined(pool, added, 2 * self._policy.population)
        return pool

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


def _joined(pool: Pool, added: Pool, most: int) -> Pool:
    """The points of two pools of a space with the highest hopes."""
    hopes = np.concatenate([pool.hopes, added.hopes])
    kept = np.argsort(-hopes, kind="stable")[:most]
    rows, scores = np.concatenate([pool.rows, added.rows]), np.concatenate([pool.scores, added.scores])
    return Pool(pool.number, rows[kept], scores[kept], hopes[kept])


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

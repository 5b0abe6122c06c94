"""Evolutionary: points bred from the fastest known ones, ranked by the cost model, picked apart from each other.

The figures in docstrings are of `./dev bench strategies`: 24 recorded spaces of 12 operators, of which random search
finds 96.9% of the best speed in 16 trials. They are of models that were taught by the other operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tunewright.costmodel.model import Scores
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.space import Rows

from .history import Point, SearchProblem, draft

Places = NDArray[np.int64]  # positions in a list of points

ROUNDS = 2
"""Rounds of breeding. With `population` points, the first eight of a batch score as high as the first eight of all
points, within 0.1%, in the spaces of eight operators, of which up to 20,000 points are legal; 1,300 are scored."""

PARENTS = 32
"""Measured points that enter the first population of a space, fastest first."""

POLISHED = 4
"""Measured points, fastest first, all of whose neighbours are looked at."""

SUMMIT = 8
"""Points of each population, highest first, all of whose neighbours are looked at."""

SAMPLED = 2048
"""Points of a space, at most, that the draft is from: the estimate of all of them takes as long as all else does."""

GLANCED = 256
"""Points of large spaces that show what a task promises of which only the default was measured."""

HIGHEST = 256
"""Points of all spaces that a batch is picked from."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policies of `Evolutionary` beside taking the highest scores. Each can be left out, to see its effect.

    Figures of searches are of spaces recorded on an AMD EPYC. Those recorded on a Xeon with AVX-512
    (`bench/results/strategies.json`) hardly tell these policies apart: 96.7 to 98.0% of the best speed after 8 trials,
    98% after 4.8 to 5.7 in the mean.
    """

    kappa: float = 0.5
    """Deviations of the cost model that a point's score is taken higher by: 98.5% of the best speed after 8 trials and
    98% after 7.0 in the mean; without it 98.0% and 8.0. With 2 too much is spent on what is merely unknown."""

    crowding: float = 0.5
    """Standard deviations of the scores that a candidate drops by for each pick that it is a neighbour of: 98.5% of the
    best speed after 8 trials, 97.4% without; of ten searches nine are at 95% after 8 trials, 18 without."""

    explored: float = 0.1
    """Share of each batch drawn at random where the model has learned but doesn't tell its deviation."""

    untaught: float = 0.2
    """`explored` for a model that has learned nothing: 98.2% of the best speed after 16 trials, 96.9% with neither. A
    model that tells its deviation needs none of it."""

    descent: float = 0.25
    """Share of each batch, once `descent_from` points are measured, for neighbours of the fastest. By then a recorded
    space has nothing to gain, so it is no better there, and no worse; half of each batch from 9 points on is worse."""

    descent_from: int = 48

    others_from: int = 16
    """Points taken before the defaults of all sketches are tried, where the model has learned: until then only of those
    that it expects most of. In 100 trials for the 21 tasks of a network, two of the five or nine that a task has went
    into sketches that took twice as long."""

    whole: int = 1024
    """Fresh points up to which all of a space is scored; nothing is left to breeding."""

    population: int = 768
    """Points of all large spaces together: so many begin, and so many parents has each round."""

    draft: float = 0.25
    """Share of the first population that has the least estimated time: of ten searches nine are at 95% after 15 trials,
    17 without, and they are at 98% after 6.4 in the mean, 7.2 without. The others can't be spared: where memory counts,
    as for depthwise windows and softmax, what is best has a third of its space before it by that estimate, and a model
    that starts from nothing is slower with more."""


POLICY = Policy()
"""The default."""


@dataclass(frozen=True, slots=True)
class Population:
    """Scored points of one space."""

    number: int  # of the space
    rows: Rows
    scores: Scores  # by the model
    is_whole: bool = False  # all that is fresh in the space; else some of it, and measured points
    hopes: Scores | None = None  # what they may turn out to be: the scores, and some deviations more; None: the scores

    @property
    def best_hopes(self) -> Scores:
        """The hopes where there are any."""
        return self.scores if self.hopes is None else self.hopes

    def subset(self, chosen: NDArray[np.bool_]) -> Population:
        """Some of the points."""
        hopes = None if self.hopes is None else self.hopes[chosen]
        return Population(self.number, self.rows[chosen], self.scores[chosen], self.is_whole, hopes)


class Evolutionary:
    """The default strategy. Follows Ansor's search (OSDI '20, section 5.1), on rows of choice numbers.

    Where a space is small all of it is scored. Else part of the first population is drafted by the roofline estimate,
    as in Pruner (ASPLOS '25), and the cost model sees only these, a few at random, the neighbours of the fastest points
    and what is bred from all. The spaces of a task are one population: the more a model expects of one, the more
    offspring it has.
    """

    def __init__(self, problem: SearchProblem, policy: Policy = POLICY) -> None:
        self._problem, self._policy = problem, policy
        self._task, self._target = problem.task, problem.target
        self._model, self._history = problem.model, problem.history
        self._next: float | None = None  # the highest score of what was not picked last; none while nothing was

    def ask(self, n: int) -> list[Schedule]:
        history, policy, rng = self._history, self._policy, self._problem.rng()
        schedules = history.take(self._defaults()[:n])
        rest = n - len(schedules)
        if rest:
            bred_populations = self._breed(self._populations(policy.population, rng), rng)
            populations = [self._with_hopes(population) for population in _highest(bred_populations, HIGHEST + n)]
            random_count = int(self._random_share(populations) * rest + rng.random())
            near_count = (
                int(policy.descent * (rest - random_count)) if history.measured_count >= policy.descent_from else 0
            )
            if near_count:
                schedules += history.take(self._pick(self._neighbours(), near_count))
                populations = [self._fresh(population) for population in populations]
            schedules += history.take(self._pick(populations, n - random_count - len(schedules)))
            self._next = self._expected_fall([self._fresh(population).scores for population in populations])
            schedules += history.take(history.draw(n - len(schedules), rng))
        return schedules

    def _defaults(self) -> list[Point]:
        """The defaults to try before the model's picks; those of other sketches from `others_from` points on."""
        defaults, count = self._history.defaults(), self._history.measured_count + self._history.pending_count
        if not self._model.ready or count >= self._policy.others_from:
            return defaults
        return [(number, row) for number, row in defaults if number == 0]

    def tell(self, measured: Sequence[tuple[Schedule, Measurement]]) -> None:
        for schedule, measurement in measured:
            self._history.tell(schedule, measurement)

    def promise(self) -> float | None:
        best_s = self._history.best_s
        if not self._model.ready or not np.isfinite(best_s):
            return None
        if self._next is None:  # only defaults were asked for: a glance shows whether there seems to be more
            sample = self._populations(GLANCED, self._problem.rng())
            self._next = self._expected_fall([self._fresh(population).scores for population in sample])
        return self._next + float(np.log2(best_s)) if np.isfinite(self._next) else None

    def _expected_fall(self, scores: Sequence[Scores]) -> float:
        """The highest of scores, put right by what the trials of the task came to; -inf where there are none.

        So it tells how points compare with those that were measured, even while the model knows none of these.
        """
        errors = [np.empty(0)]
        for number in range(len(self._history.spaces)):
            rows, times_s = self._history.times(number)
            errors.append(self._scores(number, rows) + np.log2(times_s))
        too_high = np.concatenate(errors)
        highest = max((float(part.max()) for part in scores if len(part)), default=-np.inf)
        return highest - (float(np.median(too_high)) if len(too_high) else 0.0)

    def _random_share(self, populations: Sequence[Population]) -> float:
        """The share drawn at random: what a model is wrong about shows only there, unless it knows where it may be."""
        if not self._model.ready:
            return self._policy.untaught
        has_deviation = any(np.any(population.best_hopes > population.scores) for population in populations)
        return 0.0 if has_deviation else self._policy.explored

    def _scores(self, number: int, rows: Rows) -> Scores:
        if not len(rows):
            return np.empty(0)
        return self._model.score(self._task, self._target, self._history.spaces[number], rows)

    def _with_hopes(self, population: Population) -> Population:
        if not len(population.rows):
            return population
        deviations = self._model.deviation(
            self._task, self._target, self._history.spaces[population.number], population.rows
        )
        return replace(population, hopes=population.scores + self._policy.kappa * deviations)

    def _fresh(self, population: Population) -> Population:
        """The points that were neither asked for nor measured."""
        return population.subset(self._history.is_fresh(population.number, population.rows))

    def _neighbours(self) -> list[Population]:
        """The neighbours of the fastest points of all spaces: descent along one knob at a time."""
        fastest = self._history.fastest(POLISHED)
        populations = []
        for number, space in enumerate(self._history.spaces):
            rows = [row for space_number, row in fastest if space_number == number]
            if rows:
                neighbours = self._history.fresh(number, space.neighbours(np.array(rows)))
                populations.append(self._with_hopes(Population(number, neighbours, self._scores(number, neighbours))))
        return populations

    def _populations(self, population: int, rng: np.random.Generator) -> list[Population]:
        """The first points, of each space: all where they are few, of the large ones `population` together."""
        fresh = [self._history.remaining(number) for number in range(len(self._history.spaces))]
        is_whole = [rows is not None and len(rows) <= self._policy.whole for rows in fresh]
        share = population // max(len(is_whole) - sum(is_whole), 1)
        populations = []
        for number, rows in enumerate(fresh):
            rows = rows if rows is not None and is_whole[number] else self._first_points(number, rows, share, rng)
            populations.append(Population(number, rows, self._scores(number, rows), is_whole[number]))
        return populations

    def _first_points(self, number: int, fresh: Rows | None, count: int, rng: np.random.Generator) -> Rows:
        """Measured points, their neighbours, a draft, and any others."""
        space = self._history.spaces[number]
        stock = space.sample(SAMPLED, rng) if fresh is None else fresh[rng.permutation(len(fresh))[:SAMPLED]]
        drafted_rows = draft(self._task, self._target, space, stock, int(self._policy.draft * count))
        others = stock[: count - len(drafted_rows)]
        parents = self._history.best(number, PARENTS)
        return space.distinct(np.concatenate([parents, space.neighbours(parents[:POLISHED]), drafted_rows, others]))

    def _breed(self, populations: Sequence[Population], rng: np.random.Generator) -> list[Population]:
        """Some rounds of selection, mutation and crossing, over all spaces together; measured points are left out."""
        whole, growing = (
            [population for population in populations if population.is_whole],
            [population for population in populations if not population.is_whole],
        )
        for _ in range(ROUNDS):
            scores = np.concatenate([np.empty(0), *(population.scores for population in growing)])
            if not len(scores):
                break
            parents = _split(_select(scores, self._policy.population, rng), growing)
            summits = _split(np.argsort(-scores, kind="stable")[:SUMMIT], growing)
            growing = [self._grow(*family, rng) for family in zip(growing, parents, summits, strict=True)]
            growing = _highest(growing, 2 * self._policy.population)
        return [self._fresh(population) for population in (*whole, *growing)]

    def _grow(self, population: Population, parents: Places, summit: Places, rng: np.random.Generator) -> Population:
        """A herd with the offspring of its parents, and what is next to its highest points."""
        space = self._history.spaces[population.number]
        alone, paired = np.array_split(population.rows[parents], 2)
        crossed = space.cross(paired, paired[rng.permutation(len(paired))], rng)
        parts = [population.rows, space.mutate(alone, rng), crossed, space.neighbours(population.rows[summit])]
        children = space.distinct(np.concatenate(parts))[len(population.rows) :]
        scores = np.concatenate([population.scores, self._scores(population.number, children)])
        return Population(population.number, np.concatenate([population.rows, children]), scores)

    def _pick(self, populations: Sequence[Population], count: int) -> list[Point]:
        """The highest hopes one by one; each pick lowers those of its neighbours, so that a batch isn't one hill."""
        hopes = np.concatenate([np.empty(0), *(population.best_hopes for population in populations)])
        starts = np.cumsum([0, *(len(population.rows) for population in populations)])
        step = self._policy.crowding * float(np.std(hopes)) if len(hopes) else 0.0
        points: list[Point] = []
        for _ in range(min(count, len(hopes))):
            best = int(np.argmax(hopes))
            which = int(np.searchsorted(starts, best, side="right")) - 1
            population, row = populations[which], populations[which].rows[best - starts[which]]
            points.append((population.number, row))
            near = np.sum(population.rows != row, axis=1) <= 1
            hopes[starts[which] : starts[which + 1]][near] -= step
            hopes[best] = -np.inf
        return points


def _highest(populations: Sequence[Population], count: int) -> list[Population]:
    """The `count` points that score highest, of all herds together; equals of the last one too."""
    scores = np.concatenate([np.empty(0), *(population.scores for population in populations)])
    if len(scores) <= count:
        return list(populations)
    least = np.partition(scores, -count)[-count]
    return [population.subset(population.scores >= least) for population in populations]


def _split(places: Places, populations: Sequence[Population]) -> list[Places]:
    """Places among the points of all herds, as those in each."""
    ends = np.cumsum([len(population.rows) for population in populations])
    starts = ends - [len(population.rows) for population in populations]
    return [places[(places >= start) & (places < end)] - start for start, end in zip(starts, ends, strict=True)]


def _select(scores: Scores, count: int, rng: np.random.Generator) -> Places:
    """Positions drawn with repeats; the chance falls with the rank, to 1/e at every eighth of the population."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    weights = np.exp(-8.0 * ranks / len(scores))
    return rng.choice(len(scores), count, p=weights / weights.sum())

"""Comparison: how fast a search comes near the best point of a case, by strategy and cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.costmodel.model import CostModel, Trials
from tunewright.search_space.measurement import Candidate, Measurement, Record
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.jobs.strategies.problem import Problem
from tunewright.tuner.jobs.strategies.strategy import StrategyFactory

from .cases import Case
from .pool import ReplayPool

TRIALS = 64
BATCH = 8
"""Trials between two lessons of the cost model, after the first: that one is the default alone, as in a job. Jobs make
batches as large as keeps lessons cheap."""

NEAR, NEARER = 0.95, 0.98
"""Of the best possible speed: where a search counts as done, and where nothing is left but what timing can't tell."""

MARKS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Trials at which the results look."""

Curve = NDArray[np.float64]
"""[trials]: the speed of the fastest schedule found so far, where that of the fastest there is is 1; 0: none works."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to search. `model` makes the cost model for a case, of a seed."""

    strategy: StrategyFactory
    model: Callable[[Case, int], CostModel]


def searched(case: Case, records: Sequence[Record], contender: Contender, seed: int, trials: int = TRIALS) -> Curve:
    """One search of a case by records of all of its points, as a job would do it."""
    model = contender.model(case, seed)
    strategy = contender.strategy(Problem.of(case.task, case.target, case.spaces, model, seed))
    done: list[tuple[Schedule, Measurement]] = []
    with ReplayPool(case.target, records) as pool:
        while len(done) < trials:
            model.fit([Trials.of(case.task, case.target, space, done) for space in case.spaces])
            asked = strategy.ask(min(BATCH if done else 1, trials - len(done)))
            if not asked:
                break
            batch = [Candidate(case.task, case.target, schedule) for schedule in asked]
            told = [(candidate.schedule, measurement) for candidate, measurement in pool.measure(batch)]
            strategy.tell(told)
            done += told
    return _curve([_speed(measurement) for _, measurement in done], max(map(_speed, _measurements(records))), trials)


def _measurements(records: Sequence[Record]) -> list[Measurement]:
    return [record.measurement for record in records]


def _speed(measurement: Measurement) -> float:
    """Runs a second; 0 of a failure."""
    return 1.0 / measurement.median_s if measurement.median_s is not None else 0.0


def _curve(speeds: Sequence[float], most: float, trials: int) -> Curve:
    """Where a space was exhausted early, the best stays the best."""
    best = np.maximum.accumulate(np.array(speeds)) / most
    return np.concatenate([best, np.full(trials - len(best), best[-1])])


def summary(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Of the curves of one contender by case, one a seed: the typical speed at `MARKS`, and trials until `NEAR`."""
    every = np.array([curve for found in curves.values() for curve in found])
    needed = np.array([_needed(curve, NEAR) for curve in every])
    nearer = np.array([_needed(curve, NEARER) for curve in every])
    typical = np.exp(np.log(np.maximum(every, 1e-3)).mean(axis=0))
    return {
        "speed": {str(mark): round(float(typical[mark - 1]), 4) for mark in MARKS if mark <= len(typical)},
        "median_trials": float(np.median(needed)),
        "p90_trials": float(np.percentile(needed, 90, method="higher")),
        "arrived": round(float(np.mean(needed <= every.shape[1])), 4),
        "mean_trials_nearer": round(float(nearer.mean()), 2),
        "p90_trials_nearer": float(np.percentile(nearer, 90, method="higher")),
        "trials_by_case": {name: median(_needed(curve, NEAR) for curve in found) for name, found in curves.items()},
        "curve": [round(float(speed), 4) for speed in typical],
    }


def _needed(curve: Curve, near: float) -> int:
    """Trials until the speed is that near the best; one more than there were if it never is."""
    return int(np.argmax(curve >= near)) + 1 if curve[-1] >= near else len(curve) + 1

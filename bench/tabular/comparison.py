"""Comparison of strategies and cost models: how soon a search comes near the best point of a case."""

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
from tunewright.tuner.search.strategies.history import SearchProblem
from tunewright.tuner.search.strategies.strategy import StrategyFactory

from .cases import TabularCase
from .pool import ReplayPool

TRIALS = 64
BATCH = 8
"""Trials between two fits of the cost model; the first batch is the default alone, as in a job. Jobs have batches so
large that fits stay cheap."""

NEAR, NEARER = 0.95, 0.98
"""Shares of the best speed: where a search counts as done, and where the rest is below the precision of timing."""

MARKS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Trials that have a speed in the results."""

Curve = NDArray[np.float64]
"""[trials]: the speed of the best so far, in units of the best possible; 0 where none works."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A strategy, and the function that makes its cost model for a case and a seed."""

    strategy: StrategyFactory
    model: Callable[[TabularCase, int], CostModel]


def replay_search(
    case: TabularCase, records: Sequence[Record], contender: Contender, seed: int, trials: int = TRIALS
) -> Curve:
    """Search a case as a job would, by records of all its points."""
    model = contender.model(case, seed)
    strategy = contender.strategy(SearchProblem.of(case.task, case.target, case.spaces, model, seed))
    search_trials: list[tuple[Schedule, Measurement]] = []
    with ReplayPool(case.target, records) as pool:
        while len(search_trials) < trials:
            model.fit([Trials.of(case.task, case.target, space, search_trials) for space in case.spaces])
            schedules = strategy.ask(min(BATCH if search_trials else 1, trials - len(search_trials)))
            if not schedules:
                break
            batch = [Candidate(case.task, case.target, schedule) for schedule in schedules]
            batch_trials = [(candidate.schedule, measurement) for candidate, measurement in pool.measure(batch)]
            strategy.tell(batch_trials)
            search_trials += batch_trials
    fastest = max(_speed(record.measurement) for record in records)
    return _curve([_speed(measurement) for _, measurement in search_trials], fastest, trials)


def _speed(measurement: Measurement) -> float:
    """Runs a second; 0 for a failure."""
    return 1.0 / measurement.median_s if measurement.median_s is not None else 0.0


def _curve(speeds: Sequence[float], most: float, trials: int) -> Curve:
    """The best so far after each trial; constant after an exhausted space."""
    best = np.maximum.accumulate(np.array(speeds)) / most
    return np.concatenate([best, np.full(trials - len(best), best[-1])])


def summary(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Figures of a contender, from its curves by case and seed: typical speeds at `MARKS`, and trials until `NEAR`."""
    every = np.array([curve for case_curves in curves.values() for curve in case_curves])
    trials_near = np.array([_trials_to(curve, NEAR) for curve in every])
    trials_nearer = np.array([_trials_to(curve, NEARER) for curve in every])
    typical = np.exp(np.log(np.maximum(every, 1e-3)).mean(axis=0))
    return {
        "speed": {str(mark): round(float(typical[mark - 1]), 4) for mark in MARKS if mark <= len(typical)},
        "median_trials": float(np.median(trials_near)),
        "p90_trials": float(np.percentile(trials_near, 90, method="higher")),
        "arrived": round(float(np.mean(trials_near <= every.shape[1])), 4),
        "mean_trials_nearer": round(float(trials_nearer.mean()), 2),
        "p90_trials_nearer": float(np.percentile(trials_nearer, 90, method="higher")),
        "trials_by_case": {
            name: median(_trials_to(curve, NEAR) for curve in case_curves) for name, case_curves in curves.items()
        },
        "curve": [round(float(speed), 4) for speed in typical],
    }


def _trials_to(curve: Curve, near: float) -> int:
    """Trials until that share of the best speed; one more than the trials if never."""
    return int(np.argmax(curve >= near)) + 1 if curve[-1] >= near else len(curve) + 1

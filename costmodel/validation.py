"""Validation of cost models on tasks that they have not learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.space import Rows, Space

from .layered_model import LayeredModel
from .metrics import pairwise_accuracy, peak
from .model import Scores, TaskOnTarget, Trials
from .xgb import XGBModel

FEWEST = 8
"""Least trials of a task by which a model is validated."""

LEAST_SCALE = 0.01
"""The scale of a model that ranks no better than chance."""

MEDIAN_OF_NORMAL = 0.6745
"""The median of the absolute values of a normal distribution, in its deviations."""

HELD_OUT = 5
"""One of this many tasks is held out."""


class Scorer(Protocol):
    """The part of a `CostModel` that is validated."""

    def score(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        """See `CostModel`."""
        ...

    def deviation(self, task: Task, target: Target, space: Space, rows: Rows) -> Scores:
        """See `CostModel`."""
        ...


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over tasks of how a model does on their trials, having learned from none of them."""

    tasks: int
    trials: int
    pairwise: float  # share of pairs of schedules in the right order, of those that their intervals tell apart
    pairwise_all: float  # share of all pairs in the right order
    peak_1: float  # speed of the schedule that it ranks first, relative to the best
    peak_5: float  # speed of the best of the five that it ranks first, relative to the best
    time_error: float  # median of how far predicted times are from measured ones, as a factor; 0.1 is 10%
    covered: float  # share of times within two deviations of those predicted, but for one factor a task; 95% is right

    def to_json(self) -> dict[str, float | None]:
        """Plain data; null for what the tasks could not tell."""
        return {name: value if isfinite(value) else None for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class _Predictions:
    """The predictions and times of all trials of one task on one target."""

    scores: NDArray[np.float64]
    deviations: NDArray[np.float64]
    times_s: NDArray[np.float64]
    spans_s: NDArray[np.float64] | None


def is_held_out(task_key: str) -> bool:
    """Whether a task is one that models are validated by. It follows from the key, so it is the same everywhere."""
    return int(task_key[-8:], 16) % HELD_OUT == 0


def split_held_out(trials: Sequence[Trials]) -> tuple[list[Trials], list[Trials]]:
    """Split trials into those to learn from, and those of tasks held out."""
    training = [each for each in trials if not is_held_out(each.task.key)]
    return training, [each for each in trials if is_held_out(each.task.key)]


def validate(model: Scorer, trials: Sequence[Trials]) -> Quality | None:
    """The quality of a model on trials that it has not learned from; None where they are too few."""
    tasks = [each for each in _predict(model, trials) if np.isfinite(each.times_s).sum() >= FEWEST]
    if not tasks:
        return None
    errors = np.concatenate([_errors(each) for each in tasks])
    centred = [(_errors(each) - np.median(_errors(each))) for each in tasks]
    deviations = np.concatenate([each.deviations[np.isfinite(each.times_s)] for each in tasks])
    return Quality(
        tasks=len(tasks),
        trials=sum(len(each.times_s) for each in tasks),
        pairwise=_mean([pairwise_accuracy(each.scores, each.times_s, each.spans_s) for each in tasks]),
        pairwise_all=_mean([pairwise_accuracy(each.scores, each.times_s) for each in tasks]),
        peak_1=_mean([peak(each.scores, each.times_s, 1) for each in tasks]),
        peak_5=_mean([peak(each.scores, each.times_s, 5) for each in tasks]),
        time_error=float(np.exp2(np.median(np.abs(errors))) - 1.0),
        covered=float(np.mean(np.abs(np.concatenate(centred)) <= 2.0 * deviations)),
    )


def calibrate(learned: LayeredModel, trials: Sequence[Trials]) -> LayeredModel:
    """The model with scales fitted to trials that it has not learned from."""
    model = XGBModel(replace(learned, scale=1.0, spread_scale=1.0))
    tasks = _predict(model, trials)
    ranks = _centre([each.scores[np.isfinite(each.times_s)] for each in tasks])
    times = _centre([np.log2(each.times_s[np.isfinite(each.times_s)]) for each in tasks])
    if not len(ranks) or not ranks.any():
        return learned
    scale = max(-float(ranks @ times) / float(ranks @ ranks), LEAST_SCALE)
    deviations = np.concatenate([each.deviations[np.isfinite(each.times_s)] for each in tasks])
    member_deviation = scale * float(np.median(deviations))
    error = float(np.median(np.abs(times + scale * ranks))) / MEDIAN_OF_NORMAL
    return replace(learned, scale=scale, spread_scale=error / member_deviation if member_deviation > 0 else 1.0)


def _centre(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *(part - np.median(part) for part in parts if len(part))])


def _errors(predictions: _Predictions) -> NDArray[np.float64]:
    """Log2 of predicted / measured time of the trials that did not fail."""
    succeeded = np.isfinite(predictions.times_s)
    return np.asarray(-predictions.scores[succeeded] - np.log2(predictions.times_s[succeeded]))


def _predict(model: Scorer, trials: Sequence[Trials]) -> list[_Predictions]:
    """The model's predictions of trials, by task and target."""
    by_task: dict[TaskOnTarget, list[Trials]] = {}
    for each in trials:
        if len(each.times_s):
            by_task.setdefault(each.key, []).append(each)
    predictions = []
    for sets in by_task.values():
        spans = [each.spans_s for each in sets if each.spans_s is not None]
        predictions.append(
            _Predictions(
                np.concatenate([model.score(t.task, t.target, t.space, t.rows) for t in sets]),
                np.concatenate([model.deviation(t.task, t.target, t.space, t.rows) for t in sets]),
                np.concatenate([each.times_s for each in sets]),
                np.concatenate(spans) if len(spans) == len(sets) else None,
            )
        )
    return predictions


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")

"""Judging: how good a model is on tasks that it has not learned from."""

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

from .labels import TaskOnTarget, task_of
from .learned import Learned
from .metrics import pairwise_accuracy, peak
from .model import Scores, Trials
from .xgb import XGBModel

FEWEST = 8
"""Trials of a task that say something about how well a model ranks them."""

LEAST_SCALE = 0.01
"""Of a model that ranks no better than chance."""

MEDIAN_OF_NORMAL = 0.6745
"""The median of the absolute values of a normal distribution, in its deviations."""

HELD_OUT = 5
"""One of so many tasks is held out."""


class Ranks(Protocol):
    """What is judged of a `CostModel`."""

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
    pairwise_all: float  # the same of all pairs, whether or not anybody knows their order
    peak_1: float  # speed of the schedule that it ranks first, relative to the best
    peak_5: float  # the same of the best of the first five
    time_error: float  # median of how far predicted times are from measured ones, as a factor; 0.1 is 10%
    covered: float  # share of times within two deviations of those predicted, but for one factor a task; 95% is right

    def to_json(self) -> dict[str, float | None]:
        """Plain data; null for what the tasks could not tell."""
        return {name: value if isfinite(value) else None for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class _Judged:
    """All trials of one task on one target."""

    scores: NDArray[np.float64]
    deviations: NDArray[np.float64]
    times_s: NDArray[np.float64]
    spans_s: NDArray[np.float64] | None


def is_held_out(task_key: str) -> bool:
    """Whether a task is one of those that models are judged by. It follows from the key, so it is so everywhere."""
    return int(task_key[-8:], 16) % HELD_OUT == 0


def parted(trials: Sequence[Trials]) -> tuple[list[Trials], list[Trials]]:
    """What to learn from, and what to judge by."""
    learned = [each for each in trials if not is_held_out(each.task.key)]
    return learned, [each for each in trials if is_held_out(each.task.key)]


def judge(model: Ranks, trials: Sequence[Trials]) -> Quality | None:
    """How the model does on trials that it has not learned from; None where they are too few to say."""
    judged = [each for each in _judged(model, trials) if np.isfinite(each.times_s).sum() >= FEWEST]
    if not judged:
        return None
    errors = np.concatenate([_errors(each) for each in judged])
    centred = [(_errors(each) - np.median(_errors(each))) for each in judged]
    deviations = np.concatenate([each.deviations[np.isfinite(each.times_s)] for each in judged])
    return Quality(
        tasks=len(judged),
        trials=sum(len(each.times_s) for each in judged),
        pairwise=_mean([pairwise_accuracy(each.scores, each.times_s, each.spans_s) for each in judged]),
        pairwise_all=_mean([pairwise_accuracy(each.scores, each.times_s) for each in judged]),
        peak_1=_mean([peak(each.scores, each.times_s, 1) for each in judged]),
        peak_5=_mean([peak(each.scores, each.times_s, 5) for each in judged]),
        time_error=float(np.exp2(np.median(np.abs(errors))) - 1.0),
        covered=float(np.mean(np.abs(np.concatenate(centred)) <= 2.0 * deviations)),
    )


def calibrated(learned: Learned, trials: Sequence[Trials]) -> Learned:
    """The same model with the scales that fit these trials, which it has not learned from."""
    model = XGBModel(replace(learned, scale=1.0, spread_scale=1.0))
    judged = _judged(model, trials)
    ranks = _centred([each.scores[np.isfinite(each.times_s)] for each in judged])
    times = _centred([np.log2(each.times_s[np.isfinite(each.times_s)]) for each in judged])
    if not len(ranks) or not ranks.any():
        return learned
    scale = max(-float(ranks @ times) / float(ranks @ ranks), LEAST_SCALE)
    told = np.concatenate([each.deviations[np.isfinite(each.times_s)] for each in judged])
    between = scale * float(np.median(told))
    error = float(np.median(np.abs(times + scale * ranks))) / MEDIAN_OF_NORMAL
    return replace(learned, scale=scale, spread_scale=error / between if between > 0 else 1.0)


def _centred(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *(part - np.median(part) for part in parts if len(part))])


def _errors(judged: _Judged) -> NDArray[np.float64]:
    """Log2 of predicted / measured time, of what did not fail."""
    ok = np.isfinite(judged.times_s)
    return np.asarray(-judged.scores[ok] - np.log2(judged.times_s[ok]))


def _judged(model: Ranks, trials: Sequence[Trials]) -> list[_Judged]:
    """The trials put together by task and target, with what the model says of them."""
    by_task: dict[TaskOnTarget, list[Trials]] = {}
    for each in trials:
        if len(each.times_s):
            by_task.setdefault(task_of(each), []).append(each)
    found = []
    for sets in by_task.values():
        known = [each.spans_s for each in sets if each.spans_s is not None]
        found.append(
            _Judged(
                np.concatenate([model.score(t.task, t.target, t.space, t.rows) for t in sets]),
                np.concatenate([model.deviation(t.task, t.target, t.space, t.rows) for t in sets]),
                np.concatenate([each.times_s for each in sets]),
                np.concatenate(known) if len(known) == len(sets) else None,
            )
        )
    return found


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")

"""Calibration: predicted times of a task's schedules beside measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.costmodel.metrics import pairwise_accuracy, peak, rank_correlation
from tunewright.costmodel.validation import FEWEST
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.store import Store
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Task

from ..lookup.experience import experience
from .trial_points import SpaceTrials, trials_by_space


class Pair(NamedTuple):
    """A trial that worked, with its predicted and measured time."""

    schedule_key: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The predictions of one model for the trials of a task, and how well it ranks them.

    A trial that failed has no point, and counts as slower than all others in the figures. These are None where fewer
    trials worked than say something.
    """

    model: str  # "base model", or "snapshot 12" of the database, which stands on that
    points: tuple[Pair, ...]
    rank_correlation: float | None  # Spearman's, of predicted and measured times: 1 is perfect, 0 is chance
    pairwise: float | None  # share of pairs in the right order, of those that their intervals tell apart
    peak_1: float | None  # speed of the schedule that it ranks first, relative to the best
    peak_5: float | None  # the same of the best of the first five
    has_learned_from_these: bool  # whether any of them were there when it learned: then the figures flatter it


def calibrations(store: Store | None, task: Task, target: Target, lines: Sequence[TrialLine]) -> list[Calibration]:
    """The calibrations of the base model, which has not seen these trials, and of the newest snapshot, where present.

    Trials outside of the present spaces are left out. Memory grows with the square of their number: a thousand suffice.
    Raises StoreError.
    """
    parts = trials_by_space(task, target, lines)
    base, newest = experience(None, target.kind), experience(store, target.kind)
    results = []
    if base.learned is not None:
        results.append(_calibration("base model", base.learned, parts, newest_id=0))
    if newest.learned is not None and newest.snapshot is not None:
        name = f"snapshot {newest.snapshot.id}"
        results.append(_calibration(name, newest.learned, parts, newest.snapshot.newest_trial_id))
    return results


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the newest model predicts for trials."""

    model: str  # as `Calibration` names it; empty: there is none
    times_s: Mapping[int, float]  # by the id of the trial; none of those outside of the present spaces


def predictions(store: Store | None, task: Task, target: Target, lines: Sequence[TrialLine]) -> Predictions:
    """The times that the newest model predicts for trials, whether these worked or not. Raises StoreError."""
    known = experience(store, target.kind)
    if known.learned is None:
        return Predictions("", {})
    model = XGBModel(known.learned)
    times_s: dict[int, float] = {}
    for part in trials_by_space(task, target, lines):
        scores = model.score(task, target, part.trials.space, part.trials.rows)
        times_s |= {line.id: float(np.exp2(-score)) for line, score in zip(part.lines, scores, strict=True)}
    return Predictions(f"snapshot {known.snapshot.id}" if known.snapshot else "base model", times_s)


def _calibration(name: str, learned: LayeredModel, parts: Sequence[SpaceTrials], newest_id: int) -> Calibration:
    """The calibration of a model that may have learned from trials up to an id."""
    model = XGBModel(learned)
    lines = [line for part in parts for line in part.lines]
    sets = [part.trials for part in parts]
    scores = np.concatenate([np.empty(0), *(model.score(t.task, t.target, t.space, t.rows) for t in sets)])
    times_s = np.concatenate([np.empty(0), *(t.times_s for t in sets)])
    spans_s = np.concatenate([np.empty((0, 2)), *(t.spans_s for t in sets if t.spans_s is not None)])
    is_timed = np.isfinite(times_s)
    is_enough = is_timed.sum() >= FEWEST
    return Calibration(
        model=name,
        points=tuple(
            Pair(lines[n].schedule.key, float(np.exp2(-scores[n])), float(times_s[n])) for n in np.flatnonzero(is_timed)
        ),
        rank_correlation=_finite_figure(rank_correlation(scores, times_s)) if is_enough else None,
        pairwise=_finite_figure(pairwise_accuracy(scores, times_s, spans_s)) if is_enough else None,
        peak_1=_finite_figure(peak(scores, times_s, 1)) if is_enough else None,
        peak_5=_finite_figure(peak(scores, times_s, 5)) if is_enough else None,
        has_learned_from_these=any(line.id <= newest_id for line in lines),
    )


def _finite_figure(figure: float) -> float | None:
    return figure if isfinite(figure) else None

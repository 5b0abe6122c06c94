"""Calibration: how near what the cost model expects of a task's schedules comes to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.judging import FEWEST
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.metrics import pairwise_accuracy, peak, rank_correlation
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.trials import TrialLine
from tunewright.graph.task import Task

from ..lookup.experience import Taught, experience
from .placed import Placed, placed


class Pair(NamedTuple):
    """A trial that worked."""

    schedule_key: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one model expects of trials of a task, and how well it ranks them.

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


def calibrations(store: Taught | None, task: Task, target: Target, lines: Sequence[TrialLine]) -> list[Calibration]:
    """By the base model, which has not seen these trials, and by the newest snapshot; those of them that there are.

    Trials in no space of today are left out. Takes memory with the square of their number: a thousand are plenty.
    Raises StoreError.
    """
    parts = placed(task, target, lines)
    base, newest = experience(None, target.kind), experience(store, target.kind)
    found = []
    if base.learned is not None:
        found.append(_calibration("base model", base.learned, parts, newest_id=0))
    if newest.learned is not None and newest.snapshot is not None:
        name = f"snapshot {newest.snapshot.id}"
        found.append(_calibration(name, newest.learned, parts, newest.snapshot.newest_trial_id))
    return found


def _calibration(name: str, learned: Learned, parts: Sequence[Placed], newest_id: int) -> Calibration:
    """Of a model that may have learned from trials up to an id."""
    model = XGBModel(learned)
    lines = [line for part in parts for line in part.lines]
    sets = [part.trials for part in parts]
    scores = np.concatenate([np.empty(0), *(model.score(t.task, t.target, t.space, t.rows) for t in sets)])
    times_s = np.concatenate([np.empty(0), *(t.times_s for t in sets)])
    spans_s = np.concatenate([np.empty((0, 2)), *(t.spans_s for t in sets if t.spans_s is not None)])
    worked = np.isfinite(times_s)
    is_enough = worked.sum() >= FEWEST
    return Calibration(
        model=name,
        points=tuple(
            Pair(lines[n].schedule.key, float(np.exp2(-scores[n])), float(times_s[n])) for n in np.flatnonzero(worked)
        ),
        rank_correlation=_known(rank_correlation(scores, times_s)) if is_enough else None,
        pairwise=_known(pairwise_accuracy(scores, times_s, spans_s)) if is_enough else None,
        peak_1=_known(peak(scores, times_s, 1)) if is_enough else None,
        peak_5=_known(peak(scores, times_s, 5)) if is_enough else None,
        has_learned_from_these=any(line.id <= newest_id for line in lines),
    )


def _known(figure: float) -> float | None:
    return figure if isfinite(figure) else None

"""Prediction: what the cost model says of one schedule, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.judging import MEDIAN_OF_NORMAL
from tunewright.costmodel.model import Timed, Trials
from tunewright.costmodel.xgb import Contribution, XGBModel
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

from ..units import in_ms
from .experience import Experience, proven

MOST_OWN = 1000
"""Trials of a task that are learned from: half a second of it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a schedule without running it, by all that was learned, its task's own trials too."""

    time_s: float
    deviation: float  # of log2 of the time: 0.1 is some 7%; no less than the model's on tasks held out
    contributions: tuple[Contribution, ...]  # what moves it most, the largest first

    def to_json(self) -> dict[str, Any]:
        return {
            "expected_ms": in_ms(self.time_s),
            "deviation": self.deviation,
            "contributions": [
                {"feature": one.feature, "value": one.value, "log2_speed": one.log2_speed} for one in self.contributions
            ],
        }


def predicted(store: SqlStore | None, task: Task, target: Target, schedule: Schedule) -> Prediction | None:
    """None where nothing was learned yet, or the schedule is in none of the spaces that are searched.

    Raises StoreError.
    """
    known = proven(store, target.kind)
    own = store.trials.sample(task.key, target.key, MOST_OWN) if store is not None else []
    model = taught(known, task, target, [(line.schedule, line) for line in own])
    place = located(task, target, schedule)
    if model is None or place is None:
        return None
    [score], [deviation] = model.score(task, target, *place), model.deviation(task, target, *place)
    deviation = max(float(deviation), _usual_deviation(known))
    return Prediction(float(np.exp2(-score)), deviation, tuple(model.explain(task, target, *place)[0]))


def taught(known: Experience, task: Task, target: Target, own: Sequence[tuple[Schedule, Timed]]) -> XGBModel | None:
    """A model of what is known and of a task's `own` trials; None where nothing was learned yet."""
    model = XGBModel(known.learned)
    if own:
        model.fit([Trials.of(task, target, space, own) for space in spaces(task, target)])
    return model if model.ready else None


def located(task: Task, target: Target, schedule: Schedule) -> tuple[Space, Rows] | None:
    """A schedule as the one point of its space; None where it is in none of those that are searched."""
    for space in spaces(task, target):
        rows, _ = space.rows([schedule])
        if len(rows):
            return space, rows
    return None


def _usual_deviation(known: Experience) -> float:
    """That of predicted times on tasks held out, zero where nobody knows it.

    The members of a model agree on what it has learned from, whether or not they are right.
    """
    error = (known.quality or {}).get("time_error")
    return 0.0 if error is None else float(np.log2(1.0 + error)) / MEDIAN_OF_NORMAL

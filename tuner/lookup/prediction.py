"""Prediction: what the cost model says of one schedule, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.judging import MEDIAN_OF_NORMAL
from tunewright.costmodel.model import Trials
from tunewright.costmodel.xgb import Contribution, XGBModel
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import spaces

from ..units import in_ms
from .experience import Experience, proven


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
    model = XGBModel(known.learned)
    offered = spaces(task, target)
    if store is not None:
        own = [(record.schedule, record.measurement) for record in store.records(task.key, target.key)]
        model.fit([Trials.of(task, target, space, own) for space in offered])
    if not model.ready:
        return None
    for space in offered:
        try:
            rows = space.row(schedule)[None]
        except Illegal:
            continue
        [score], [deviation] = model.score(task, target, space, rows), model.deviation(task, target, space, rows)
        deviation = max(float(deviation), _usual_deviation(known))
        return Prediction(float(np.exp2(-score)), deviation, tuple(model.explain(task, target, space, rows)[0]))
    return None


def _usual_deviation(known: Experience) -> float:
    """That of predicted times on tasks held out, zero where nobody knows it.

    The members of a model agree on what it has learned from, whether or not they are right.
    """
    error = (known.quality or {}).get("time_error")
    return 0.0 if error is None else float(np.log2(1.0 + error)) / MEDIAN_OF_NORMAL

"""Reasons: the features in which a schedule differs from the default, with their effects in the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.features import names_of
from tunewright.costmodel.model import TrialTimes
from tunewright.costmodel.xgb import XGBModel
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule

from ..lookup.experience import proven_experience
from ..lookup.predictor import locate, train
from .meanings import MEANINGS

MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class SpeedReason:
    """A feature in which a schedule differs from the default, and its effect."""

    feature: str  # of `costmodel.features`
    words: str  # what it is
    value: float  # as the model sees it: many are logarithms to base 2
    default_value: float  # the default's
    log2_speed: float  # what it adds to log2 of the speed, more than the default's does: 1 is twice as fast

    @property
    def value_text(self) -> str:
        """The value as text, with its unit."""
        return MEANINGS[self.feature].format(self.value)

    @property
    def default_text(self) -> str:
        """The default's value as text."""
        return MEANINGS[self.feature].format(self.default_value)


def differences(
    model: XGBModel, task: Task, target: Target, schedule: Schedule, default: Schedule, count: int = MOST_REASONS
) -> list[SpeedReason]:
    """The differences to the default with the largest effects in a model, the largest first.

    They say why the model ranks one above the other, which need not be why it is faster. None where one of the
    schedules is in no present space, or both are one.
    """
    place, default_place = locate(task, target, schedule), locate(task, target, default)
    if place is None or default_place is None:
        return []
    [values], [parts] = model.contributions(task, target, *place)
    [default_values], [default_parts] = model.contributions(task, target, *default_place)
    gains = np.where(values != default_values, parts - default_parts, 0.0)
    order = [n for n in np.argsort(-np.abs(gains), kind="stable")[:count] if gains[n]]
    names = names_of(target.kind)
    return [
        SpeedReason(names[n], MEANINGS[names[n]].words, float(values[n]), float(default_values[n]), float(gains[n]))
        for n in order
    ]


def reasons(
    store: Store | None,
    task: Task,
    target: Target,
    schedule: Schedule,
    default: Schedule,
    own: Sequence[tuple[Schedule, TrialTimes]] = (),
    count: int = MOST_REASONS,
) -> list[SpeedReason]:
    """The `differences` by the proven model, trained on `own` trials of the task; none without a model.

    Learning takes a tenth of a second for a hundred trials. Raises StoreError.
    """
    model = train(proven_experience(store, target.kind), task, target, own)
    return [] if model is None else differences(model, task, target, schedule, default, count)

"""Reasons: what tells a schedule from the default, by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.features import NAMES
from tunewright.costmodel.model import Timed
from tunewright.costmodel.xgb import XGBModel
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule

from ..lookup.experience import Taught, proven
from ..lookup.prediction import located, taught
from .meanings import MEANINGS

MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class Reason:
    """A feature in which a schedule differs from the default, and what that is worth."""

    feature: str  # of `costmodel.features`
    words: str  # what it is
    value: float  # as the model sees it: many are logarithms to base 2
    default_value: float  # the default's
    log2_speed: float  # what it adds to log2 of the speed, more than the default's does: 1 is twice as fast

    @property
    def shown(self) -> str:
        """The value for people, with its unit."""
        return MEANINGS[self.feature].shown(self.value)

    @property
    def default_shown(self) -> str:
        """The default's."""
        return MEANINGS[self.feature].shown(self.default_value)


def differences(
    model: XGBModel, task: Task, target: Target, schedule: Schedule, default: Schedule, count: int = MOST_REASONS
) -> list[Reason]:
    """The differences to the default that a model says most of, the largest first.

    They say why it ranks one above the other, which need not be why it is faster. All of them, with what the features
    add that are alike in both, come to how far the scores are apart; these are not told. None where one of the
    schedules is in no space of today, or both are one.
    """
    place, default_place = located(task, target, schedule), located(task, target, default)
    if place is None or default_place is None:
        return []
    [values], [parts] = model.contributions(task, target, *place)
    [default_values], [default_parts] = model.contributions(task, target, *default_place)
    gains = np.where(values != default_values, parts - default_parts, 0.0)
    order = [n for n in np.argsort(-np.abs(gains), kind="stable")[:count] if gains[n]]
    return [
        Reason(NAMES[n], MEANINGS[NAMES[n]].words, float(values[n]), float(default_values[n]), float(gains[n]))
        for n in order
    ]


def reasons(
    store: Taught | None,
    task: Task,
    target: Target,
    schedule: Schedule,
    default: Schedule,
    own: Sequence[tuple[Schedule, Timed]] = (),
    count: int = MOST_REASONS,
) -> list[Reason]:
    """The same by a model of what is known and of `own` trials of the task; none where nothing was learned yet.

    Learning takes a tenth of a second for a hundred trials. Raises StoreError.
    """
    model = taught(proven(store, target.kind), task, target, own)
    return [] if model is None else differences(model, task, target, schedule, default, count)

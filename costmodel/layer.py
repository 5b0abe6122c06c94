"""A layer fitted to many trials above another model; kept as a snapshot, unlike the top layer of `XGBModel`."""

from __future__ import annotations

from collections.abc import Sequence

from .forest import Growth
from .labels import TrainingData
from .layered_model import LayeredModel
from .model import Trials

ALONE = Growth(rounds=100, max_depth=5, eta=0.1, colsample_bytree=0.3)
"""The growth of a model with nothing below it."""

ABOVE = Growth(rounds=60, max_depth=4, eta=0.06, colsample_bytree=0.3, min_child_weight=10.0)
"""The growth of a layer above a model. The trials of a few tasks say little of others, so it is slow.

A model that learned from half of the base model's tasks orders 87.4% of the pairs of 349 tasks rightly; a layer of 60
further tasks makes that 87.0%, one of 250 tasks 87.6%. With the growth ALONE it is 86.0% and 87.5%.
"""

MEMBERS = 3
"""The members of a model with nothing below it; a layer has as many as the model below."""

FEWEST = 50
"""Least comparable trials to learn from."""


def fit_layer(trials: Sequence[Trials], below: LayeredModel | None) -> LayeredModel | None:
    """Fit a model to trials, or a layer above the model `below`; None where the trials are too few or all alike."""
    data = TrainingData.of(trials)
    if len(data.speeds) < FEWEST or not data.is_informative:
        return None
    before = below.members(data.values) if below else None
    growth, members = (ALONE, MEMBERS) if before is None else (ABOVE, len(before))
    return LayeredModel((data.forest(growth, members=members, seed=0, before=before),), None)

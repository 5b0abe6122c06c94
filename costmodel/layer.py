"""A layer: what many trials teach, above what was learned before; kept as a snapshot, where `XGBModel`'s own is not."""

from __future__ import annotations

from collections.abc import Sequence

from . import labels
from .forest import Forest, Growth
from .learned import Learned
from .model import Trials

GROWTH = Growth(rounds=100, max_depth=5, eta=0.1, colsample_bytree=0.3)

MEMBERS = 3
"""Of a model with nothing below it; else each member goes on from one of those."""

FEWEST = 50
"""Comparable trials to learn from."""


def layer_of(trials: Sequence[Trials], below: Learned | None) -> Learned | None:
    """A model of these trials, or what it adds to one `below`; None where they are too few or all alike."""
    sets = labels.comparable(trials)
    speeds = labels.speeds(sets)
    if len(speeds) < FEWEST or speeds.min() == speeds.max():
        return None
    values = labels.features_of(sets)
    before = below.members(values) if below else None
    members = MEMBERS if before is None else len(before)
    return Learned(
        (Forest.fit(values, speeds, labels.groups(sets), GROWTH, members=members, seed=0, before=before),), None
    )

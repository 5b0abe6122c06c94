"""A layer: what many trials teach, above what was learned before; kept as a snapshot, where `XGBModel`'s own is not."""

from __future__ import annotations

from collections.abc import Sequence

from .forest import Growth
from .labels import Lesson
from .learned import Learned
from .model import Trials

GROWTH = Growth(rounds=100, max_depth=5, eta=0.1, colsample_bytree=0.3)

MEMBERS = 3
"""Of a model with nothing below it; else each member goes on from one of those."""

FEWEST = 50
"""Comparable trials to learn from."""


def layer_of(trials: Sequence[Trials], below: Learned | None) -> Learned | None:
    """A model of these trials, or what it adds to one `below`; None where they are too few or all alike."""
    lesson = Lesson.of(trials)
    if len(lesson.speeds) < FEWEST or not lesson.teaches:
        return None
    before = below.members(lesson.values) if below else None
    members = MEMBERS if before is None else len(before)
    return Learned((lesson.forest(GROWTH, members=members, seed=0, before=before),), None)

"""A layer: what many trials teach, above what was learned before; kept as a snapshot, where `XGBModel`'s own is not."""

from __future__ import annotations

from collections.abc import Sequence

from .forest import Growth
from .labels import Lesson
from .learned import Learned
from .model import Trials

ALONE = Growth(rounds=100, max_depth=5, eta=0.1, colsample_bytree=0.3)
"""Of a model with nothing below it."""

ABOVE = Growth(rounds=60, max_depth=4, eta=0.06, colsample_bytree=0.3, min_child_weight=10.0)
"""Of what is added to another. The trials of a few tasks say little of others, so it goes gently: above a model that
orders 87.4% of the pairs of 349 tasks rightly, having learned from half of those of the base model, 60 further tasks
make it 87.0%, and 250 make it 87.6%. With the growth of one that is alone it is 86.0% and 87.5%."""

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
    growth, members = (ALONE, MEMBERS) if before is None else (ABOVE, len(before))
    return Learned((lesson.forest(growth, members=members, seed=0, before=before),), None)

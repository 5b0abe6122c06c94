"""Limits: how large a group may grow.

Whatever follows on fusion walks the bodies of a task, some of it by calls within calls, and looks at its stages
together. So how deep and how many they are may not depend on how deep and how wide a model is.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunewright.codegen.expr import Expr
from tunewright.codegen.size import depths, size

from .task import Stage

MAX_STAGES = 64
"""Stages of a group."""

MAX_BODY = 400
"""Nodes of a body, written out as a tree."""

MAX_LEVELS = 64
"""Levels of a body, as `codegen.size` counts them."""


def fit(stages: Sequence[Stage]) -> bool:
    """Whether these may be the stages of one group."""
    sizes = [size(stage.body) for stage in stages]
    return len(stages) <= MAX_STAGES and all(s.nodes <= MAX_BODY and s.levels <= MAX_LEVELS for s in sizes)


def outgrows(body: Expr, tensor: str, element: Expr) -> bool:
    """Whether a body is sure to be too deep once `element` stands where it loads `tensor`.

    Told from what is computed alone: indices may become simpler. A chain of nodes meets a group that has no more room
    again and again, and this takes a small part of the time that putting both together would.
    """
    above = depths(body).get(tensor, 0)
    return above - 1 + max(depths(element).values(), default=0) > MAX_LEVELS

"""How large expressions are, and how deep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .expr import TRANSCENDENTAL, TRANSCENDENTAL_OPS, Expr, Load, Op
from .nodes import fact


class Size(NamedTuple):
    """How large an expression is."""

    nodes: int  # when shared parts are written out
    levels: int  # of which a transcendental function is as many as it stands for operations


@fact
def size(node: Expr) -> Size:
    """How large an expression is."""
    parts = [size(part) for part in node.children]
    levels = _own_levels(node) + max([part.levels for part in parts], default=0)
    return Size(1 + sum([part.nodes for part in parts]), levels)


@fact
def depths(node: Expr) -> Mapping[str, int]:
    """At which level the deepest load of each tensor is, but for those in indices. Levels as in `Size`."""
    if isinstance(node, Load):
        return {node.tensor: 1}
    own, found = _own_levels(node), dict[str, int]()
    for part in node.children:
        for tensor, level in depths(part).items():
            found[tensor] = max(found.get(tensor, 0), own + level)
    return found


def _own_levels(node: Expr) -> int:
    return TRANSCENDENTAL_OPS if isinstance(node, Op) and node.name in TRANSCENDENTAL else 1

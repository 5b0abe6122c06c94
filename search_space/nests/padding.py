"""Padding: what a pointwise piece makes for another to read, with the border around it taken out.

A window that ends at the edges of what is inside reads the elements as they are: then the padding needs neither memory
nor a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunewright.codegen.expr import Const, Expr, Load, Op, Var, substitute, transform
from tunewright.codegen.index import Domain, Ranges, linear, simplify
from tunewright.codegen.meaning import Number
from tunewright.graph.task import Task

from .pieces import Piece


@dataclass(frozen=True, slots=True)
class Padded:
    """What a pointwise piece makes: `element` where a place is inside along all axes, a border elsewhere."""

    piece: Piece
    axes: tuple[str, ...]  # of the piece, that of each dimension of what it makes
    inside: tuple[range, ...]  # along each of those
    element: Expr  # over the axes

    def at(self, index: Sequence[Expr]) -> Expr:
        """The element at a place."""
        return substitute(self.element, dict(zip(self.axes, index, strict=True)))


def padded(piece: Piece, border: Number | None) -> Padded | None:
    """What a piece makes, without the `border` around it and the clamps that this needs; just as it is if that is None.

    None for a piece that folds or writes a part of a tensor, and where the places inside are no range along each axis.
    """
    axes = tuple(e.name for e in piece.index if isinstance(e, Var))
    if piece.stage.reduce or len(axes) != len(piece.index):
        return None
    element = piece.finished(piece.stage.body)
    domain = Domain({a.name: (0, a.extent - 1) for a in piece.stage.axes})
    if border is not None:
        element, conditions = _parted(element, border)
        for condition in conditions:
            domain = domain.given(condition)
        if domain.empty or domain.limits or not all(map(domain.decide, conditions)):
            return None
        element = _unclamped(element, domain.ranges)
    ends = [domain.ranges[axis] for axis in axes]
    return Padded(piece, axes, tuple(range(low, high + 1) for low, high in ends), element)


def source(task: Task, parts: Sequence[Piece], read: Load, border: Number | None) -> Padded | None:
    """What a piece makes for this load alone; None if there is no such piece, or no way to see it so."""
    makers = [p for p in parts if p.output == read.tensor]
    readers = [x for p in parts for x in p.reads if x.tensor == read.tensor]
    if len(makers) != 1 or len(readers) != 1 or any(t.name == read.tensor for t in task.outputs):
        return None
    return padded(makers[0], border)


def _parted(value: Expr, border: Number) -> tuple[Expr, list[Expr]]:
    """A value, and all conditions that must hold for it not to be the border."""
    conditions: list[Expr] = []
    while True:
        match value:
            case Op("select", (condition, inner, Const(outside))) if outside == border:
                conditions.append(condition)
                value = inner
            case _:
                return value, conditions


def _unclamped(element: Expr, inside: Ranges) -> Expr:
    """The element with indices that are linear where they come to that inside."""

    def plain(at: Expr) -> Expr:
        line = linear(simplify(at, inside))
        return at if line is None else line.expr()

    def visit(node: Expr) -> Expr:
        return replace(node, index=tuple(map(plain, node.index))) if isinstance(node, Load) else node

    return transform(element, visit)

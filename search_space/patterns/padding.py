"""Padding: a pointwise fused stage without the border that it puts around its elements.

A window that ends at the edges of what is inside reads the elements as they are: then the padding needs neither memory
nor a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunewright.codegen.expr.expr import Const, Expr, Load, Op, Var, substitute, transform
from tunewright.codegen.expr.index import Domain, Ranges, linear, simplify
from tunewright.codegen.expr.semantics import Number
from tunewright.graph.task import Task

from ..axes import IndexRange
from .fused_stage import FusedStage


@dataclass(frozen=True, slots=True)
class Interior:
    """A pointwise fused stage that makes `element` inside of ranges along all axes, and a border elsewhere."""

    fused_stage: FusedStage
    axes: tuple[str, ...]  # of the fused stage, that of each dimension of what it makes
    inside: tuple[IndexRange, ...]  # along each of those
    element: Expr  # over the axes

    def at(self, index: Sequence[Expr]) -> Expr:
        """The element at an index."""
        return substitute(self.element, dict(zip(self.axes, index, strict=True)))


def match_padding(fused_stage: FusedStage, border: Number | None) -> Interior | None:
    """Match a fused stage without its `border`, and without the clamps for that; unchanged if `border` is None.

    None for one that folds or writes a part of a tensor, and where the indices inside are no range along each axis.
    """
    axes = tuple(e.name for e in fused_stage.index if isinstance(e, Var))
    if fused_stage.stage.reduce or len(axes) != len(fused_stage.index):
        return None
    element = fused_stage.apply_epilogue(fused_stage.stage.body)
    domain = Domain({a.name: (0, a.extent - 1) for a in fused_stage.stage.axes})
    if border is not None:
        element, conditions = _strip_border(element, border)
        for condition in conditions:
            domain = domain.assume(condition)
        if domain.is_empty or domain.limits or not all(map(domain.decide, conditions)):
            return None
        element = _strip_clamps(element, domain.ranges)
    ends = [domain.ranges[axis] for axis in axes]
    return Interior(fused_stage, axes, tuple(IndexRange(low, high + 1) for low, high in ends), element)


def find_source(task: Task, fused_stages: Sequence[FusedStage], read: Load, border: Number | None) -> Interior | None:
    """The interior of the fused stage that only this load reads; None if there is none."""
    makers = [p for p in fused_stages if p.output == read.tensor]
    readers = [x for p in fused_stages for x in p.reads if x.tensor == read.tensor]
    if len(makers) != 1 or len(readers) != 1 or any(t.name == read.tensor for t in task.outputs):
        return None
    return match_padding(makers[0], border)


def _strip_border(value: Expr, border: Number) -> tuple[Expr, list[Expr]]:
    """A value without the border, and the conditions under which it is not the border."""
    conditions: list[Expr] = []
    while True:
        match value:
            case Op("select", (condition, inner, Const(outside))) if outside == border:
                conditions.append(condition)
                value = inner
            case _:
                return value, conditions


def _strip_clamps(element: Expr, inside: Ranges) -> Expr:
    """The element with indices that are linear inside of the ranges."""

    def plain(at: Expr) -> Expr:
        line = linear(simplify(at, inside))
        return at if line is None else line.expr()

    def visit(node: Expr) -> Expr:
        return replace(node, index=tuple(map(plain, node.index))) if isinstance(node, Load) else node

    return transform(element, visit)

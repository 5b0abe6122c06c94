"""The steps of a walk down a perfect tree, whose levels lie one behind the other: as `graph.ops.trees` defines it."""

from __future__ import annotations

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from .task import Index, Tensor, load


def next_place(x: Tensor, features: Tensor, thresholds: Tensor, level: int, place: Expr, at: Index) -> Expr:
    """The place in the next level (int64) of the child that a row goes to. `at`: its row, group and tree.

    NaN goes to the second child, as whatever is not known to be at most the threshold.
    """
    row, *tree = at
    number = place + (2**level - 1)
    feature = op("cast", load(features, [*tree, number]), dtype=DType.I64)
    if features.dtype is DType.I32:
        feature = op("max", feature, 0)
    value = load(x, [row, op("min", feature, x.shape[-1] - 1)])
    return place * 2 + op("select", op("le", value, load(thresholds, [*tree, number])), const(0), const(1))


def read_place(places: Tensor | None, level: int, at: Index) -> Expr:
    """The place in a level that was stored; there is one in the first."""
    if places is None:
        return const(0)
    return within(op("cast", load(places, at), dtype=DType.I64), level)


def within(place: Expr, level: int) -> Expr:
    """A place of a level that is said to be inside of it: it costs no instruction where that follows."""
    return op("bitand", place, 2**level - 1)

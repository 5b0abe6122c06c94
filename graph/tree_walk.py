"""The steps of a walk down a tree: as `graph.ops.trees` defines it."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from .task import Index, Tensor, load


@dataclass(frozen=True, slots=True)
class TreeWalk:
    """The tensors that a walk reads.

    The places of a perfect tree, level by level, tell those of their children. Where trees are none, `children` has
    the place of the first of two that are side by side, and a leaf has its own place.
    """

    x: Tensor
    features: Tensor
    thresholds: Tensor
    children: Tensor | None = None

    @property
    def tree_rank(self) -> int:
        """The dimensions that tell trees apart: groups, where there are several, and the trees of each."""
        return len(self.features.shape) - 1

    def bits(self, level: int) -> int:
        """The bits of a place in a level."""
        return level if self.children is None else self.features.shape[-1].bit_length() - 1

    def next_place(self, level: int, place: Expr, at: Index) -> Expr:
        """The place (int64) of the child that a row goes to. `at`: its row, group and tree.

        NaN goes to the second child, as whatever is not known to be at most the threshold.
        """
        row, *tree = at
        number = place + (2**level - 1) if self.children is None else place
        feature = op("cast", load(self.features, [*tree, number]), dtype=DType.I64)
        if self.features.dtype is DType.I32:
            feature = op("max", feature, 0)
        value = load(self.x, [row, op("min", feature, self.x.shape[-1] - 1)])
        side = op("select", op("le", value, load(self.thresholds, [*tree, number])), const(0), const(1))
        if self.children is None:
            return place * 2 + side
        return op("cast", load(self.children, [*tree, number]), dtype=DType.I64) + side

    def read_place(self, places: Tensor | None, level: int, at: Index) -> Expr:
        """The place in a level that was stored; there is one in the first."""
        if places is None:
            return const(0)
        return self.within(op("cast", load(places, at), dtype=DType.I64), level)

    def within(self, place: Expr, level: int) -> Expr:
        """A place of a level that is said to be inside of it: it costs no instruction where that follows."""
        return op("bitand", place, 2 ** self.bits(level) - 1)

"""Operands of a product, and operand tiles: what one round of a block reads of one, shared out among its threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from tunewright.codegen.expr import Expr, Load, Var, op
from tunewright.codegen.ir import Block, For, If, LoopKind, Stmt
from tunewright.graph.task import Axis

from ..nests.digits import places
from ..nests.phases import contiguous
from ..products.product import Product
from .elements import spread
from .sides import Count, Sides, size, within

ADDRESS_REGISTERS = 2
"""Of each access of a thread, which all lie ahead of a round."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What a product reads along axes of its own and along the reduction."""

    load: Load
    along: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def is_deep(self) -> bool:
        """Whether neighbours in memory lie along the reduction."""
        return contiguous(self.load.index, self.depth[-1].name)

    @property
    def last(self) -> Axis:
        """The axis that may be contiguous."""
        return (self.depth if self.is_deep else self.along)[-1]

    def wide(self, widths: Sequence[int]) -> int:
        """The first of these numbers of neighbours that can be read at once everywhere, else 1."""
        if not contiguous(self.load.index, self.last.name):
            return 1
        return next((wide for wide in widths if self.last.extent % wide == 0), 1)


def operands(found: Product) -> tuple[Operand, Operand]:
    """The left one, with the rows, and the right one, with the columns."""
    sides = Sides.of(found)
    return Operand(found.other, sides.rows, sides.depth), Operand(found.panel, sides.columns, sides.depth)


def accesses(extent: Count, block_depth: Count, wide: int, threads: Count) -> Count:
    """Of a thread, to bring `extent` places along an operand by `block_depth`, so many neighbours at once."""
    return -(-extent * block_depth // (wide * threads))


@dataclass(frozen=True, slots=True)
class OperandTile:
    """`extent` places along the operand's own axes by `block_depth` along the reduction.

    Both are multiples of the neighbours that are moved at once.
    """

    operand: Operand
    begin: Expr  # the first place along the operand's own axes
    extent: int
    block_depth: int
    batch: Mapping[str, Expr]  # the place along all other axes
    threads: int

    def each(self, wide: int, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """For each access of a thread: its number there, its place within the tile along the operand and in depth."""
        number = Var("n") * self.threads + Var("thread")
        total = self.extent * self.block_depth // wide
        stmt = body(Var("n"), *self._numbered(number, wide))
        if total % self.threads:
            stmt = If(op("lt", number, total), stmt)
        return For("n", accesses(self.extent, self.block_depth, wide, self.threads), stmt, LoopKind.UNROLL)

    def _numbered(self, number: Expr, wide: int) -> tuple[Expr, Expr]:
        if self.operand.is_deep:
            across = self.block_depth // wide
            return number // across, number % across * wide
        across = self.extent // wide
        return number % across * wide, number // across

    def element(self, step: Expr, place: Expr, deep: Expr, wide: int) -> Expr:
        """What lies at a place of the tile of a round, and `wide` neighbours from there on."""
        at = dict(self.batch)
        for axes, number in self._ways(step, place, deep):
            each = wide if axes[-1] == self.operand.last else 1
            at |= places(axes, number // each, each)
        return spread(self.operand.load, at, self.operand.last.name, wide)

    def inside(self, step: Expr, place: Expr, deep: Expr, stmt: Stmt) -> Stmt:
        """The statement where such a place is not beyond the edges."""
        extents = self.extent, self.block_depth
        for (axes, number), extent in zip(self._ways(step, place, deep), extents, strict=True):
            stmt = within(number, size(axes), extent, stmt)
        return stmt

    def outside(self, step: Expr, place: Expr, deep: Expr, stmt: Stmt) -> Stmt:
        """The statement where such a place is beyond an edge that there can be."""
        extents = self.extent, self.block_depth
        conditions = [
            op("lt", number, size(axes))
            for (axes, number), extent in zip(self._ways(step, place, deep), extents, strict=True)
            if size(axes) % extent
        ]
        return If(op("not", reduce(partial(op, "and"), conditions)), stmt) if conditions else Block(())

    def _ways(self, step: Expr, place: Expr, deep: Expr) -> tuple[tuple[tuple[Axis, ...], Expr], ...]:
        operand = self.operand
        return (operand.along, self.begin + place), (operand.depth, step * self.block_depth + deep)

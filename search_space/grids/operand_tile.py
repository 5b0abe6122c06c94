"""Operand tile: what one round of a block reads of an operand of a product, shared out among its threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from tunewright.codegen.expr import Expr, Load, Var, op
from tunewright.codegen.ir import Block, For, If, LoopKind, Stmt
from tunewright.graph.task import Axis

from ..nests.digits import places
from ..nests.phases import contiguous
from .elements import spread
from .sides import size, within


@dataclass(frozen=True, slots=True)
class OperandTile:
    """`extent` places along the operand's own axes by `block_depth` along the reduction."""

    operand: Load
    along: tuple[Axis, ...]
    begin: Expr  # the first place along these axes
    extent: int
    depth: tuple[Axis, ...]
    block_depth: int
    batch: Mapping[str, Expr]  # the place along all other axes
    threads: int

    @property
    def is_deep(self) -> bool:
        """Whether neighbours in memory lie along the reduction."""
        return contiguous(self.operand.index, self.depth[-1].name)

    @property
    def last(self) -> Axis:
        """The axis that may be contiguous."""
        return (self.depth if self.is_deep else self.along)[-1]

    def wide(self, widths: Sequence[int]) -> int:
        """The first of these numbers of neighbours that can be read at once everywhere, else 1."""
        extent = self.block_depth if self.is_deep else self.extent
        if not contiguous(self.operand.index, self.last.name):
            return 1
        return next((wide for wide in widths if self.last.extent % wide == 0 and extent % wide == 0), 1)

    def rounds(self, wide: int) -> int:
        """Accesses of a thread."""
        return -(-self.extent * self.block_depth // (wide * self.threads))

    def each(self, wide: int, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """For each access of a thread: its number there, its place within the tile along the operand and in depth."""
        number = Var("n") * self.threads + Var("thread")
        total = self.extent * self.block_depth // wide
        stmt = body(Var("n"), *self._numbered(number, wide))
        if total % self.threads:
            stmt = If(op("lt", number, total), stmt)
        return For("n", self.rounds(wide), stmt, LoopKind.UNROLL)

    def _numbered(self, number: Expr, wide: int) -> tuple[Expr, Expr]:
        if self.is_deep:
            across = self.block_depth // wide
            return number // across, number % across * wide
        across = self.extent // wide
        return number % across * wide, number // across

    def element(self, step: Expr, place: Expr, deep: Expr, wide: int) -> Expr:
        """What lies at a place of the tile of a round, and `wide` neighbours from there on."""
        at = dict(self.batch)
        for axes, number in self._ways(step, place, deep):
            each = wide if axes[-1].name == self.last.name else 1
            at |= places(axes, number // each, each)
        return spread(self.operand, at, self.last.name, wide)

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
        return (self.along, self.begin + place), (self.depth, step * self.block_depth + deep)

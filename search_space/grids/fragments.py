"""Fragments: the sums of a product in the registers of warps, 16 x 8 each, as tensor cores have them."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.ir import Buffer, Scope, Stmt, Store
from tunewright.codegen.lanes import lined

from .block_tile import BlockTile
from .shared_tile import COLUMNS, ROWS, THREAD, unrolled
from .sides import Sides
from .tiles import Place

SUMS = "sums"

EACH = ROWS * COLUMNS // WARP
"""Sums of a thread in one."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """What a warp has: fragments one below the other, and side by side."""

    block: BlockTile
    down: int
    across: int
    apart: int  # rows from one to the next below

    @property
    def _dtype(self) -> DType:
        return self.block.found.dtype

    @property
    def buffer(self) -> Buffer:
        """Of each thread."""
        return Buffer(SUMS, (self.down, self.across * EACH), self._dtype, Scope.REGISTER)

    def sums(self, down: Expr, across: Expr, count: int = 1) -> Load:
        """A thread's sums of so many fragments side by side."""
        return Load(SUMS, (down, lined(across * EACH, EACH * count)), self._dtype)

    def cleared(self) -> Stmt:
        """Nothing summed so far."""
        none = Store(SUMS, (Var("r"), Var("e")), const(0, self._dtype))
        return unrolled(none, r=self.down, e=self.across * EACH)

    def written(self, place: Place, row: Expr, column: Expr) -> Stmt:
        """What all comes to, of a warp whose first row and column within its block are these.

        A thread's sums in one fragment are two neighbours in one row, and two 8 rows below.
        """
        tiles, lane = self.block.tiles, Var(THREAD) % WARP
        wide = 2 if Sides.of(tiles.found).columns[-1].extent % 2 == 0 else 1
        half, pair = Var("h"), Var("e") * wide
        at_row = row + Var("r") * self.apart + lane // 4 + half * 8
        at_column = column + Var("c") * COLUMNS + lane % 4 * 2 + pair
        total = Load(SUMS, (Var("r"), lined(Var("c") * EACH + half * 2 + pair, wide)), self._dtype)
        across = unrolled(tiles.stored(place, at_row, at_column, wide, total), c=self.across, e=2 // wide)
        return unrolled(tiles.within_rows(place, at_row, across), r=self.down, h=2)

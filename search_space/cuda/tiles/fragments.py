"""Fragments: the sums of a product in the registers of warps, 16 x 8 each, as tensor cores have them.

Of these a thread has two neighbours of a row: four threads write 16 bytes together. Staged in shared memory first, each
thread writes 16 bytes itself, and those of a row lie after each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, Scope, Stmt, Store

from .shared_tile import COLUMNS, ROWS, THREAD, unroll
from .sides import Sides
from .tiles import TilePlace, Tiles

SUMS = "sums"

EACH = ROWS * COLUMNS // WARP
"""Sums of a thread in a fragment."""


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments of a warp: `down` below each other by `across` side by side."""

    tiles: Tiles
    down: int
    across: int
    pitch: int  # rows from one to the next below

    @property
    def _dtype(self) -> DType:
        return self.tiles.product.dtype

    @property
    def buffer(self) -> Buffer:
        """The registers of a thread."""
        return Buffer(SUMS, (self.down, self.across * EACH), self._dtype, Scope.REGISTER)

    def sums(self, down: Expr, across: Expr, count: int = 1) -> Load:
        """A thread's sums of so many fragments side by side."""
        return Load(SUMS, (down, ramp(across * EACH, EACH * count)), self._dtype)

    def clear(self) -> Stmt:
        """Set all sums to 0."""
        none = Store(SUMS, (Var("r"), Var("e")), const(0, self._dtype))
        return unroll(none, r=self.down, e=self.across * EACH)

    def write(self, place: TilePlace, row: Expr, column: Expr) -> Stmt:
        """Write the results of a warp, whose first row and column within its block are given.

        A thread's sums in one fragment are two neighbours in one row, and two 8 rows below.
        """
        tiles, lane = self.tiles, Var(THREAD) % WARP
        wide = 2 if Sides.of(tiles.product).columns[-1].extent % 2 == 0 else 1
        half, pair = Var("h"), Var("e") * wide
        at_row = row + Var("r") * self.pitch + lane // 4 + half * 8
        at_column = column + Var("c") * COLUMNS + lane % 4 * 2 + pair
        total = Load(SUMS, (Var("r"), ramp(Var("c") * EACH + half * 2 + pair, wide)), self._dtype)
        across = unroll(tiles.store(place, at_row, at_column, wide, total), c=self.across, e=2 // wide)
        return unroll(tiles.within_rows(place, at_row, across), r=self.down, h=2)


STAGED = "staged"

ACROSS = 64
"""Columns of a warp that are staged at once."""

PAD = 4
"""Elements between rows, so that neighbours below each other are in other banks."""

WARP_BYTES = 4 * ROWS * (ACROSS + PAD)
"""Shared memory of a warp. Sums have 4 bytes."""

WIDEST = 8
"""Neighbours that a thread writes at once, at most."""


@dataclass(frozen=True, slots=True)
class SumStaging:
    """The staging of fragments by some warps."""

    fragments: Fragments
    warps: int

    @property
    def buffer(self) -> Buffer:
        """The rows of each warp in shared memory."""
        return Buffer(STAGED, (self.warps, ROWS, ACROSS + PAD), self.fragments.tiles.product.dtype, Scope.SHARED)

    def write(self, place: TilePlace, row: Expr, column: Expr) -> Stmt:
        """Write the results of a warp, as `Fragments.write` does."""
        meet = Do("warp.sync", (), ())
        chunks = self.fragments.across * COLUMNS // ACROSS
        body = Block((meet, self._put(), meet, self._take(place, row, column)))
        return unroll(body, r=self.fragments.down, q=chunks)

    def _at(self, row: Expr, column: Expr, wide: int) -> Load:
        warp = Var(THREAD) // WARP
        return Load(STAGED, (warp, row, ramp(column, wide)), self.fragments.tiles.product.dtype)

    def _put(self) -> Stmt:
        """Store the fragments of chunk `q` to shared memory: two neighbours in a row, and two 8 rows below."""
        lane, half = Var(THREAD) % WARP, Var("h")
        fragment = Var("q") * (ACROSS // COLUMNS) + Var("c")
        to = self._at(lane // 4 + half * 8, Var("c") * COLUMNS + lane % 4 * 2, 2)
        pair = ramp(fragment * EACH + half * 2, 2)
        value = Load(self.fragments.buffer.name, (Var("r"), pair), to.dtype)
        return unroll(Store(to.tensor, to.index, value), c=ACROSS // COLUMNS, h=2)

    def _take(self, place: TilePlace, row: Expr, column: Expr) -> Stmt:
        """Write the rows of the chunk, each by threads side by side."""
        tiles, lane = self.fragments.tiles, Var(THREAD) % WARP
        last = Sides.of(tiles.product).columns[-1].extent
        wide = next(n for n in (WIDEST, 4, 2, 1) if last % n == 0)
        accesses = ACROSS // wide
        number = Var("i") * WARP + lane
        down, across = number // accesses, number % accesses * wide
        at_row = row + Var("r") * self.fragments.pitch + down
        total = self._at(down, across, wide)
        stmt = tiles.store(place, at_row, column + Var("q") * ACROSS + across, wide, total)
        return unroll(tiles.within_rows(place, at_row, stmt), i=ROWS * accesses // WARP)

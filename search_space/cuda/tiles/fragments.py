"""Fragments: the sums of a product in the registers of warps, 16 x 8 each, as tensor cores have them.

Of these a thread has two neighbours of a row: four threads write 16 bytes together. Staged in shared memory first, each
thread writes 16 bytes itself, and those of a row lie after each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, If, Scope, Stmt, Store

from ...patterns.product import Product
from .shared_tile import COLUMNS, ROWS, THREAD, unroll
from .sides import Sides, row_loads
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


STAGED, BESIDE = "staged", "beside"

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

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """The registers of a thread for what the epilogue reads: of this chunk and of the next one."""
        place = self.fragments.tiles.place_of(const(0))
        return tuple(
            Buffer(f"{BESIDE}_{n}", (2, self._accesses, load.lanes), load.dtype, Scope.REGISTER)
            for n, load in enumerate(self._loads(place, const(0), const(0)))
        )

    def begin(self, place: TilePlace, row: Expr, column: Expr) -> Stmt:
        """Read what the epilogue needs of the first chunk; before `write`, and best long before."""
        return self._read(place, row, column, const(0))

    def write(self, place: TilePlace, row: Expr, column: Expr) -> Stmt:
        """Write the results of a warp, as `Fragments.write` does."""
        meet, chunk, count = Do("warp.sync", (), ()), Var("s"), self.fragments.down * self._across
        ahead = If(op("lt", chunk + 1, count), self._read(place, row, column, chunk + 1))
        parts = (meet, self._put(chunk), meet, self._take(place, row, column, chunk))
        return unroll(Block((ahead, *parts) if self.registers else parts), s=count)

    @property
    def _across(self) -> int:
        """Chunks side by side."""
        return self.fragments.across * COLUMNS // ACROSS

    @property
    def _wide(self) -> int:
        """Neighbours that a thread writes at once."""
        last = Sides.of(self.fragments.tiles.product).columns[-1].extent
        return next(n for n in (WIDEST, 4, 2, 1) if last % n == 0)

    @property
    def _accesses(self) -> int:
        """What a thread writes of a chunk, in pieces."""
        return ROWS * ACROSS // (self._wide * WARP)

    def _at(self, row: Expr, column: Expr, wide: int) -> Load:
        warp = Var(THREAD) // WARP
        return Load(STAGED, (warp, row, ramp(column, wide)), self.fragments.tiles.product.dtype)

    def _put(self, chunk: Expr) -> Stmt:
        """Store the fragments of a chunk to shared memory: two neighbours in a row, and two 8 rows below."""
        lane, half = Var(THREAD) % WARP, Var("h")
        fragment = chunk % self._across * (ACROSS // COLUMNS) + Var("c")
        to = self._at(lane // 4 + half * 8, Var("c") * COLUMNS + lane % 4 * 2, 2)
        pair = ramp(fragment * EACH + half * 2, 2)
        value = Load(self.fragments.buffer.name, (chunk // self._across, pair), to.dtype)
        return unroll(Store(to.tensor, to.index, value), c=ACROSS // COLUMNS, h=2)

    def _piece(self, row: Expr, column: Expr, chunk: Expr) -> tuple[Expr, Expr, Load]:
        """Row and column of piece `i` of a thread within the block, and its sums in shared memory."""
        number = Var("i") * WARP + Var(THREAD) % WARP
        across = ACROSS // self._wide
        down, right = number // across, number % across * self._wide
        at_row = row + chunk // self._across * self.fragments.pitch + down
        return at_row, column + chunk % self._across * ACROSS + right, self._at(down, right, self._wide)

    def _loads(self, place: TilePlace, row: Expr, column: Expr) -> tuple[Load, ...]:
        return self.fragments.tiles.loads(place, row, column, self._wide)

    def _registers_of(self, place: TilePlace, row: Expr, column: Expr, chunk: Expr) -> dict[Expr, Load]:
        """What the epilogue reads at a row and a column, and the registers where it is kept."""
        own = chunk % 2, Var("i")
        reads = self._loads(place, row, column)
        return {
            load: Load(f"{BESIDE}_{n}", (*own, ramp(const(0), load.lanes)), load.dtype) for n, load in enumerate(reads)
        }

    def _read(self, place: TilePlace, row: Expr, column: Expr, chunk: Expr) -> Stmt:
        """Read what the epilogue of a chunk needs: all at once, as each access takes long."""
        tiles = self.fragments.tiles
        at_row, at_column, _ = self._piece(row, column, chunk)
        kept = self._registers_of(place, at_row, at_column, chunk)
        stmt: Stmt = Block(tuple(Store(own.tensor, own.index, load) for load, own in kept.items()))
        stmt = tiles.within_rows(place, at_row, tiles.within_columns(place, at_column, stmt))
        return unroll(stmt, i=self._accesses)

    def _take(self, place: TilePlace, row: Expr, column: Expr, chunk: Expr) -> Stmt:
        """Write the rows of a chunk, each by threads side by side."""
        tiles = self.fragments.tiles
        at_row, at_column, total = self._piece(row, column, chunk)
        kept = self._registers_of(place, at_row, at_column, chunk)
        stmt = tiles.store(place, at_row, at_column, self._wide, total, kept)
        return unroll(tiles.within_rows(place, at_row, stmt), i=self._accesses)


def kept_registers(product: Product) -> int:
    """Registers of a thread for what `SumStaging` reads of two chunks."""
    origin = dict.fromkeys((axis.name for axis in product.fused_stage.stage.axes), const(0))
    read_bytes = sum(load.dtype.size_bytes for load in row_loads(product, origin, 1))
    return 2 * ROWS * ACROSS // WARP * read_bytes // 4

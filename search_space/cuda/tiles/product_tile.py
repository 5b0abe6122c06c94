"""Product tile: one product in float32, by tiles in shared memory and in registers.

    block                              batch, tile of rows, tile of columns
      thread                           a tile of both in registers
        rounds along the reduction
          left, right = operands       from global memory, each element once a block, zeros beyond the edges
          barrier
          for k: sums += left x right  an outer product of registers
        output = epilogue(sums)

With two stages, what the next round needs is read into registers while this one is computed, and written to the other
half of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store

from ...buffers import allocate
from .shared_tile import unroll
from .sides import (
    OperandTile,
    Sides,
    accesses,
    operands,
)
from .tiles import TilePlace, Tiles

WIDE = 4
"""Neighbours that are moved at once, where they are: 16 bytes."""

PAD = 4
"""Floats between rows of the left operand in shared memory, which is written across: neighbours in other banks."""

LEFT, RIGHT, SUMS = "left", "right", "sums"
ROUND, DEPTH = "round", "k"


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Tiles of a product, and the numbers of a block."""

    tiles: Tiles
    block_depth: int
    rows: int  # of a thread; divides those of the block
    columns: int  # likewise
    stages: int  # 1 or 2

    @staticmethod
    def of(tiles: Tiles, values: Mapping[str, int]) -> ProductTile:
        """Take the numbers from the values of a schedule."""
        own = {name: values[name] for name in ("block_depth", "rows", "columns", "stages")}
        return ProductTile(tiles, **own)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tiles.rows // self.rows * (self.tiles.columns // self.columns)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return self.tiles.blocks(self._block)

    def _block(self, place: TilePlace) -> Stmt:
        shared = self.block_depth, place.batch, self.threads
        sides = operands(self.tiles.product)
        left = _Copy(OperandTile(sides[0], place.row, self.tiles.rows, *shared), LEFT)
        right = _Copy(OperandTile(sides[1], place.column, self.tiles.columns, *shared), RIGHT)
        stmt: Stmt = For("thread", self.threads, self._thread((left, right), place), LoopKind.THREAD)
        for copy, pad in ((left, PAD if sides[0].is_deep else 0), (right, 0)):
            shape = self.stages, self.block_depth, copy.tile.extent + pad
            stmt = Alloc(Buffer(copy.name, shape, DType.F32, Scope.SHARED), stmt)
        return stmt

    def _thread(self, copies: Sequence[_Copy], place: TilePlace) -> Stmt:
        """The statements of a thread."""
        rounds = self.tiles.rounds(self.block_depth)
        begin = place.part * rounds
        sums = Buffer(SUMS, (self.rows, self.columns), DType.F32, Scope.REGISTER)
        start = self._each(lambda r, c: Store(SUMS, (r, c), const(0.0)))
        step = Var(ROUND)
        if self.stages == 1:
            body = Block((*_fill(copies, begin + step, const(0)), Barrier(), self._multiply(const(0)), Barrier()))
            steps: tuple[Stmt, ...] = (For(ROUND, rounds, body),)
        else:
            is_next = op("lt", step + 1, rounds)
            fetch = Block(tuple(copy.read(begin + step + 1) for copy in copies))
            put = Block(tuple(copy.write((step + 1) % 2) for copy in copies))
            loop = Block((If(is_next, fetch), self._multiply(step % 2), If(is_next, put), Barrier()))
            steps = (*_fill(copies, begin, const(0)), Barrier(), For(ROUND, rounds, loop))
        return allocate((sums, *(copy.registers for copy in copies)), Block((start, *steps, self._write(place))))

    def _each(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """Call `body` for each element of a thread's tile."""
        return unroll(body(Var("r"), Var("c")), r=self.rows, c=self.columns)

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a thread within its block."""
        across = self.tiles.columns // self.columns
        return Var("thread") // across * self.rows, Var("thread") % across * self.columns

    def _multiply(self, stage: Expr) -> Stmt:
        """Multiply the tiles of one round."""
        row, column = self._own()
        depth = Var(DEPTH)
        operands = (
            Buffer("own_left", (self.rows,), DType.F32, Scope.REGISTER),
            Buffer("own_right", (self.columns,), DType.F32, Scope.REGISTER),
        )
        loads = (
            _load_registers(operands[0].name, LEFT, (stage, depth), row, self.rows),
            _load_registers(operands[1].name, RIGHT, (stage, depth), column, self.columns),
        )

        def add(r: Expr, c: Expr) -> Stmt:
            left, right = Load("own_left", (r,), DType.F32), Load("own_right", (c,), DType.F32)
            return Store(SUMS, (r, c), op("fma", left, right, Load(SUMS, (r, c), DType.F32)))

        body: Stmt = Block((*loads, self._each(add)))
        return For(DEPTH, self.block_depth, allocate(operands, body), LoopKind.UNROLL)

    def _write(self, place: TilePlace) -> Stmt:
        """Write the tile of a thread."""
        down, across = self._own()
        last = Sides.of(self.tiles.product).columns[-1]
        wide = WIDE if self.columns % WIDE == 0 and last.extent % WIDE == 0 else 1
        row, column = down + Var("r"), across + Var("c") * wide
        total = Load(SUMS, (Var("r"), ramp(Var("c") * wide, wide)), DType.F32)
        inside = unroll(self.tiles.store(place, row, column, wide, total), c=self.columns // wide)
        return unroll(self.tiles.within_rows(place, row, inside), r=self.rows)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of an operand's tile to shared memory by the threads of a block, through registers."""

    tile: OperandTile
    name: str

    @property
    def wide(self) -> int:
        return self.tile.operand.wide((WIDE,))

    @property
    def registers(self) -> Buffer:
        tile = self.tile
        count = accesses(tile.extent, tile.block_depth, self.wide, tile.threads)
        return Buffer(f"next_{self.name}", (count, self.wide), DType.F32, Scope.REGISTER)

    def read(self, step: Expr) -> Stmt:
        """Load the tile of a round into registers; zeros beyond the edges."""

        def read_at(n: Expr, place: Expr, deep: Expr) -> Stmt:
            register = n, ramp(const(0), self.wide)
            value = op("cast", self.tile.element(step, place, deep, self.wide), dtype=DType.F32)
            stmt = self.tile.inside(step, place, deep, Store(self.registers.name, register, value))
            if isinstance(stmt, If):
                stmt = Block((Store(self.registers.name, register, const(0.0)), stmt))
            return stmt

        return self.tile.for_each(self.wide, read_at)

    def write(self, stage: Expr) -> Stmt:
        """Store the registers to shared memory."""
        return self.tile.for_each(self.wide, lambda n, place, deep: self._write(stage, n, place, deep))

    def _write(self, stage: Expr, n: Expr, place: Expr, deep: Expr) -> Stmt:
        if self.wide == 1 or not self.tile.operand.is_deep:
            value = Load(self.registers.name, (n, ramp(const(0), self.wide)), DType.F32)
            return Store(self.name, (stage, deep, ramp(place, self.wide)), value)
        lane = Var("lane")
        value = Load(self.registers.name, (n, lane), DType.F32)
        return unroll(Store(self.name, (stage, deep + lane, place), value), lane=self.wide)


def _fill(copies: Sequence[_Copy], step: Expr, stage: Expr) -> tuple[Stmt, ...]:
    """Copy the tiles of a round."""
    return (*(copy.read(step) for copy in copies), *(copy.write(stage) for copy in copies))


def _load_registers(to: str, name: str, outer: tuple[Expr, ...], begin: Expr, count: int) -> Stmt:
    """Load neighbours in shared memory into registers."""
    wide = next(n for n in (WIDE, 2, 1) if count % n == 0)
    place = Var("e") * wide
    body = Store(to, (ramp(place, wide),), Load(name, (*outer, ramp(begin + place, wide)), DType.F32))
    return unroll(body, e=count // wide)

"""Product tiles: a sum of products as a launch in which each block computes a tile of the result through shared memory.

    block                              batch, tile of rows, tile of columns
      thread                           a tile of both in registers
        rounds along the reduction
          left, right = operands       from global memory, each element once a block, zeros beyond the edges
          barrier
          for k: sums += left x right  an outer product of registers
        output = finish(sums)

With two stages, what the next round needs is read into registers while this one is computed, and written to the other
half of shared memory. Rows, columns and reduction are flattened: a convolution is the product of its windows, none of
which is ever written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const, op
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store
from tunewright.codegen.lanes import lined

from .operand_tile import OperandTile, accesses, operands
from .sides import Sides
from .tiles import Place, Tiles

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
        """That of a schedule's values."""
        own = {name: values[name] for name in ("block_depth", "rows", "columns", "stages")}
        return ProductTile(tiles, **own)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tiles.rows // self.rows * (self.tiles.columns // self.columns)

    def lower(self) -> Stmt:
        """The launch."""
        return self.tiles.blocks(self._block)

    def _block(self, place: Place) -> Stmt:
        shared = self.block_depth, place.batch, self.threads
        read = operands(self.tiles.found)
        left = _Copy(OperandTile(read[0], place.row, self.tiles.rows, *shared), LEFT)
        right = _Copy(OperandTile(read[1], place.column, self.tiles.columns, *shared), RIGHT)
        stmt: Stmt = For("thread", self.threads, self._thread((left, right), place), LoopKind.THREAD)
        for copy, pad in ((left, PAD if read[0].is_deep else 0), (right, 0)):
            shape = self.stages, self.block_depth, copy.tile.extent + pad
            stmt = Alloc(Buffer(copy.name, shape, DType.F32, Scope.SHARED), stmt)
        return stmt

    def _thread(self, copies: Sequence[_Copy], place: Place) -> Stmt:
        """What each thread does, of a block whose tile lies there."""
        rounds = self.tiles.rounds(self.block_depth)
        begin = place.part * rounds
        sums = Buffer(SUMS, (self.rows, self.columns), DType.F32, Scope.REGISTER)
        start = self._each(lambda r, c: Store(SUMS, (r, c), const(0.0)))
        step = Var(ROUND)
        if self.stages == 1:
            body = Block((*_filled(copies, begin + step, const(0)), Barrier(), self._multiplied(const(0)), Barrier()))
            steps: tuple[Stmt, ...] = (For(ROUND, rounds, body),)
        else:
            more = op("lt", step + 1, rounds)
            fetch = Block(tuple(copy.read(begin + step + 1) for copy in copies))
            put = Block(tuple(copy.written((step + 1) % 2) for copy in copies))
            loop = Block((If(more, fetch), self._multiplied(step % 2), If(more, put), Barrier()))
            steps = (*_filled(copies, begin, const(0)), Barrier(), For(ROUND, rounds, loop))
        stmt: Stmt = Block((start, *steps, self._finished(place)))
        for buffer in (sums, *(copy.registers for copy in copies)):
            stmt = Alloc(buffer, stmt)
        return stmt

    def _each(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """For each element of a thread's tile."""
        inner = For("c", self.columns, body(Var("r"), Var("c")), LoopKind.UNROLL)
        return For("r", self.rows, inner, LoopKind.UNROLL)

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a thread within its block."""
        across = self.tiles.columns // self.columns
        return Var("thread") // across * self.rows, Var("thread") % across * self.columns

    def _multiplied(self, stage: Expr) -> Stmt:
        """Add what one round brought."""
        row, column = self._own()
        depth = Var(DEPTH)
        operands = (
            Buffer("own_left", (self.rows,), DType.F32, Scope.REGISTER),
            Buffer("own_right", (self.columns,), DType.F32, Scope.REGISTER),
        )
        loads = (
            _moved(operands[0].name, LEFT, (stage, depth), row, self.rows),
            _moved(operands[1].name, RIGHT, (stage, depth), column, self.columns),
        )

        def add(r: Expr, c: Expr) -> Stmt:
            left, right = Load("own_left", (r,), DType.F32), Load("own_right", (c,), DType.F32)
            return Store(SUMS, (r, c), op("fma", left, right, Load(SUMS, (r, c), DType.F32)))

        body: Stmt = Block((*loads, self._each(add)))
        for buffer in operands:
            body = Alloc(buffer, body)
        return For(DEPTH, self.block_depth, body, LoopKind.UNROLL)

    def _finished(self, place: Place) -> Stmt:
        """Write a thread's tile."""
        down, across = self._own()
        last = Sides.of(self.tiles.found).columns[-1]
        wide = WIDE if self.columns % WIDE == 0 and last.extent % WIDE == 0 else 1
        row, column = down + Var("r"), across + Var("c") * wide
        total = Load(SUMS, (Var("r"), lined(Var("c") * wide, wide)), DType.F32)
        inside = For("c", self.columns // wide, self.tiles.stored(place, row, column, wide, total), LoopKind.UNROLL)
        return For("r", self.rows, self.tiles.within_rows(place, row, inside), LoopKind.UNROLL)


@dataclass(frozen=True, slots=True)
class _Copy:
    """How the threads of a block bring a tile of an operand into shared memory, by way of registers."""

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
        """What a round needs, into registers; zeros beyond the edges."""

        def one(n: Expr, place: Expr, deep: Expr) -> Stmt:
            mine = n, lined(const(0), self.wide)
            value = op("cast", self.tile.element(step, place, deep, self.wide), dtype=DType.F32)
            stmt = self.tile.inside(step, place, deep, Store(self.registers.name, mine, value))
            if isinstance(stmt, If):
                stmt = Block((Store(self.registers.name, mine, const(0.0)), stmt))
            return stmt

        return self.tile.each(self.wide, one)

    def written(self, stage: Expr) -> Stmt:
        """Registers into shared memory."""
        return self.tile.each(self.wide, lambda n, place, deep: self._written(stage, n, place, deep))

    def _written(self, stage: Expr, n: Expr, place: Expr, deep: Expr) -> Stmt:
        if self.wide == 1 or not self.tile.operand.is_deep:
            value = Load(self.registers.name, (n, lined(const(0), self.wide)), DType.F32)
            return Store(self.name, (stage, deep, lined(place, self.wide)), value)
        lane = Var("lane")
        value = Load(self.registers.name, (n, lane), DType.F32)
        return For("lane", self.wide, Store(self.name, (stage, deep + lane, place), value), LoopKind.UNROLL)


def _filled(copies: Sequence[_Copy], step: Expr, stage: Expr) -> tuple[Stmt, ...]:
    """Bring what a round needs."""
    return (*(copy.read(step) for copy in copies), *(copy.written(stage) for copy in copies))


def _moved(to: str, name: str, outer: tuple[Expr, ...], begin: Expr, count: int) -> Stmt:
    """Neighbours in shared memory into registers."""
    wide = next(n for n in (WIDE, 2, 1) if count % n == 0)
    place = Var("e") * wide
    body = Store(to, (lined(place, wide),), Load(name, (*outer, lined(begin + place, wide)), DType.F32))
    return For("e", count // wide, body, LoopKind.UNROLL)

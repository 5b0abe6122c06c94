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
from math import prod

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const, op, transform
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, For, If, LoopKind, Scope, Stmt, Store
from tunewright.codegen.lanes import lined
from tunewright.graph.task import Axis

from ..nests.digits import digits, places
from ..nests.phases import contiguous
from ..products.product import Product
from .elements import spread

WIDE = 4
"""Neighbours that are moved at once, where they are: 16 bytes."""

PAD = 4
"""Floats between rows of the left operand in shared memory, which is written across: neighbours in other banks."""

LEFT, RIGHT, SUMS = "left", "right", "sums"
ROUND, DEPTH = "round", "k"


@dataclass(frozen=True, slots=True)
class Sides:
    """The flattened axes of a product: those of the rows, the columns, both operands, and the reduction."""

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @staticmethod
    def of(found: Product) -> Sides:
        stage = found.piece.stage
        axes = {axis.name: axis for axis in stage.axes}
        return Sides(
            tuple(axes[name] for name in found.rows),
            tuple(axes[name] for name in (*found.columns, found.vector)),
            tuple(axes[name] for name in found.batch),
            stage.reduce,
        )


def size(axes: Sequence[Axis]) -> int:
    """Places along flattened axes."""
    return prod(axis.extent for axis in axes)


@dataclass(frozen=True, slots=True)
class ProductTile:
    """A product and the numbers of its launch."""

    found: Product
    block_rows: int
    block_columns: int
    block_depth: int
    rows: int  # of a thread; divides those of the block
    columns: int  # likewise
    stages: int  # 1 or 2

    @property
    def sides(self) -> Sides:
        return Sides.of(self.found)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.block_rows // self.rows * (self.block_columns // self.columns)

    def lower(self) -> Stmt:
        """The launch."""
        sides = self.sides
        counts = (
            size(sides.batch),
            -(-size(sides.rows) // self.block_rows),
            -(-size(sides.columns) // self.block_columns),
        )
        batch, row, column = digits(Var("block"), counts)
        body = self._thread(batch, row * self.block_rows, column * self.block_columns)
        stmt: Stmt = For("thread", self.threads, body, LoopKind.THREAD)
        for buffer in self._shared():
            stmt = Alloc(buffer, stmt)
        return For("block", prod(counts), stmt, LoopKind.BLOCK)

    def _shared(self) -> tuple[Buffer, Buffer]:
        pad = PAD if self._across else 0
        left = Buffer(LEFT, (self.stages, self.block_depth, self.block_rows + pad), DType.F32, Scope.SHARED)
        right = Buffer(RIGHT, (self.stages, self.block_depth, self.block_columns), DType.F32, Scope.SHARED)
        return left, right

    @property
    def _across(self) -> bool:
        """Whether neighbours of the left operand lie along the reduction."""
        depth = self.sides.depth[-1].name
        return contiguous(self.found.other.index, depth)

    def _thread(self, batch: Expr, row: Expr, column: Expr) -> Stmt:
        """What each thread does, of a block whose tile begins at a row and a column."""
        sides = self.sides
        rounds = -(-size(sides.depth) // self.block_depth)
        at = places(sides.batch, batch)
        copies = (
            _Copy(self.found.other, LEFT, sides.rows, sides.depth, row, self.block_rows, self._across, at, self),
            _Copy(
                self.found.panel, RIGHT, sides.columns, sides.depth, column, self.block_columns, self._deep, at, self
            ),
        )
        sums = Buffer(SUMS, (self.rows, self.columns), DType.F32, Scope.REGISTER)
        start = self._each(lambda r, c: Store(SUMS, (r, c), const(0.0)))
        first, step = const(0), Var(ROUND)
        if self.stages == 1:
            body = Block((*_filled(copies, step, const(0)), Barrier(), self._multiplied(const(0)), Barrier()))
            steps: tuple[Stmt, ...] = (For(ROUND, rounds, body),)
        else:
            more = op("lt", step + 1, rounds)
            fetch = Block(tuple(copy.read(step + 1) for copy in copies))
            put = Block(tuple(copy.written((step + 1) % 2) for copy in copies))
            loop = Block((If(more, fetch), self._multiplied(step % 2), If(more, put), Barrier()))
            steps = (*_filled(copies, first, const(0)), Barrier(), For(ROUND, rounds, loop))
        stmt: Stmt = Block((start, *steps, self._finished(batch, row, column)))
        for buffer in (sums, *(copy.registers for copy in copies)):
            stmt = Alloc(buffer, stmt)
        return stmt

    @property
    def _deep(self) -> bool:
        """Whether neighbours of the right operand lie along the reduction: weights that are transposed."""
        return contiguous(self.found.panel.index, self.sides.depth[-1].name)

    def _each(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """For each element of a thread's tile."""
        inner = For("c", self.columns, body(Var("r"), Var("c")), LoopKind.UNROLL)
        return For("r", self.rows, inner, LoopKind.UNROLL)

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a thread within its block."""
        across = self.block_columns // self.columns
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

    def _finished(self, batch: Expr, row: Expr, column: Expr) -> Stmt:
        """Write a thread's tile."""
        sides, piece = self.sides, self.found.piece
        down, across = self._own()
        last = sides.columns[-1]
        wide = WIDE if self.columns % WIDE == 0 and last.extent % WIDE == 0 else 1
        at_row, at_column = row + down + Var("r"), column + across + Var("c") * wide
        at = places(sides.batch, batch) | places(sides.rows, at_row) | places(sides.columns, at_column // wide, wide)
        total = Load(SUMS, (Var("r"), lined(Var("c") * wide, wide)), DType.F32)

        def laid(value: Expr) -> Expr:
            return spread(value, at, last.name, wide)

        value = transform(laid(piece.finish), lambda node: total if piece.is_result(node) else node)
        stmt: Stmt = Store(piece.output, tuple(map(laid, piece.index)), value)
        stmt = _within(at_column, size(sides.columns), self.block_columns, stmt)
        inside = For("c", self.columns // wide, stmt, LoopKind.UNROLL)
        return For("r", self.rows, _within(at_row, size(sides.rows), self.block_rows, inside), LoopKind.UNROLL)


@dataclass(frozen=True, slots=True)
class _Copy:
    """How the threads of a block bring an operand into shared memory: `along` it by `depth`."""

    operand: Load
    name: str
    along: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    begin: Expr  # the first place along it
    extent: int  # of the tile
    is_deep: bool  # neighbours lie along the reduction
    batch: Mapping[str, Expr]
    tile: ProductTile

    @property
    def wide(self) -> int:
        """Neighbours that are read at once."""
        axes, extent = (self.depth, self.tile.block_depth) if self.is_deep else (self.along, self.extent)
        is_near = contiguous(self.operand.index, axes[-1].name)
        return WIDE if is_near and axes[-1].extent % WIDE == 0 and extent % WIDE == 0 else 1

    @property
    def count(self) -> int:
        """Accesses of a thread."""
        return -(-self.extent * self.tile.block_depth // (self.wide * self.tile.threads))

    @property
    def registers(self) -> Buffer:
        return Buffer(f"next_{self.name}", (self.count, self.wide), DType.F32, Scope.REGISTER)

    def _numbered(self, number: Expr) -> tuple[Expr, Expr]:
        """Place along the operand, and along the reduction, of an access within the tile."""
        if self.is_deep:
            across = self.tile.block_depth // self.wide
            return number // across, number % across * self.wide
        across = self.extent // self.wide
        return number % across * self.wide, number // across

    def _loop(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """For each access of a thread: its number there, its place along the operand and along the reduction."""
        number = Var("n") * self.tile.threads + Var("thread")
        total = self.extent * self.tile.block_depth // self.wide
        stmt = body(Var("n"), *self._numbered(number))
        if total % self.tile.threads:
            stmt = If(op("lt", number, total), stmt)
        return For("n", self.count, stmt, LoopKind.UNROLL)

    def read(self, step: Expr) -> Stmt:
        """What a round needs, into registers; zeros beyond the edges."""
        return self._loop(lambda n, place, deep: self._read(n, self.begin + place, step * self.tile.block_depth + deep))

    def _read(self, n: Expr, place: Expr, deep: Expr) -> Stmt:
        mine = n, lined(const(0), self.wide)
        ways = (self.along, place, self.extent), (self.depth, deep, self.tile.block_depth)
        last = (self.depth if self.is_deep else self.along)[-1].name
        at = dict(self.batch)
        for axes, number, _ in ways:
            wide = self.wide if axes[-1].name == last else 1
            at |= places(axes, number // wide, wide)
        stmt: Stmt = Store(self.registers.name, mine, spread(self.operand, at, last, self.wide))
        for axes, number, extent in ways:
            stmt = _within(number, size(axes), extent, stmt)
        if isinstance(stmt, If):
            stmt = Block((Store(self.registers.name, mine, const(0.0)), stmt))
        return stmt

    def written(self, stage: Expr) -> Stmt:
        """Registers into shared memory."""
        return self._loop(lambda n, place, deep: self._written(stage, n, place, deep))

    def _written(self, stage: Expr, n: Expr, place: Expr, deep: Expr) -> Stmt:
        if self.wide == 1 or not self.is_deep:
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


def _within(number: Expr, total: int, step: int, stmt: Stmt) -> Stmt:
    """The statement where a number is below the total, if tiles of `step` don't cover that evenly."""
    return If(op("lt", number, total), stmt) if total % step else stmt

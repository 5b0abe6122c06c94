"""Warp tiles: a sum of products of narrow floats as a launch in which tensor cores multiply.

block                              batch, tile of rows, tile of columns
  thread
    rounds along the reduction     stages of them under way as asynchronous copies
      left, right = operands       into shared memory, where what a warp reads together lies in different banks
      barrier
      warp: sums += left x right   fragments of 16 x 16 and 16 x 8 by `ldmatrix` and `mma`
    output = finish(sums)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const, op
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, Do, For, If, LoopKind, Scope, Stmt, Store
from tunewright.codegen.lanes import lined

from ..nests.digits import digits, places
from ..products.product import Product
from .operand_tile import OperandTile, operands
from .parts import stored_part
from .shared_tile import COLUMNS, DEPTH, PRODUCTS, ROWS, THREAD, SharedTile, unrolled, width
from .sides import Sides, finished, size, within

SUMS, ROUND = "sums", "round"


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A product of operands of one narrow type, and the numbers of its launch."""

    found: Product
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    block_rows: int
    block_columns: int
    block_depth: int
    warp_rows: int  # divides those of the block
    warp_columns: int  # likewise
    stages: int  # 2 or more
    group: int  # tiles of rows that blocks take in turn, for the columns that they share; divides their number
    splits: int  # blocks that share the rounds of one tile; divides their number

    @property
    def dtype(self) -> DType:
        return self.found.panel.dtype

    @property
    def warps(self) -> tuple[int, int]:
        """Of a block: down, across."""
        return self.block_rows // self.warp_rows, self.block_columns // self.warp_columns

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * prod(self.warps)

    @property
    def rounds(self) -> int:
        """Along the whole reduction."""
        return -(-size(Sides.of(self.found).depth) // self.block_depth)

    def lower(self) -> Stmt:
        """The launch."""
        sides = Sides.of(self.found)
        rows, columns = -(-size(sides.rows) // self.block_rows), -(-size(sides.columns) // self.block_columns)
        counts = self.splits, size(sides.batch), rows // self.group, columns, self.group
        part, batch, band, column, within_band = digits(Var("block"), counts)
        row = band * self.group + within_band
        copies = self._copies(sides, batch, row * self.block_rows, column * self.block_columns)
        stmt: Stmt = Block((*self._summed(sides, copies, part), self._finished(sides, part, batch, row, column)))
        for buffer in self._registers():
            stmt = Alloc(buffer, stmt)
        stmt = For(THREAD, self.threads, stmt, LoopKind.THREAD)
        for copy in copies:
            stmt = Alloc(copy.buffer(self.stages), stmt)
        return For("block", prod(counts), stmt, LoopKind.BLOCK)

    def _copies(self, sides: Sides, batch: Expr, row: Expr, column: Expr) -> tuple[SharedTile, SharedTile]:
        shared = self.block_depth, places(sides.batch, batch), self.threads
        left, right = operands(self.found)
        rows, columns = (
            OperandTile(left, row, self.block_rows, *shared),
            OperandTile(right, column, self.block_columns, *shared),
        )
        return (
            SharedTile("left", rows, is_left=True, wide=width(left, self.shapes)),
            SharedTile("right", columns, is_left=False, wide=width(right, self.shapes)),
        )

    @property
    def _tiles(self) -> tuple[int, int]:
        """Products of a warp: down, across."""
        return self.warp_rows // ROWS, self.warp_columns // COLUMNS

    def _registers(self) -> tuple[Buffer, ...]:
        down, across = self._tiles
        return (
            Buffer(SUMS, (down, across, ROWS * COLUMNS // WARP), DType.F32, Scope.REGISTER),
            Buffer("own_left", (down, ROWS * DEPTH // WARP), self.dtype, Scope.REGISTER),
            Buffer("own_right", (across // 2, 2 * DEPTH * COLUMNS // WARP), self.dtype, Scope.REGISTER),
        )

    def _summed(self, sides: Sides, copies: tuple[SharedTile, SharedTile], part: Expr) -> tuple[Stmt, ...]:
        """All rounds. What a round needs is copied `stages - 1` rounds ahead, to where the round before has been."""
        rounds, ahead, step = self.rounds // self.splits, self.stages - 1, Var(ROUND)
        begin = part * rounds
        commit = Do("cp.async.commit", (), ())
        first = [self._cleared()]
        for n in range(ahead):
            if n < rounds:
                first += [copy.filled(begin + n, const(n)) for copy in copies]
            first.append(commit)
        later = (step + ahead) % self.stages
        following = Block(tuple(copy.filled(begin + step + ahead, later) for copy in copies))
        body = (
            Do(f"cp.async.wait.{self.stages - 2}", (), ()),
            Barrier(),
            If(op("lt", step + ahead, rounds), following),
            commit,
            self._multiplied(copies, step % self.stages),
        )
        return (*first, For(ROUND, rounds, Block(body)))

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a warp within its block."""
        warp, across = Var(THREAD) // WARP, self.warps[1]
        return warp // across * self.warp_rows, warp % across * self.warp_columns

    def _cleared(self) -> Stmt:
        stmt: Stmt = Store(SUMS, (Var("r"), Var("c"), Var("e")), const(0.0))
        return unrolled(stmt, r=self._tiles[0], c=self._tiles[1], e=ROWS * COLUMNS // WARP)

    def _multiplied(self, copies: tuple[SharedTile, SharedTile], stage: Expr) -> Stmt:
        """Add what one round brought. Of the right operand, what two neighbouring products need is read together."""
        row, column = self._own()
        down, pairs = self._tiles[0], self._tiles[1] // 2
        left, right = copies
        r, c, p, deep = Var("r"), Var("c"), Var("p"), Var("k") * DEPTH
        own = (
            Load("own_left", (r, lined(const(0), 8)), self.dtype),
            Load("own_right", (c, lined(const(0), 8)), self.dtype),
        )
        sums = Load(SUMS, (r, c * 2 + p, lined(const(0), 4)), DType.F32)
        factor = replace(own[1], index=(c, lined(p * 4, 4)))
        body = (
            unrolled(left.fragment(own[0], stage, row + r * ROWS, deep), r=down),
            unrolled(right.fragment(own[1], stage, column + c * 2 * COLUMNS, deep), c=pairs),
            unrolled(Do(PRODUCTS[self.dtype], (sums,), (own[0], factor, sums)), r=down, c=pairs, p=2),
        )
        return unrolled(Block(body), k=self.block_depth // DEPTH)

    def _finished(self, sides: Sides, part: Expr, batch: Expr, row: Expr, column: Expr) -> Stmt:
        """Write a thread's sums: those of a product are two neighbours in one row, and two 8 rows below."""
        lane = Var(THREAD) % WARP
        down, across = self._own()
        last = sides.columns[-1]
        wide = 2 if last.extent % 2 == 0 else 1
        half, pair = Var("h"), Var("e") * wide
        at_row = row * self.block_rows + down + Var("r") * ROWS + lane // 4 + half * 8
        at_column = column * self.block_columns + across + Var("c") * COLUMNS + lane % 4 * 2 + pair
        at = places(sides.batch, batch) | places(sides.rows, at_row) | places(sides.columns, at_column // wide, wide)
        total = Load(SUMS, (Var("r"), Var("c"), lined(half * 2 + pair, wide)), DType.F32)

        stmt = (
            finished(self.found, at, wide, total)
            if self.splits == 1
            else stored_part(self.found, part, at, wide, total)
        )
        stmt = within(at_column, size(sides.columns), self.block_columns, stmt)
        stmt = within(at_row, size(sides.rows), self.block_rows, unrolled(stmt, c=self._tiles[1], e=2 // wide))
        return unrolled(stmt, r=self._tiles[0], h=2)

"""Attention tiles: attention of narrow floats as one launch, with neither scores nor weights in memory.

    block                                batch, tile of rows
      thread
        queries = operand                into shared memory, once
        rounds along the places          stages of them under way as asynchronous copies
          keys, values = operands        into shared memory
          barrier
          warp: scores = queries x keys  16 rows of a warp, by `mma`, finished in registers
                top, scale = ...         of each row: the largest so far, and what the sums so far are worth by it
                weights = exp(scores - top)
                sums = sums * scale + weights x values
        output = finish(sums / total)

A row is in the registers of four lanes: what it has one of, they find together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Var, const, op, transform
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, Do, For, If, LoopKind, Scope, Stmt, Store
from tunewright.codegen.lanes import lined

from ..nests.digits import digits, places
from ..products.attention import Attention
from .elements import spread
from .operand_tile import Operand, OperandTile, operands
from .shared_tile import COLUMNS, PRODUCTS, ROWS, THREAD, SharedTile, product_depth, unrolled, width
from .sides import Sides, finished, size, steps, within

LOWEST = float(np.finfo(np.float32).min)
"""What no score is below, but for those that are left out: less than infinitely little, so that differences exist."""

ROUND = "round"
SCORES, SUMS, TOP, TOTAL, PART, OTHER, SCALE = "scores", "sums", "top", "total", "part", "other", "scale"

DEPTH = product_depth(DType.F16)
"""Terms of a sum that one product adds."""

HALVES = 2
"""Rows of a thread: those of a product lie 8 apart."""


def padded(extent: int) -> int:
    """The next power of two that products of a warp have: rows of shared memory are exchanged by bits."""
    return max(ROWS, 1 << (extent - 1).bit_length())


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Attention whose operands are of one narrow type, and the numbers of its launch."""

    found: Attention
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    warps: int  # of a block, 16 rows each
    block_places: int  # of a round
    stages: int  # 2 or more

    @property
    def dtype(self) -> DType:
        return self.found.scores.panel.dtype

    @property
    def block_rows(self) -> int:
        return ROWS * self.warps

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.warps

    @property
    def inner(self) -> int:
        """Terms of a score, as they lie in shared memory."""
        return padded(size(Sides.of(self.found.scores).depth))

    @property
    def columns(self) -> int:
        """Of the values, likewise."""
        return padded(size(Sides.of(self.found.mixed).columns))

    @property
    def rounds(self) -> int:
        """Along the places."""
        return -(-self.found.places.extent // self.block_places)

    def lower(self) -> Stmt:
        """The launch."""
        sides = Sides.of(self.found.scores)
        counts = size(sides.batch), steps(sides.rows, self.block_rows)
        batch, tile = digits(Var("block"), counts)
        row = tile * self.block_rows
        queries = self._queries(batch, row)
        keys, values = self._keys(batch, const(0)), self._values(batch)
        body: Stmt = Block(
            (
                *self._begun(),
                queries.filled(const(0), const(0)),
                *self._ahead(batch),
                For(ROUND, self.rounds, Block(tuple(self._round(queries, batch, row)))),
                *self._finished(batch, row),
            )
        )
        for buffer in self._registers():
            body = Alloc(buffer, body)
        body = For(THREAD, self.threads, body, LoopKind.THREAD)
        for copy, stages in ((queries, 1), (keys, self.stages), (values, self.stages)):
            for buffer in copy.buffers(stages):
                body = Alloc(buffer, body)
        return For("block", prod(counts), body, LoopKind.BLOCK)

    # Operands on their way

    def _queries(self, batch: Expr, row: Expr) -> SharedTile:
        operand, _ = operands(self.found.scores)
        return self._tile("queries", operand, row, self.block_rows, self.inner, batch, is_left=True)

    def _keys(self, batch: Expr, first: Expr) -> SharedTile:
        """Those of a round, from its first place on."""
        _, operand = operands(self.found.scores)
        return self._tile("keys", operand, first, self.block_places, self.inner, batch)

    def _values(self, batch: Expr) -> SharedTile:
        _, operand = operands(self.found.mixed)
        return self._tile("values", operand, const(0), self.columns, self.block_places, batch, of_mixed=True)

    def _tile(
        self,
        name: str,
        operand: Operand,
        begin: Expr,
        extent: int,
        depth: int,
        batch: Expr,
        *,
        is_left: bool = False,
        of_mixed: bool = False,
    ) -> SharedTile:
        sides = Sides.of(self.found.mixed if of_mixed else self.found.scores)
        tile = OperandTile(operand, begin, extent, depth, places(sides.batch, batch), self.threads)
        return SharedTile(name, tile, is_left=is_left, wide=width(operand, self.shapes))

    def _brought(self, batch: Expr, step: Expr, stage: Expr) -> Stmt:
        """Keys and values of a round."""
        keys = self._keys(batch, step * self.block_places)
        return Block((keys.filled(const(0), stage), self._values(batch).filled(step, stage)))

    def _ahead(self, batch: Expr) -> Iterator[Stmt]:
        """What is under way before the first round; the queries with it."""
        for n in range(self.stages - 1):
            if n < self.rounds:
                yield self._brought(batch, const(n), const(n))
            yield Do("cp.async.commit", (), ())

    # Registers

    def _registers(self) -> Iterator[Buffer]:
        each = ROWS * COLUMNS // WARP
        yield Buffer(SCORES, (self.block_places // COLUMNS, each), DType.F32, Scope.REGISTER)
        yield Buffer(SUMS, (self.columns // COLUMNS, each), DType.F32, Scope.REGISTER)
        for name in (TOP, TOTAL, PART, OTHER, SCALE):
            yield Buffer(name, (HALVES,), DType.F32, Scope.REGISTER)
        yield Buffer("own_queries", (ROWS * DEPTH // WARP,), self.dtype, Scope.REGISTER)
        yield Buffer("own_keys", (2 * DEPTH * COLUMNS // WARP,), self.dtype, Scope.REGISTER)
        yield Buffer("own_values", (2 * DEPTH * COLUMNS // WARP,), self.dtype, Scope.REGISTER)
        yield Buffer("weights", (self.block_places // DEPTH, ROWS * DEPTH // WARP), self.dtype, Scope.REGISTER)

    @property
    def _row(self) -> Expr:
        """The first row of a warp within its block."""
        return Var(THREAD) // WARP * ROWS

    def _begun(self) -> Iterator[Stmt]:
        yield unrolled(Store(TOP, (Var("h"),), const(LOWEST)), h=HALVES)
        yield unrolled(Store(TOTAL, (Var("h"),), const(0.0)), h=HALVES)
        yield unrolled(Store(SUMS, (Var("c"), Var("e")), const(0.0)), c=self.columns // COLUMNS, e=4)

    # A round

    def _round(self, queries: SharedTile, batch: Expr, row: Expr) -> Iterator[Stmt]:
        step, ahead = Var(ROUND), self.stages - 1
        yield Do(f"cp.async.wait.{self.stages - 2}", (), ())
        yield Barrier()
        yield If(op("lt", step + ahead, self.rounds), self._brought(batch, step + ahead, (step + ahead) % self.stages))
        yield Do("cp.async.commit", (), ())
        stage = step % self.stages
        yield from self._scored(queries, self._keys(batch, step * self.block_places), stage)
        yield from self._completed(batch, row)
        yield unrolled(Block(tuple(self._weighed())), h=HALVES)
        yield from self._mixed(self._values(batch), stage)

    def _scored(self, queries: SharedTile, keys: SharedTile, stage: Expr) -> Iterator[Stmt]:
        """Products of queries and keys."""
        pairs = self.block_places // (2 * COLUMNS)
        k, c, p = Var("k"), Var("c"), Var("p")
        left, right = (_whole(name, self.dtype) for name in ("own_queries", "own_keys"))
        total = Load(SCORES, (c * 2 + p, lined(const(0), 4)), DType.F32)
        half = replace(right, index=(lined(p * 4, 4),))
        multiplied = unrolled(Do(PRODUCTS[self.dtype, self.dtype], (total,), (left, half, total)), p=2)
        over = Block((keys.fragment(right, stage, c * 2 * COLUMNS, k * DEPTH), multiplied))
        body = Block((queries.fragment(left, const(0), self._row, k * DEPTH), unrolled(over, c=pairs)))
        yield unrolled(Store(SCORES, (c, Var("e")), const(0.0)), c=2 * pairs, e=4)
        yield unrolled(body, k=self.inner // DEPTH)

    def _completed(self, batch: Expr, row: Expr) -> Iterator[Stmt]:
        """Scores as they are defined; of places beyond the last, what weighs nothing."""
        product, sides = self.found.scores, Sides.of(self.found.scores)
        extent = self.found.places.extent
        wide = 2 if extent % 2 == 0 else 1
        lane, half, pair, c = Var(THREAD) % WARP, Var("h"), Var("e") * wide, Var("c")
        at_row = row + self._row + lane // 4 + half * 8
        at_place = Var(ROUND) * self.block_places + c * COLUMNS + lane % 4 * 2 + pair
        at = places(sides.batch, batch) | places(sides.rows, at_row) | {product.vector: at_place}
        if wide > 1:
            at |= places((self.found.places,), at_place // wide, wide)
        mine = Load(SCORES, (c, lined(half * 2 + pair, wide)), DType.F32)
        laid = spread(self.found.score, at, product.vector, wide)
        value = transform(laid, lambda node: mine if product.piece.is_result(node) else node)
        stmt = within(at_row, size(sides.rows), self.block_rows, Store(mine.tensor, mine.index, value))
        stmt = within(at_place, extent, self.block_places, stmt)
        if extent % self.block_places:
            nothing = Const(-np.inf, DType.F32)
            stmt = Block((stmt, If(op("not", op("lt", at_place, extent)), Store(mine.tensor, mine.index, nothing))))
        yield unrolled(stmt, c=self.block_places // COLUMNS, h=HALVES, e=2 // wide)

    def _weighed(self) -> Iterator[Stmt]:
        """Of the rows of one half: scores become weights, and what was summed up is scaled to the new top."""
        half, c, e = Var("h"), Var("c"), Var("e")
        place = (half,)
        top, total, part, scale = (Load(name, place, DType.F32) for name in (TOP, TOTAL, PART, SCALE))
        score = Load(SCORES, (c, half * 2 + e), DType.F32)
        each = {"c": self.block_places // COLUMNS, "e": 2}
        yield Store(PART, place, top)
        yield unrolled(Store(PART, place, op("max", part, score)), **each)
        yield from _together("max", half)
        yield Store(SCALE, place, op("exp", op("sub", top, part)))
        yield Store(TOP, place, part)
        yield Store(TOTAL, place, op("mul", total, scale))
        weigh = Store(SCORES, score.index, op("exp", op("sub", score, top)))
        yield unrolled(Block((weigh, Store(TOTAL, place, op("add", total, score)))), **each)
        mixed = Load(SUMS, (c, half * 2 + e), DType.F32)
        yield unrolled(Store(SUMS, mixed.index, op("mul", mixed, scale)), c=self.columns // COLUMNS, e=2)

    def _mixed(self, values: SharedTile, stage: Expr) -> Iterator[Stmt]:
        """Add the values, by their weights: two neighbouring products of scores are the left side of one."""
        j, s, e, c, p = (Var(name) for name in "jsecp")
        weight = Load(SCORES, (j * 2 + s, e), DType.F32)
        kept = Store("weights", (j, s * 4 + e), op("cast", weight, dtype=self.dtype))
        yield unrolled(kept, j=self.block_places // DEPTH, s=2, e=4)
        left = Load("weights", (j, lined(const(0), 8)), self.dtype)
        right = _whole("own_values", self.dtype)
        half = replace(right, index=(lined(p * 4, 4),))
        total = Load(SUMS, (c * 2 + p, lined(const(0), 4)), DType.F32)
        multiplied = unrolled(Do(PRODUCTS[self.dtype, self.dtype], (total,), (left, half, total)), p=2)
        body = Block((values.fragment(right, stage, c * 2 * COLUMNS, j * DEPTH), multiplied))
        yield unrolled(body, j=self.block_places // DEPTH, c=self.columns // (2 * COLUMNS))

    # The end

    def _finished(self, batch: Expr, row: Expr) -> Iterator[Stmt]:
        """Write a thread's sums."""
        product, sides = self.found.mixed, Sides.of(self.found.mixed)
        half = Var("h")
        total = Load(TOTAL, (half,), DType.F32)
        together = (Store(PART, (half,), total), *_together("add", half), Store(TOTAL, (half,), _part(half)))
        yield unrolled(Block(together), h=HALVES)
        extent = size(sides.columns)
        wide = 2 if sides.columns[-1].extent % 2 == 0 else 1
        lane, pair, c = Var(THREAD) % WARP, Var("e") * wide, Var("c")
        at_row = row + self._row + lane // 4 + half * 8
        at_column = c * COLUMNS + lane % 4 * 2 + pair
        at = places(sides.batch, batch) | places(sides.rows, at_row) | places(sides.columns, at_column // wide, wide)
        mine = Load(SUMS, (c, lined(half * 2 + pair, wide)), DType.F32)
        stmt = finished(product, at, wide, op("div", mine, total))
        stmt = within(at_column, extent, self.columns, stmt)
        stmt = unrolled(stmt, c=self.columns // COLUMNS, e=2 // wide)
        yield unrolled(within(at_row, size(sides.rows), self.block_rows, stmt), h=HALVES)


def _whole(name: str, dtype: DType) -> Load:
    """Eight registers of a fragment."""
    return Load(name, (lined(const(0), 8),), dtype)


def _part(half: Expr) -> Load:
    return Load(PART, (half,), DType.F32)


def _together(combine: str, half: Expr) -> Iterator[Stmt]:
    """`PART` of a row, of the four lanes that have it."""
    part, other = _part(half), Load(OTHER, (half,), DType.F32)
    for mask in (1, 2):
        yield Do(f"shfl.xor.{mask}", (other,), (part,))
        yield Store(PART, (half,), op(combine, part, other))

"""Softmax of rows that come in parts, and the sums that its weights multiply, in the registers of warps.

    top = max(top, scores)                         of each row, the largest so far
    scale = exp(top before - top)                  the factor of the sums so far
    weights = exp(scores - top)                    one multiply-add, and a power of 2
    total, sums = total * scale + ..., sums * scale + weights x values

A row is in the registers of four lanes, as products of warps have it, which reduce its values together. Scores and sums
of a thread are numbered by fragment (8 columns), row (two, 8 apart) and neighbour (two).

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import e, log2

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, op, transform
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, If, Scope, Stmt, Store

from ...axes import axis_indices
from ...patterns.attention import Attention
from .element_launch import vectorize_at
from .reductions import warp_reduce
from .shared_tile import COLUMNS, ROWS, THREAD, product_depth, unroll
from .sides import Sides, guard_extent, size, store_epilogue

LOWEST = float(np.finfo(np.float32).min)
"""The initial maximum: below any score, but finite, so that differences are numbers."""

LOG2_E = log2(e)

SCORES, SUMS, WEIGHTS = "scores", "sums", "weights"
TOP, TOTAL, PART, OTHER, SCALE, FACTOR, SHIFT = "top", "total", "part", "other", "scale", "factor", "shift"

LARGE, SMALLER = 2e38, 2.0**-20
"""The magnitude of a maximum beyond which its product with log2(e) may overflow, and by what the factor is smaller
there. Floats of that size are so far apart that weights are still 1 or 0.
"""

EACH = ROWS * COLUMNS // WARP
"""Elements of a thread in a fragment."""

LANES = 4
"""Lanes of a warp that have a row together."""

HALVES = 2
"""Rows of a thread in a fragment, which lie 8 apart."""

HALF = Var("h")
"""Which of them."""


@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """The softmax of an attention, for blocks of rows and of keys."""

    attention: Attention
    block_rows: int
    block_places: int
    columns: int  # padded

    @property
    def dtype(self) -> DType:
        """The type of operands and weights."""
        return self.attention.scores.panel.dtype

    @property
    def registers(self) -> Iterator[Buffer]:
        """The registers of a thread."""
        yield Buffer(SCORES, (self.block_places // COLUMNS * EACH,), DType.F32, Scope.REGISTER)
        yield Buffer(SUMS, (self.columns // COLUMNS * EACH,), DType.F32, Scope.REGISTER)
        yield Buffer(WEIGHTS, (self.block_places // COLUMNS * EACH,), self.dtype, Scope.REGISTER)
        for name in (TOP, TOTAL, PART, OTHER, SCALE, FACTOR, SHIFT):
            yield Buffer(name, (HALVES,), DType.F32, Scope.REGISTER)

    @property
    def row(self) -> Expr:
        """The first row of a warp within its block."""
        return Var(THREAD) // WARP * ROWS

    def begin(self) -> Stmt:
        """Initialise the maximum and the sums."""
        return Block(
            (
                unroll(
                    Block((Store(TOP, (Var("h"),), const(LOWEST)), Store(TOTAL, (Var("h"),), const(0.0)))), h=HALVES
                ),
                unroll(Store(SUMS, (Var("e"),), const(0.0)), e=self.columns // COLUMNS * EACH),
            )
        )

    def clear_scores(self) -> Stmt:
        """Set all scores to 0."""
        return unroll(Store(SCORES, (Var("e"),), const(0.0)), e=self.block_places // COLUMNS * EACH)

    def complete_scores(self, batch: Expr, row: Expr, step: Expr) -> Stmt:
        """Apply the epilogue of scores to those of a part; keys beyond the last get -infinity.

        `row` is the first of the block.
        """
        product, sides = self.attention.scores, Sides.of(self.attention.scores)
        extent = self.attention.key_axis.extent
        wide = 2 if extent % 2 == 0 else 1
        lane, half, pair, c = Var(THREAD) % WARP, Var("h"), Var("e") * wide, Var("c")
        at_row = row + self.row + lane // 4 + half * 8
        at_place = step * self.block_places + c * COLUMNS + lane % 4 * 2 + pair
        at = axis_indices(sides.batch, batch) | axis_indices(sides.rows, at_row) | {product.vector: at_place}
        if wide > 1:
            at |= axis_indices((self.attention.key_axis,), at_place // wide, wide)
        own = Load(SCORES, (ramp(c * EACH + half * 2 + pair, wide),), DType.F32)
        score = vectorize_at(self.attention.score, at, product.vector, wide)
        value = transform(score, lambda node: own if product.fused_stage.is_result(node) else node)
        stmt: Stmt = Block(()) if value == own else Store(own.tensor, own.index, value)
        stmt = guard_extent(at_row, size(sides.rows), self.block_rows, stmt)
        stmt = guard_extent(at_place, extent, self.block_places, stmt)
        if extent % self.block_places:
            nothing = Const(-np.inf, DType.F32)
            stmt = Block((stmt, If(op("not", op("lt", at_place, extent)), Store(own.tensor, own.index, nothing))))
        return unroll(stmt, c=self.block_places // COLUMNS, h=HALVES, e=2 // wide)

    def weigh(self) -> Stmt:
        """Turn scores into weights; `SCALE` becomes the factor of the earlier sums."""
        half = Var("h")
        place = (half,)
        top, total, part, scale = (Load(name, place, DType.F32) for name in (TOP, TOTAL, PART, SCALE))
        factor, shift = (Load(name, place, DType.F32) for name in (FACTOR, SHIFT))
        score = Load(SCORES, (Var("c") * EACH + half * 2 + Var("e"),), DType.F32)
        loops, is_small = {"c": self.block_places // COLUMNS, "e": 2}, op("lt", op("abs", part), LARGE)
        body = (
            Store(PART, place, top),
            unroll(Store(PART, place, op("max", part, score)), **loops),
            *_reduce("max", half),
            *power(scale, op("mul", op("sub", top, part), const(LOG2_E))),
            Store(TOP, place, part),
            Store(TOTAL, place, op("mul", total, scale)),
            Store(FACTOR, place, op("select", is_small, const(LOG2_E), const(SMALLER * LOG2_E))),
            Store(SHIFT, place, op("mul", part, factor)),
            unroll(
                Block(
                    (
                        *power(score, op("sub", op("mul", score, factor), shift)),
                        Store(TOTAL, place, op("add", total, score)),
                    )
                ),
                **loops,
            ),
        )
        return unroll(Block(body), h=HALVES)

    def rescale_sums(self) -> Stmt:
        """Scale the earlier sums to the new maximum."""
        half = Var("h")
        mixed = Load(SUMS, (Var("c") * EACH + half * 2 + Var("e"),), DType.F32)
        value = op("mul", mixed, Load(SCALE, (half,), DType.F32))
        return unroll(Store(SUMS, mixed.index, value), c=self.columns // COLUMNS, h=HALVES, e=2)

    def round_weights(self) -> Stmt:
        """Convert weights to the type of the operands: two neighbouring fragments are the left operand of a product."""
        pair = (ramp(Var("j") * 2, 2),)
        narrow = Do(f"cvt.{self.dtype.value}x2", (Load(WEIGHTS, pair, self.dtype),), (Load(SCORES, pair, DType.F32),))
        return unroll(narrow, j=self.block_places // COLUMNS * EACH // 2)

    def weights(self, j: Expr) -> Load:
        """A thread's weights for one product, number `j`."""
        return Load(WEIGHTS, (ramp(j * (2 * EACH), 2 * EACH),), self.dtype)

    @property
    def depth(self) -> int:
        """Keys that one product adds."""
        return product_depth(self.dtype)

    def write(self, batch: Expr, row: Expr) -> Stmt:
        """Write a thread's results."""
        inverse = op("div", const(1.0), self.reduced_total)
        total = Load(TOTAL, (HALF,), DType.F32)
        totals = self.reduce_totals(Store(total.tensor, total.index, inverse))

        def result(at_row: Expr, at_column: Expr, sums: Load) -> Stmt:
            return store_context(self.attention, (batch, at_row, at_column), op("mul", sums, total))

        return Block((totals, self.each_row(row, lambda at_row: self.each_sum(partial(result, at_row)))))

    # What a thread has of its rows, also of some of the keys alone

    @property
    def top(self) -> Load:
        """The maximum of row `HALF` of a thread."""
        return Load(TOP, (HALF,), DType.F32)

    @property
    def reduced_total(self) -> Load:
        """The sum of the weights of row `HALF` of a thread, within `reduce_totals` and until the next maximum."""
        return Load(PART, (HALF,), DType.F32)

    def reduce_totals(self, then: Stmt | None = None) -> Stmt:
        """Reduce the sums of weights over the lanes of each row; `then` is done for each row."""
        total = Load(TOTAL, (HALF,), DType.F32)
        reduction = (Store(PART, (HALF,), total), *_reduce("add", HALF), *([then] if then else []))
        return unroll(Block(reduction), h=HALVES)

    def each_row(self, row: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        """Call `body` for each row of a thread that there is. `row` is the first of the block."""
        at_row = row + self.row + Var(THREAD) % WARP // LANES + HALF * 8
        rows = size(Sides.of(self.attention.context).rows)
        return unroll(guard_extent(at_row, rows, self.block_rows, body(at_row)), h=HALVES)

    def each_sum(self, body: Callable[[Expr, Load], Stmt]) -> Stmt:
        """Call `body` for the sums of a row of a thread: the first column of neighbours, and what is summed there."""
        columns = Sides.of(self.attention.context).columns
        wide = 2 if columns[-1].extent % 2 == 0 else 1
        pair, c = Var("e") * wide, Var("c")
        at_column = c * COLUMNS + Var(THREAD) % WARP % LANES * 2 + pair
        sums = Load(SUMS, (ramp(c * EACH + HALF * 2 + pair, wide),), DType.F32)
        stmt = guard_extent(at_column, size(columns), self.columns, body(at_column, sums))
        return unroll(stmt, c=self.columns // COLUMNS, e=2 // wide)


def is_seen(attention: Attention, row: Expr, rows: int, key: Expr) -> Expr:
    """Whether one of so many rows from `row` on may see keys from `key` on, of causal attention.

    Beyond, all weights of these rows are 0, and those before are the same without them.
    """
    past, queries = attention.past, Sides.of(attention.scores).rows[-1].extent
    assert past is not None
    last = row + (rows - 1)
    if size(Sides.of(attention.scores).rows) == queries:
        return op("le", key, last + past)
    is_another = op("not", op("eq", row // queries, last // queries))  # head: of the first, the last query is a row
    return op("or", is_another, op("le", key, last % queries + past))


def store_context(attention: Attention, at: tuple[Expr, Expr, Expr], value: Expr) -> Stmt:
    """Apply the epilogue to results of neighbouring columns, and store them: at a batch, a row and the first column."""
    product, sides = attention.context, Sides.of(attention.context)
    batch, row, column = at
    wide = value.lanes
    indices = (
        axis_indices(sides.batch, batch)
        | axis_indices(sides.rows, row)
        | axis_indices(sides.columns, column // wide, wide)
    )
    return store_epilogue(product.fused_stage, product.vector, indices, wide, value)


def power(to: Load, value: Expr) -> tuple[Stmt, Stmt]:
    """Store 2 to the power of a value in a register."""
    return Store(to.tensor, to.index, value), Do("ex2", (to,), (to,))


def _reduce(combine: str, half: Expr) -> Iterator[Stmt]:
    """Reduce `PART` over the four lanes of a row."""
    part, other = (Load(name, (half,), DType.F32) for name in (PART, OTHER))
    return warp_reduce(combine, part, other, (1, 2))

"""Attention parts: what blocks have that share the keys of a tile of queries, and what they come to.

    parts, tops, totals                [part, batch, row]: sums, maximum and sum of the weights, of the part's keys
    launch: a thread for some neighbours of a row
      top = max over parts of tops
      scale = exp(tops - top)          of each part
      output = epilogue(sum of parts * scale / sum of totals * scale)

Weights are relative to the maximum of their part, so each is scaled to the largest one. A part whose keys are all left
out has the least maximum that there is and nothing else, and adds nothing. Dao et al., "Flash-Decoding for long-context
inference" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.ir.ir import Block, Buffer, If, Scope, Stmt, Store

from ...axes import unravel
from ...buffers import allocate
from ...patterns.attention import Attention
from .element_launch import launch
from .online_softmax import LANES, LOG2_E, SCALE, SUMS, TOP, TOTAL, OnlineSoftmax, power, store_context
from .reductions import PARTS, combine_all, part_width
from .shared_tile import THREAD, unroll
from .sides import Sides, size

TOPS, TOTALS = "tops", "totals"
"""Buffers of maxima and of sums of weights, beside `PARTS`."""

COMBINING_THREADS = 64
"""Threads of a block that combines parts: there are few rows, for which there should be blocks enough."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The parts of an attention whose keys so many blocks share."""

    attention: Attention
    splits: int

    @property
    def _counts(self) -> tuple[int, int, int]:
        """Batches, rows and columns."""
        sides = Sides.of(self.attention.context)
        return size(sides.batch), size(sides.rows), size(sides.columns)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The memory of sums, maxima and sums of weights."""
        batch, rows, columns = self._counts
        sums = Buffer(PARTS, (self.splits, batch, rows, columns), DType.F32)
        return sums, *(Buffer(name, (self.splits, batch, rows), DType.F32) for name in (TOPS, TOTALS))

    def store(self, softmax: OnlineSoftmax, part: Expr, batch: Expr, row: Expr) -> Stmt:
        """Write what a thread has of a part of the keys. `row` is the first of the block."""

        def store_row(at_row: Expr) -> Stmt:
            index = part, batch, at_row
            both = Block((Store(TOPS, index, softmax.top), Store(TOTALS, index, softmax.reduced_total)))
            first = If(op("eq", Var(THREAD) % LANES, 0), both)
            sums = softmax.each_sum(lambda column, own: Store(PARTS, (*index, ramp(column, own.lanes)), own))
            return Block((first, sums))

        return Block((softmax.reduce_totals(), softmax.each_row(row, store_row)))

    def combine(self) -> Stmt:
        """The launch that combines the parts."""
        batch, rows, columns = self._counts
        wide = part_width(Sides.of(self.attention.context).columns[-1].extent)
        counts = batch, rows, columns // wide

        def body(number: Expr) -> Stmt:
            *outer, column = unravel(number, counts)
            return self._combine_neighbours(outer, column * wide, wide)

        return launch(body, prod(counts), COMBINING_THREADS)

    def _combine_neighbours(self, row: Sequence[Expr], column: Expr, wide: int) -> Stmt:
        """What a thread does for neighbours of a row, which its batch and number tell."""
        batch, number = row
        part, first = Var("part"), const(0)
        top, scale, total = (Load(name, (first,), DType.F32) for name in (TOP, SCALE, TOTAL))
        sums = Load(SUMS, (ramp(first, wide),), DType.F32)

        def of_part(name: str, part: Expr) -> Load:
            return Load(name, (part, batch, number), DType.F32)

        values = Load(PARTS, (part, batch, number, ramp(column, wide)), DType.F32)
        tops = [of_part(TOPS, const(each)) for each in range(self.splits)]
        add = Block(
            (
                *power(scale, op("mul", op("sub", of_part(TOPS, part), top), const(LOG2_E))),
                Store(TOTAL, total.index, op("add", total, op("mul", of_part(TOTALS, part), scale))),
                Store(SUMS, sums.index, op("add", sums, op("mul", values, scale))),
            )
        )
        body = (
            Store(TOP, top.index, combine_all("max", tops)),
            Store(TOTAL, total.index, const(0.0)),
            Store(SUMS, sums.index, const(0.0)),
            unroll(add, part=self.splits),
            Store(TOTAL, total.index, op("div", const(1.0), total)),
            store_context(self.attention, (batch, number, column), op("mul", sums, total)),
        )
        registers = (Buffer(name, (1,), DType.F32, Scope.REGISTER) for name in (TOP, SCALE, TOTAL))
        return allocate((*registers, Buffer(SUMS, (wide,), DType.F32, Scope.REGISTER)), Block(body))

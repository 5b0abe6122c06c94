"""Word block: a fold block of weights of few bits, which are read as words and unpacked in registers.

  rounds
    copies                            words, scales and zero points: all of a round under way at once
    lanes meet
    copies
      part = 0                        of a block of weights
        word, column                  weights = numbers of the word less the zero point, exact
        word, row, column             part = part + x * weights
      sums = sums + scale * part

A number of few bits becomes a float32 without a conversion. Alone among the lowest 24 bits of a word it is one as it
lies there: subnormal, or just above that, and a whole number times 2^-149. One multiply-add makes it larger and takes
the zero point away, without rounding, and the scale of a block is multiplied by what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.ir.ir import Block, Buffer, For, LoopKind, Scope, Stmt, Store, words_name
from tunewright.graph.block_product import BlockProduct, match_block_product
from tunewright.graph.task import Tensor

from ...axes import axis_indices
from ...patterns.weight_words import WeightWords
from .element_launch import vectorize_at
from .fold_block import COPY, ROW, SUMS, FoldBlock

F32, I32 = DType.F32, DType.I32

WORDS, SCALES, ZEROS, WEIGHTS, ACTIVATIONS, BLOCK_SUMS = "words", "scales", "zeros", "weights", "x", "block_sums"
"""Registers: what the copies of a round have read, the weights of a word of each column, the terms of a row by which
they are multiplied, and the sums of a block of weights."""

COLUMN, WORD = "column", "word"

EVEN_BITS = 24
"""The lowest bits of a float32: whole numbers of so many bits, times the smallest subnormal, are their own bits."""

SMALLEST, LARGEST = -149, 127
"""The powers of two that are the smallest subnormal float32 and the largest that it has."""

MISSING = -(SMALLEST + LARGEST)
"""The power of two that weights are too small by."""


@dataclass(frozen=True, slots=True)
class WordBlock(FoldBlock):
    """As `FoldBlock`, where `vector` is the columns of a thread, each with accesses of its own."""

    @property
    def _own(self) -> WeightWords:
        words = self.fold.words
        assert words is not None
        return words

    @property
    def _term(self) -> BlockProduct:
        term = match_block_product(self.fold.fused_stage.stage.body)
        assert term is not None
        return term

    @property
    def _step_registers(self) -> tuple[Buffer, ...]:
        own = self._own
        beside = self.unroll, self.vector * own.spans
        buffers = (
            Buffer(WORDS, (self.unroll, self.vector, own.words), I32, Scope.REGISTER),
            Buffer(SCALES, beside, F32, Scope.REGISTER),
            Buffer(WEIGHTS, (self.vector, own.word_numbers), F32, Scope.REGISTER),
            Buffer(ACTIVATIONS, (own.word_numbers,), F32, Scope.REGISTER),
            Buffer(BLOCK_SUMS, (self.rows, self.vector), F32, Scope.REGISTER),
        )
        zeros = () if isinstance(own.product.zeros, int) else (Buffer(ZEROS, beside, F32, Scope.REGISTER),)
        return (*buffers, *zeros)

    def _inside(self, group: Expr, stmt: Stmt) -> Stmt:
        """The statement as it is: in memory there are zeros behind the last column."""
        return stmt

    def _steps(self, unit: Expr, group: Expr, row: Expr) -> Iterator[Stmt]:
        own = self._own
        blocks, part = unit // own.parts * own.spans, unit % own.parts
        yield Block(tuple(self._read(unit, group)))
        yield Block(tuple(stmt for n in range(own.spans) for stmt in self._fold(blocks + n, part, n, row)))

    def _each_column(self, *stmts: Stmt) -> Stmt:
        return For(COLUMN, self.vector, Block(stmts), LoopKind.UNROLL)

    def _read(self, unit: Expr, group: Expr) -> Iterator[Stmt]:
        """Read the words of an access of each column, and what belongs to their blocks."""
        own, product = self._own, self._own.product
        stretch, lane, number = group // self.lanes, group % self.lanes, ramp(const(0), own.words)
        index = unit // own.parts, unit % own.parts, stretch, Var(COLUMN), lane, number
        words = Load(words_name(product.numbers.name), index, I32)
        yield self._each_column(Store(WORDS, (Var(COPY), Var(COLUMN), number), words))
        beside = ramp(const(0), self.vector * own.spans)

        def read(tensor: Tensor) -> Expr:
            value = Load(tensor.name, (index[0], stretch, lane, beside), tensor.dtype)
            return op("cast", value, dtype=F32)

        yield Store(SCALES, (Var(COPY), beside), read(product.scales))
        if not isinstance(product.zeros, int):
            yield Store(ZEROS, (Var(COPY), beside), read(product.zeros) * const(-(2.0**-MISSING), F32))

    def _fold(self, block: Expr, part: Expr, number: int, row: Expr) -> Iterator[Stmt]:
        """Add what a block, of a number within an access, comes to."""
        own = self._own
        count = own.words // own.spans
        lanes, sums = ramp(const(0), own.word_numbers), ramp(const(0), self.vector)
        first = (part * own.words + Var(WORD)) * own.word_numbers
        total, result = (Load(name, (Var(ROW), Var(COLUMN)), F32) for name in (BLOCK_SUMS, SUMS))
        unpack = (
            Store(WEIGHTS, (Var(COLUMN), const(n)), self._weight(Var(WORD) + number * count, number, n))
            for n in range(own.word_numbers)
        )
        multiply = (Store(BLOCK_SUMS, total.index, self._multiply(n, total)) for n in range(own.word_numbers))
        of_row = Store(ACTIVATIONS, (lanes,), self._activations(row + Var(ROW), block, first))
        inside = self._each_column(*unpack), self._each_row(Block((of_row, self._each_column(*multiply))))
        scale = Load(SCALES, (Var(COPY), Var(COLUMN) * own.spans + number), F32)
        yield self._each_row(Store(BLOCK_SUMS, (Var(ROW), sums), const(0.0, F32)))
        yield For(WORD, count, Block(inside), LoopKind.UNROLL)
        # Of the scale, not of the sum, which could become infinite where the result is not.
        whole = scale * const(2.0**MISSING, F32)
        yield self._each_row(self._each_column(Store(SUMS, result.index, op("fma", whole, total, result))))

    def _activations(self, row: Expr, block: Expr, first: Expr) -> Expr:
        """What a word of a block is multiplied by, from the number `first` of the block on."""
        blocks, numbers = (axis.name for axis in self.fold.depth)
        at = {**axis_indices(self.fold.rows, row), blocks: block, numbers: first}
        return op("cast", vectorize_at(self._term.x, at, numbers, self._own.word_numbers), dtype=F32)

    def _multiply(self, number: int, total: Load) -> Expr:
        x, weight = Load(ACTIVATIONS, (const(number),), F32), Load(WEIGHTS, (Var(COLUMN), const(number)), F32)
        return op("fma", x, weight, total)

    def _weight(self, word: Expr, block: int, number: int) -> Expr:
        """A number of a word less the zero point of its block, both times 2^-MISSING."""
        bits, zeros = self._own.product.bits, self._own.product.zeros
        shift, packed = number * bits, Load(WORDS, (Var(COPY), Var(COLUMN), word), I32)
        moved: Expr = packed
        if shift + bits > EVEN_BITS:
            shift, moved = shift - EVEN_BITS, op("shr", packed, EVEN_BITS)
        value = op("bitcast", op("bitand", moved, (1 << bits) - 1 << shift), dtype=F32)
        if isinstance(zeros, int):
            zero: Expr = const(-zeros * 2.0**-MISSING, F32)
        else:
            zero = Load(ZEROS, (Var(COPY), Var(COLUMN) * self._own.spans + block), F32)
        return op("fma", value, const(2.0 ** (LARGEST - shift), F32), zero)

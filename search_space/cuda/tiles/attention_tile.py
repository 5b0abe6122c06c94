"""Attention tile: attention of narrow floats, with neither scores nor weights in memory.

    block                                batch, tile of rows
      thread
        queries = operand                into shared memory, once
        rounds along the keys            stages of them under way as asynchronous copies
          keys, values = operands        into shared memory
          barrier
          warp: scores = queries x keys  16 rows of a warp, by `mma`, finished in registers
                top, scale = ...         of each row: the largest so far, and the factor of the sums so far
                weights = exp(scores - top)
                sums = sums * scale + weights x values
        output = epilogue(sums / total)

A row is in the registers of four lanes, which reduce its values together. Of causal attention, rounds whose keys no row
of the block may see are left out.

Blocks may share the keys of a tile: each takes rounds in turn with the others, and writes what it has of the sums
(`attention_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, For, If, LoopKind, Scope, Stmt

from ...axes import axis_indices, unravel
from ...buffers import allocate
from ...patterns.attention import Attention
from .attention_parts import AttentionParts
from .block_tile import ROUND, overlap_rounds
from .online_softmax import EACH, SCORES, SUMS, OnlineSoftmax, is_seen
from .shared_tile import COLUMNS, PRODUCTS, ROWS, THREAD, SharedTile, product_depth, unroll, width
from .sides import (
    OperandTile,
    Sides,
    guard_extent,
    operands,
    size,
    steps,
)

DEPTH = product_depth(DType.F16)
"""Terms of a sum that one product adds."""


def pad_extent(extent: int) -> int:
    """The next power of two, as rows of shared memory are swizzled by bits."""
    return max(ROWS, 1 << (extent - 1).bit_length())


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Attention whose operands are of one narrow type, and the numbers of its launch."""

    attention: Attention
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    warps: int  # of a block, 16 rows each
    block_places: int  # of a round
    stages: int  # 2 or more
    splits: int = 1  # blocks that share the keys of a tile of rows

    @property
    def dtype(self) -> DType:
        return self.attention.scores.panel.dtype

    @property
    def block_rows(self) -> int:
        return ROWS * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def inner(self) -> int:
        """Terms of a score, as they lie in shared memory."""
        return pad_extent(size(Sides.of(self.attention.scores).depth))

    @property
    def columns(self) -> int:
        """Columns of the values, as they lie in shared memory."""
        return pad_extent(size(Sides.of(self.attention.context).columns))

    @property
    def rounds(self) -> int:
        """Rounds along the keys."""
        return -(-self.attention.key_axis.extent // self.block_places)

    @property
    def own_rounds(self) -> int:
        """Rounds of a block, at most."""
        return -(-self.rounds // self.splits)

    @property
    def parts(self) -> AttentionParts:
        """What blocks have that share the keys of a tile."""
        return AttentionParts(self.attention, self.splits)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        sides = Sides.of(self.attention.scores)
        counts = self.splits, size(sides.batch), steps(sides.rows, self.block_rows)
        part, batch, tile = unravel(Var("block"), counts)
        if self.splits == 1:
            part = const(0)
        row, softmax = tile * self.block_rows, self._softmax

        def copies(number: Expr) -> tuple[SharedTile, SharedTile, SharedTile]:
            return self._copies(batch, row, number * self.block_places)

        def fill(step: Expr, stage: Expr) -> Stmt:
            number = self._number(part, step)
            _, keys, values = copies(number)
            stmt = Block((keys.fill(const(0), stage), values.fill(number, stage)))
            return self._guard_round(number, row, stmt)

        def multiply(stage: Expr) -> Stmt:
            number = self._number(part, Var(ROUND))
            stmt = Block(tuple(self._round(copies(number), batch, row, number, stage)))
            return self._guard_round(number, row, stmt)

        rounds = overlap_rounds(const(0), self.own_rounds, self.stages, self.stages - 1, fill, multiply)
        queries, keys, values = copies(const(0))
        write = softmax.write(batch, row) if self.splits == 1 else self.parts.store(softmax, part, batch, row)
        body = Block((softmax.begin(), queries.fill(const(0), const(0)), *rounds, write))
        registers = (*softmax.registers, *self._registers())
        threads = For(THREAD, self.threads, allocate(registers, body), LoopKind.THREAD)
        shared = (*queries.buffers(1), *keys.buffers(self.stages), *values.buffers(self.stages))
        return For("block", prod(counts), allocate(shared, threads), LoopKind.BLOCK)

    def _number(self, part: Expr, step: Expr) -> Expr:
        """The number of the round that a block has at a step: those who share a tile take turns."""
        return step * self.splits + part

    def _guard_round(self, number: Expr, row: Expr, stmt: Stmt) -> Stmt:
        """Guard a statement to rounds that there are, of keys that a row from `row` on may see."""
        if self.attention.past is not None:
            stmt = If(is_seen(self.attention, row, self.block_rows, number * self.block_places), stmt)
        return guard_extent(number, self.rounds, self.splits, stmt)

    def _copies(self, batch: Expr, row: Expr, place: Expr) -> tuple[SharedTile, SharedTile, SharedTile]:
        """The copies of queries from a row on, of keys from a place on, and of values."""
        scores, context = self.attention.scores, self.attention.context
        (queries, keys), (_, values) = operands(scores), operands(context)
        of_scores, of_context = (axis_indices(Sides.of(product).batch, batch) for product in (scores, context))

        def copy(name: str, tile: OperandTile) -> SharedTile:
            return SharedTile(name, tile, is_left=name == "queries", wide=width(tile.operand, self.shapes))

        return (
            copy("queries", OperandTile(queries, row, self.block_rows, self.inner, of_scores, self.threads)),
            copy("keys", OperandTile(keys, place, self.block_places, self.inner, of_scores, self.threads)),
            copy("values", OperandTile(values, const(0), self.columns, self.block_places, of_context, self.threads)),
        )

    @property
    def _softmax(self) -> OnlineSoftmax:
        return OnlineSoftmax(self.attention, self.block_rows, self.block_places, self.columns)

    def _registers(self) -> Iterator[Buffer]:
        """The registers of a thread for the operands of one product."""
        yield Buffer("own_queries", (ROWS * DEPTH // WARP,), self.dtype, Scope.REGISTER)
        yield Buffer("own_keys", (2 * DEPTH * COLUMNS // WARP,), self.dtype, Scope.REGISTER)
        yield Buffer("own_values", (2 * DEPTH * COLUMNS // WARP,), self.dtype, Scope.REGISTER)

    def _round(
        self, copies: tuple[SharedTile, SharedTile, SharedTile], batch: Expr, row: Expr, number: Expr, stage: Expr
    ) -> Iterator[Stmt]:
        """What a block does with the keys and values of a round."""
        queries, keys, values = copies
        softmax = self._softmax
        yield from self._score(queries, keys, stage)
        yield softmax.complete_scores(batch, row, number)
        yield softmax.weigh()
        yield softmax.rescale_sums()
        yield softmax.round_weights()
        yield self._add_values(values, stage)

    def _score(self, queries: SharedTile, keys: SharedTile, stage: Expr) -> Iterator[Stmt]:
        """Multiply queries and keys."""
        pairs = self.block_places // (2 * COLUMNS)
        k, c, p = Var("k"), Var("c"), Var("p")
        left, right = (_whole(name, self.dtype) for name in ("own_queries", "own_keys"))
        total = Load(SCORES, (ramp((c * 2 + p) * EACH, EACH),), DType.F32)
        half = replace(right, index=(ramp(p * 4, 4),))
        products = unroll(Do(PRODUCTS[self.dtype, self.dtype], (total,), (left, half, total)), p=2)
        over = Block((keys.fragment(right, stage, c * 2 * COLUMNS, k * DEPTH), products))
        body = Block((queries.fragment(left, const(0), self._softmax.row, k * DEPTH), unroll(over, c=pairs)))
        yield self._softmax.clear_scores()
        yield unroll(body, k=self.inner // DEPTH)

    def _add_values(self, values: SharedTile, stage: Expr) -> Stmt:
        """Add the values, by their weights: two neighbouring products of scores are the left side of one."""
        j, c, p = (Var(name) for name in "jcp")
        left, right = self._softmax.weights(j), _whole("own_values", self.dtype)
        half = replace(right, index=(ramp(p * 4, 4),))
        total = Load(SUMS, (ramp((c * 2 + p) * EACH, EACH),), DType.F32)
        products = unroll(Do(PRODUCTS[self.dtype, self.dtype], (total,), (left, half, total)), p=2)
        body = Block((values.fragment(right, stage, c * 2 * COLUMNS, j * DEPTH), products))
        return unroll(body, j=self.block_places // DEPTH, c=self.columns // (2 * COLUMNS))


def _whole(name: str, dtype: DType) -> Load:
    """Eight registers of a fragment."""
    return Load(name, (ramp(const(0), 8),), dtype)

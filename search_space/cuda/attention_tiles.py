"""Attention tiles: attention of narrow floats as one launch on a GPU, with neither scores nor weights in memory.

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

A row is in the registers of four lanes, which reduce its values together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, For, Kernel, LoopKind, Scope, Stmt
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..axes import axis_indices, unravel
from ..buffers import allocate, params
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.attention import Attention, match_attention
from ..patterns.product import Product
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling
from .tiles.block_tile import ROUND, overlap_rounds
from .tiles.online_softmax import EACH, SCORES, SUMS, OnlineSoftmax
from .tiles.shared_tile import COLUMNS, PRODUCTS, ROWS, THREAD, SharedTile, product_depth, unroll, width
from .tiles.sides import (
    ADDRESS_REGISTERS,
    OperandTile,
    Sides,
    Sizes,
    accesses,
    first_legal,
    fits_multiprocessor,
    operands,
    size,
    steps,
    tiling,
)

MOST_INNER = 128
"""Terms of a score, and columns of the values: all of them are in registers."""

OTHER_REGISTERS = 64
"""Registers of a thread for counts, indices and values of rows."""

LEAST_ROWS = 16
"""Rows that a tile of one axis takes: those of a warp's product."""

DEFAULTS = (
    {"warps": 4, "block_places": 64, "stages": 2},
    {"warps": 4, "block_places": 32, "stages": 2},
    {"warps": 2, "block_places": 16, "stages": 2},
    {"warps": 1, "block_places": 16, "stages": 2},
)
"""The first that is legal is taken."""


@lru_cache(maxsize=256)
def match_narrow_attention(task: Task) -> Attention | None:
    """The task's attention, if all operands are of one type of narrow floats, and fit into registers.

    Of several axes of rows, as where heads share keys, only the last is one, if a tile's rows lie along it.
    """
    matched = match_attention(task)
    if matched is None:
        return None
    attention = Attention(_one_row_axis(matched.scores), _one_row_axis(matched.context))
    loads = attention.scores.broadcast, attention.scores.panel, attention.context.panel
    is_alike = len({load.dtype for load in loads}) == 1 and loads[0].dtype.is_narrow
    sizes = size(Sides.of(attention.scores).depth), size(Sides.of(attention.context).columns)
    return attention if is_alike and max(sizes) <= MOST_INNER else None


def query_rows(task: Task) -> int:
    """The queries of a head that share its keys, where a task is attention in one launch; 0 where it is none."""
    attention = match_narrow_attention(task)
    return 0 if attention is None else size(Sides.of(attention.scores).rows)


def _one_row_axis(product: Product) -> Product:
    *others, last = product.rows
    extent = product.fused_stage.stage.extents[last]
    return replace(product, rows=(last,), batch=(*product.batch, *others)) if extent >= LEAST_ROWS else product


class AttentionTilesSketch(PatternSketch[Attention]):
    """One launch for an attention, with tiles of warps."""

    name = "attention_tiles"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Attention | None:
        return match_narrow_attention(task)

    def offer(self, task: Task, attention: Attention, target: Target) -> Space:
        knobs = (
            Knob("warps", (1, 2, 4, 8)),
            Knob("block_places", (16, 32, 64, 128)),
            Knob("stages", (2, 3, 4)),
        )

        def legal(columns: Columns) -> NDArray[np.bool_]:
            return _legal(task, attention, target, columns)

        return self.space_of(
            knobs,
            legal=legal,
            tiling=lambda columns: _tiling(attention, columns),
            preferred=first_legal(DEFAULTS, legal),
            block=lambda columns: _block(task, attention, columns),
        )

    def write(self, task: Task, attention: Attention, schedule: Schedule, target: Target) -> Kernel:
        launch = AttentionTile(attention, input_shapes(task), **dict(schedule.values)).lower()
        return Kernel(params(task, {}), (), Block((launch,)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        warps, places, stages = (point.values[name] for name in ("warps", "block_places", "stages"))
        yield from point.say_start(
            "Attention in one launch on tensor cores: scores and weights are in registers, and nowhere else.",
            warps * WARP,
        )
        rows = f"{counted(ROWS * warps, 'row')} of scores, {ROWS} a warp"
        yield f"A block has {rows}, for {counted(places, 'key')} a round and as many values."
        yield f"What a round needs is copied {counted(stages - 1, 'round')} ahead."


def input_shapes(task: Task) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the tensors that are read, by name."""
    return {tensor.name: tensor.shape for tensor in task.inputs}


def _block(task: Task, attention: Attention, columns: Columns) -> BlockShape:
    warps, block, stages = columns["warps"], columns["block_places"], columns["stages"]
    sides = Sides.of(attention.scores)
    inner, outer = pad_extent(size(sides.depth)), pad_extent(size(Sides.of(attention.context).columns))
    threads, rows = WARP * warps, ROWS * warps
    smem_bytes = attention.scores.panel.dtype.size_bytes * (rows * inner + stages * block * (inner + outer))
    shapes = input_shapes(task)
    keys, values = operands(attention.scores)[1], operands(attention.context)[1]
    copies = accesses(block, np.full_like(block, inner), width(keys, shapes), threads)
    copies = copies + accesses(block, np.full_like(block, outer), width(values, shapes), threads)
    registers = block // 2 + outer // 2 + block // 4 + ADDRESS_REGISTERS * copies + OTHER_REGISTERS
    return BlockShape(threads, registers, smem_bytes, on_tensor_cores=True)


def _legal(task: Task, attention: Attention, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within shared memory and registers, and no tile that is mostly beyond the edges."""
    warps, block = columns["warps"], columns["block_places"]
    legal = fits_multiprocessor(target, _block(task, attention, columns))
    legal &= (warps == 1) | (ROWS * warps < 2 * size(Sides.of(attention.scores).rows))
    return np.asarray(legal & ((block == DEPTH) | (block < 2 * attention.key_axis.extent)))


def _tiling(attention: Attention, columns: Columns) -> Tiling:
    """The tiling of the second product: 16 rows of a warp, the rows of a block, all keys."""
    width = pad_extent(size(Sides.of(attention.context).columns))
    return attention_tiling(attention, columns, ROWS, columns["warps"], width, DEPTH)


def attention_tiling(
    attention: Attention, columns: Columns, rows: int, groups: Sizes, width: int, depth: int
) -> Tiling:
    """The tiling of the second product: `rows` of each of the groups of a block, all its columns, all keys."""
    whole = np.full_like(groups, width)
    blocks = {
        "block_rows": rows * groups,
        "block_columns": whole,
        "block_depth": columns["block_places"],
        "splits": np.ones_like(groups),
    }
    return tiling(attention.context, blocks, (np.full_like(groups, rows), whole, np.full_like(groups, depth)))


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

    def lower(self) -> Stmt:
        """The loops of the launch."""
        sides = Sides.of(self.attention.scores)
        counts = size(sides.batch), steps(sides.rows, self.block_rows)
        batch, tile = unravel(Var("block"), counts)
        row, softmax = tile * self.block_rows, self._softmax

        def copies(step: Expr) -> tuple[SharedTile, SharedTile, SharedTile]:
            return self._copies(batch, row, step * self.block_places)

        def fill(step: Expr, stage: Expr) -> Stmt:
            _, keys, values = copies(step)
            return Block((keys.fill(const(0), stage), values.fill(step, stage)))

        def multiply(stage: Expr) -> Stmt:
            return Block(tuple(self._round(copies(Var(ROUND)), batch, row, stage)))

        rounds = overlap_rounds(const(0), self.rounds, self.stages, self.stages - 1, fill, multiply)
        queries, keys, values = copies(const(0))
        body = Block((softmax.begin(), queries.fill(const(0), const(0)), *rounds, softmax.write(batch, row)))
        registers = (*softmax.registers, *self._registers())
        threads = For(THREAD, self.threads, allocate(registers, body), LoopKind.THREAD)
        shared = (*queries.buffers(1), *keys.buffers(self.stages), *values.buffers(self.stages))
        return For("block", prod(counts), allocate(shared, threads), LoopKind.BLOCK)

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
        self, copies: tuple[SharedTile, SharedTile, SharedTile], batch: Expr, row: Expr, stage: Expr
    ) -> Iterator[Stmt]:
        """What a block does with the keys and values of a round."""
        queries, keys, values = copies
        softmax = self._softmax
        yield from self._score(queries, keys, stage)
        yield softmax.complete_scores(batch, row, Var(ROUND))
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

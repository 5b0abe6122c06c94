"""Block matmul: few rows by weights of four or eight bits, read from memory as they are, unpacked in registers.

sums of x over each block            a phase of its own
parallel tile                        of columns, along the lanes
  rows
    acc = 0
    block
      part = 0
      place                          a byte has a number of either half of the block
        part += x of the first half * low bits, + x of the second * high bits
      acc += scale * (part - zero point * sum of x)
    output = epilogue(acc)

Where activations are rounded to bytes, a place is a word of four bytes of a column, multiplied by four of x at
once, and parts are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, op, substitute, transform
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import (
    Alloc,
    AxisMatrix,
    Block,
    Buffer,
    For,
    If,
    Kernel,
    LoopKind,
    Packing,
    Prefetch,
    Scope,
    Stmt,
    Store,
    words_name,
    words_of,
)
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..axes import balance, runs
from ..buffers import buffer, kernel_around, own_buffer
from ..description import SchedulePoint
from ..patterns.block_matmul import BlockMatMul, match_block_matmul
from ..patterns.fused_stage import FusedStage
from ..patterns.product import LINE, PREFETCH_BYTES, is_prefetch_worthwhile
from ..registers import ACC, INNER
from ..schedule import Schedule
from ..sketch import PREFETCH, PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .contraction import write_phase
from .loops.blocking import tiling
from .loops.tile import read_whole

PART, SUMS = ".part", "sums"
COLUMN = "column" + INNER

F32 = DType.F32

LOW_HALVES = 0x0F0F0F0F
"""The lower four bits of each byte of a word."""


class BlockMatMulSketch(PatternSketch[BlockMatMul]):
    """A product of few rows with weights of few bits."""

    name = "block_matmul"
    version = 1

    def recognise(self, task: Task, target: Target) -> BlockMatMul | None:
        product = match_block_matmul(task)
        return product if product and product.numbers.shape[0] >= target.lanes(4) else None

    def offer(self, task: Task, product: BlockMatMul, target: Target) -> Space:
        most = -(-product.numbers.shape[0] // target.lanes(4))
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= most)),
            Knob("rows", tuple(range(1, min(product.rows, 4) + 1))),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if product.places // product.together % n == 0)),
            Knob("ahead", (0, 1), PREFETCH),
        )
        preferred = {"vectors": 4 if target.vector_registers > 16 else 2, "rows": 1, "unroll": 4}
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(product, target, columns),
            tiling=lambda columns: _tiling(product, target, columns),
            preferred=preferred | {"ahead": int(is_prefetch_worthwhile(target))},
        )

    def write(self, task: Task, product: BlockMatMul, schedule: Schedule, target: Target) -> Kernel:
        lanes, columns = target.lanes(4), product.numbers.shape[0]
        width = schedule["vectors"] * lanes
        tiles = -(-columns // width)
        blocks, places = product.blocks, product.places
        lines = Packing((0, 1), (tiles * width, blocks), ((tiles, width), (blocks,)), (0, 2, 1))
        packings = {
            product.numbers.name: Packing(
                order=(0, 1, 2),
                padded=(tiles * width, blocks, places),
                splits=((tiles, width), (blocks,), (places // product.together, product.together)),
                parts=(0, 2, 3, 1, 4),
                maps=_pairs(places) if product.halves > 1 else (),
                joined=2,
            ),
            product.scales.name: lines,
        }
        if not isinstance(product.zeros, int):
            packings[product.zeros.name] = lines
        numbers = Buffer(product.numbers.name, packings[product.numbers.name].shape, DType.U8)
        words = (words_of(numbers), words_of(buffer(product.x))) if product.x_scales else ()
        is_early = bool(schedule["ahead"])
        tile = (_ByteTile if words else _Tile)(product, schedule["vectors"], lanes, schedule["unroll"], is_early)
        main = For("tile", tiles, tile.rows(schedule["rows"]), LoopKind.PARALLEL)
        sums = _sums(product)
        stages = (*product.before, sums), product.fused_stage, product.after
        phase = partial(write_phase, target=target)
        return replace(kernel_around((main,), task, stages, phase, packings, (own_buffer(sums),)), words=words)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("A product of few rows with weights of few bits, unpacked in registers.")
        if point.kernel.words:
            yield "Activations are bytes, with a scale for each block; the products within a block are exact."
        yield from point.say_tile(point.tiles[0])
        yield from point.say_copies(point.tiles[0])


def _pairs(places: int) -> tuple[tuple[int, AxisMatrix], ...]:
    """How numbers of both halves of a block are joined in bytes."""
    matrix = np.concatenate([np.eye(places), 16 * np.eye(places)], axis=1)
    return ((2, tuple(map(tuple, matrix.tolist()))),)


def _legal(product: BlockMatMul, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers: both sums of each row, the numbers of both halves, and constants of products of bytes."""
    rows, vectors, constants = columns["rows"], columns["vectors"], 2 if product.x_scales else 0
    return np.asarray(2 * rows * vectors + 2 * vectors + 1 + constants <= target.vector_registers)


def _tiling(product: BlockMatMul, target: Target, columns: Columns) -> Tiling:
    tile = {product.column: columns["vectors"] * target.lanes(4)}
    block = {product.column: np.ones_like(columns["vectors"])}
    if product.row:
        tile[product.row], block[product.row] = columns["rows"], np.zeros_like(columns["rows"])
    return tiling(product.fused_stage.stage, product.column, tile, block, columns["unroll"])


def _sums(product: BlockMatMul) -> FusedStage:
    """The sum of each block of each row: [rows, blocks]."""
    names = ("row", "block", "place")[-len(product.x.shape) :]
    *spatial, reduced = (Axis(name, extent) for name, extent in zip(names, product.x.shape, strict=True))
    body = op("cast", Load(product.x.name, tuple(map(Var, names)), product.x.dtype), dtype=F32)
    return FusedStage.of(Stage(SUMS, tuple(spatial), body, (reduced,), "sum"))


class _Tile:
    """The columns of one tile, `vectors` along the lanes."""

    part_dtype = F32

    def __init__(self, product: BlockMatMul, vectors: int, lanes: int, unroll: int, is_early: bool) -> None:
        self._product, self._lanes, self._unroll = product, lanes, unroll
        self._bases = [vector * lanes for vector in range(vectors)]
        self._width = vectors * lanes
        self._ahead = -(-PREFETCH_BYTES // (self._width * product.places)) if is_early else 0  # in blocks

    def rows(self, most: int) -> Stmt:
        """All rows, so many at a time at most."""
        steps: list[Stmt] = []
        for run in runs(self._product.rows, balance(self._product.rows, most)):
            first = Var("row.tile") * run.size + run.offset if run.count > 1 else const(run.start)
            body = self._tile(run.size, first)
            loop = For("row.tile", run.count, body) if run.count > 1 else body
            steps.append(loop if run.first == 0 or run.count == 1 else _from(run.first, run.count, body))
        return Block(tuple(steps))

    def _tile(self, rows: int, first: Expr) -> Stmt:
        acc = Buffer(ACC, (rows, self._width), F32, Scope.REGISTER)
        part = Buffer(PART, (rows, self._width), self.part_dtype, Scope.REGISTER)
        blocks, places = self._product.blocks, self._product.places // self._product.together
        place = Var("place") * self._unroll if places > self._unroll else const(0)
        fold = Block(tuple(step for copy in range(self._unroll) for step in self._fold(rows, first, place + copy)))
        loop: Stmt = For("place", places // self._unroll, fold) if places > self._unroll else fold
        inner = Alloc(part, Block((*self._clear(part), loop, *self._join(rows, first))))
        steps = (*self._clear(acc), For("block", blocks, inner), *self._finish(rows, first))
        return Alloc(acc, Block(steps))

    def _at(self, name: str, row: int, base: int) -> Load:
        dtype = self.part_dtype if name == PART else F32
        return Load(name, (const(row), self._lane(base)), dtype)

    def _load(self, name: str, row: Expr, *index: Expr, dtype: DType = F32) -> Load:
        """An element of a row."""
        return Load(name, (row, *index) if self._product.row else index, dtype)

    def _lane(self, base: int) -> Expr:
        return Ramp(const(base), self._lanes)

    def _clear(self, sums: Buffer) -> Iterator[Stmt]:
        for row in range(sums.shape[0]):
            for base in self._bases:
                yield Store(sums.name, (const(row), self._lane(base)), const(0, sums.dtype))

    def _fold(self, rows: int, first: Expr, place: Expr) -> Iterator[Stmt]:
        """The products of the numbers in a place of each column."""
        product = self._product
        for line in range(0, self._width * product.together if self._ahead else 0, F32.size_bytes * LINE):
            yield Prefetch(product.numbers.name, (Var("tile"), Var("block") + self._ahead, place, const(line)))
        for base in self._bases:
            for half, weight in enumerate(self._weights((Var("tile"), Var("block"), place, self._lane(base)))):
                for row in range(rows):
                    total = self._at(PART, row, base)
                    at = place + half * (product.places // product.together)
                    yield Store(PART, total.index, self._multiply(weight, first + row, at, total))

    def _weights(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The numbers of a place: of both halves of a block, or of the whole."""
        number = op("cast", Load(self._product.numbers.name, index, DType.U8), dtype=DType.I32)
        halves = (number,) if self._product.halves == 1 else (op("mod", number, 16), op("floordiv", number, 16))
        return tuple(op("cast", bits, dtype=F32) for bits in halves)

    def _multiply(self, weight: Expr, row: Expr, place: Expr, total: Expr) -> Expr:
        return op("fma", self._load(self._product.x.name, row, Var("block"), place), weight, total)

    def _scale(self, scale: Expr, row: Expr) -> Expr:
        """The scale of a block's sum."""
        return scale

    def _join(self, rows: int, first: Expr) -> Iterator[Stmt]:
        """Add the sums of a block to the results, scaled."""
        product = self._product
        for base in self._bases:
            index = Var("tile"), Var("block"), self._lane(base)
            scale = op("cast", Load(product.scales.name, index, product.scales.dtype), dtype=F32)
            zero = self._zero(index)
            for row in range(rows):
                total = self._load(SUMS, first + row, Var("block"))
                acc, part = self._at(ACC, row, base), op("cast", self._at(PART, row, base), dtype=F32)
                value = op("fma", self._scale(scale, first + row), part - zero * total, acc)
                yield Store(ACC, acc.index, value)

    def _zero(self, index: tuple[Expr, ...]) -> Expr:
        zeros = self._product.zeros
        if isinstance(zeros, int):
            return const(zeros, F32)
        return op("cast", Load(zeros.name, index, zeros.dtype), dtype=F32)

    def _finish(self, rows: int, first: Expr) -> Iterator[Stmt]:
        """Write the results: of the last tile as many as there are columns."""
        columns = self._product.numbers.shape[0]
        whole, rest = divmod(columns, self._width)
        full = Block(tuple(self._write(rows, first, self._width)))
        if whole:
            yield If(op("lt", Var("tile"), whole), full) if rest else full
        if rest:
            last = Block(tuple(self._write(rows, first, rest)))
            yield If(op("eq", Var("tile"), whole), last) if whole else last

    def _write(self, rows: int, first: Expr, columns: int) -> Iterator[Stmt]:
        product, fused_stage = self._product, self._product.fused_stage
        for row in range(rows):
            places = {product.row: first + row, product.column: Var("tile") * self._width + Var(COLUMN)}
            result = Load(ACC, (const(row), Var(COLUMN)), F32)
            value = fused_stage.apply_epilogue(result)
            value, *index = (substitute(e, places) for e in (value, *fused_stage.index))
            for base in self._bases:
                used = min(columns - base, self._lanes)
                if used <= 0:
                    break
                count = used if used < self._lanes else None
                vector, *at = (vectorize(e, COLUMN, const(base), self._lanes, count) for e in (value, *index))
                is_vector = any(e.lanes > 1 for e in at)
                yield Store(fused_stage.output, tuple(at), transform(vector, read_whole), count if is_vector else None)


class _ByteTile(_Tile):
    """One of activations that are rounded to bytes: numbers and activations are read as words of four."""

    part_dtype = DType.I32

    def _weights(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        number = Load(words_name(self._product.numbers.name), index, DType.I32)
        if self._product.halves == 1:
            return (number,)
        return op("bitand", number, LOW_HALVES), op("bitand", op("shr", number, 4), LOW_HALVES)

    def _multiply(self, weight: Expr, row: Expr, place: Expr, total: Expr) -> Expr:
        x = self._load(words_name(self._product.x.name), row, Var("block"), place, dtype=DType.I32)
        return op("dot4" if self._product.halves == 1 else "dot4_small", weight, x, total)

    def _scale(self, scale: Expr, row: Expr) -> Expr:
        x_scales = self._product.x_scales
        assert x_scales is not None
        return scale * self._load(x_scales.name, row, Var("block"))


def _from(first: int, count: int, body: Stmt) -> Stmt:
    """A loop over tiles of rows behind others."""
    return For("row.tile", first + count, If(op("le", const(first), Var("row.tile")), body))

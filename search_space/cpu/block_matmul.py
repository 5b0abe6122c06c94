"""Block matmul: rows by weights of four or eight bits, read from memory as they are, unpacked in registers.

sums of x over each block            a phase of its own, unless zero points are 0
parallel chunk                       a tile of columns, along the lanes, and a chunk of tiles of rows
  row.tile
    acc = 0
    block
      part = 0, or what one zero point of all takes from the sum
      place                          a byte has a number of either half of the block
        part += x of the first half * low bits, + x of the second * high bits
      acc += scale * part, less zero point * sum of x where zero points differ
    output = epilogue(acc)

Where activations are rounded to bytes, a place is a word of four bytes of a column, multiplied by four of x at
once, and parts are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

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
    replace_variables,
    words_name,
    words_of,
)
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..axes import TileRun, balance, runs, unravel
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
from .loops.chunks import CHUNK, TileAxis
from .loops.lower import only_run
from .loops.tile import read_whole

PART, OFFSETS = ".part", "offsets"
COLUMN = "column" + INNER

F32 = DType.F32

ROWS = (1, 2, 3, 4, 6, 8, 12)

FEW_ROWS = 16
"""Up to so many are one chunk."""

CHUNK_ROWS = (16, 32, 64, 128, 256, 512, 1024)
THREAD_ROWS = "The rows that a thread computes of a tile of columns, whose weights stay in its caches."

LOW_HALVES = 0x0F0F0F0F
"""The lower four bits of each byte of a word."""


class BlockMatMulSketch(PatternSketch[BlockMatMul]):
    """A product with weights of few bits."""

    name = "block_matmul"
    version = 2

    def recognise(self, task: Task, target: Target) -> BlockMatMul | None:
        product = match_block_matmul(task)
        if product is None or product.x.dtype.is_narrow or not product.is_plain:
            return None
        return product if product.numbers.shape[0] >= target.lanes(4) else None

    def offer(self, task: Task, product: BlockMatMul, target: Target) -> Space:
        most = -(-product.numbers.shape[0] // target.lanes(4))
        knobs: tuple[Knob, ...] = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= most)),
            Knob("rows", tuple(n for n in ROWS if n <= product.rows)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if product.places // product.together % n == 0)),
            Knob("ahead", (0, 1), PREFETCH),
        )
        if product.rows > FEW_ROWS:
            knobs = (*knobs, Knob("chunk_rows", tuple(n for n in CHUNK_ROWS if n <= product.rows), THREAD_ROWS))
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(product, target, columns),
            tiling=lambda columns: _tiling(product, target, columns),
            preferred=_preferred(product, target),
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
        main = tile.chunks(tiles, schedule["rows"], schedule["chunk_rows"] if product.rows > FEW_ROWS else product.rows)
        own = [] if product.zeros == 0 else [_offsets(product)]
        stages = (*product.before, *own), product.fused_stage, product.after
        phase = partial(write_phase, target=target)
        return replace(kernel_around((main,), task, stages, phase, packings, tuple(map(own_buffer, own))), words=words)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("A product with weights of few bits, unpacked in registers.")
        if point.kernel.words:
            yield "Activations are bytes, with a scale for each block; the products within a block are exact."
        yield from point.say_tile(point.tiles[0])
        yield from point.say_copies(point.tiles[0])
        yield from point.say_chunk_of_tiles(point.tiles[0])


def _pairs(places: int) -> tuple[tuple[int, AxisMatrix], ...]:
    """How numbers of both halves of a block are joined in bytes."""
    matrix = np.concatenate([np.eye(places), 16 * np.eye(places)], axis=1)
    return ((2, tuple(map(tuple, matrix.tolist()))),)


def _legal(product: BlockMatMul, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers: both sums of each row, the numbers of both halves, and constants of products of bytes."""
    rows, vectors, constants = columns["rows"], columns["vectors"], 2 if product.x_scales else 0
    return np.asarray(2 * rows * vectors + 2 * vectors + 1 + constants <= target.vector_registers)


def _preferred(product: BlockMatMul, target: Target) -> dict[str, int]:
    """Many columns at a time of one row; of several rows tiles in which they share what is unpacked."""
    vectors, is_early = 4 if target.vector_registers > 16 else 2, is_prefetch_worthwhile(target)
    if product.rows > 1:
        vectors, is_early = vectors // 2, is_early and product.rows <= FEW_ROWS
    values = {"vectors": vectors, "rows": min(product.rows, 4), "unroll": 4, "ahead": int(is_early)}
    return values | ({"chunk_rows": 128} if product.rows > FEW_ROWS else {})


def _tiles_inside(product: BlockMatMul, most_rows: Any, chunk_rows: Any) -> Any:
    """Tiles of rows in a chunk, of numbers or of columns of them: all where a chunk has all rows."""
    total = -(-product.rows // most_rows)
    size = -(-product.rows // total)
    return np.where(chunk_rows >= product.rows, total, np.clip(chunk_rows // size, 1, total))


def _tiling(product: BlockMatMul, target: Target, columns: Columns) -> Tiling:
    tile = {product.column: columns["vectors"] * target.lanes(4)}
    block = {product.column: np.ones_like(columns["vectors"])}
    if product.row:
        tile[product.row] = columns["rows"]
        chunk_rows = columns.get("chunk_rows", np.full_like(columns["rows"], product.rows))
        block[product.row] = _tiles_inside(product, columns["rows"], chunk_rows)
    return tiling(product.fused_stage.stage, product.column, tile, block, columns["unroll"])


def _offsets(product: BlockMatMul) -> FusedStage:
    """What zero points take from each block of each row: the sum of x, times the negative of one that all have."""
    names = ("row", "block", "place")[-len(product.x.shape) :]
    *spatial, reduced = (Axis(name, extent) for name, extent in zip(names, product.x.shape, strict=True))
    is_one = isinstance(product.zeros, int)
    dtype = DType.I32 if is_one and product.x_scales else F32
    body = op("cast", Load(product.x.name, tuple(map(Var, names)), product.x.dtype), dtype=dtype)
    if isinstance(product.zeros, int):
        body = body * const(-product.zeros, dtype)
    return FusedStage.of(Stage(OFFSETS, tuple(spatial), body, (reduced,), "sum"))


class _Tile:
    """The columns of one tile, `vectors` along the lanes."""

    part_dtype = F32

    def __init__(self, product: BlockMatMul, vectors: int, lanes: int, unroll: int, is_early: bool) -> None:
        self._product, self._lanes, self._unroll = product, lanes, unroll
        self._bases = [vector * lanes for vector in range(vectors)]
        self._width = vectors * lanes
        self._ahead = -(-PREFETCH_BYTES // (self._width * product.places)) if is_early else 0  # in blocks

    def chunks(self, tiles: int, most_rows: int, chunk_rows: int) -> Stmt:
        """All tiles of columns, by chunks of so many rows at most, in tiles of rows of `most_rows` at most."""
        tile_runs = runs(self._product.rows, balance(self._product.rows, most_rows))
        total = sum(run.count for run in tile_runs)
        inside = int(_tiles_inside(self._product, np.int64(most_rows), np.int64(chunk_rows)))
        along = TileAxis(total, 1, inside)
        column, chunk = unravel(Var(CHUNK), (tiles, along.chunks))
        number = along.number(chunk, "row.tile")
        bodies = [only_run(number, run, along.slots, self._rows_of(run, number)) for run in tile_runs]
        body = along.loop("row.tile", Block(tuple(bodies)) if len(bodies) > 1 else bodies[0])
        return For(CHUNK, tiles * along.chunks, replace_variables(body, {"tile": column}), LoopKind.PARALLEL)

    def _rows_of(self, run: TileRun, number: Expr) -> Stmt:
        return self._tile(run.size, const(run.start) if run.count == 1 else number * run.size + run.offset)

    def _tile(self, rows: int, first: Expr) -> Stmt:
        acc = Buffer(ACC, (rows, self._width), F32, Scope.REGISTER)
        part = Buffer(PART, (rows, self._width), self.part_dtype, Scope.REGISTER)
        blocks, places = self._product.blocks, self._product.places // self._product.together
        place = Var("place") * self._unroll if places > self._unroll else const(0)
        fold = Block(tuple(step for copy in range(self._unroll) for step in self._fold(rows, first, place + copy)))
        loop: Stmt = For("place", places // self._unroll, fold) if places > self._unroll else fold
        inner = Alloc(part, Block((*self._begin(part, first), loop, *self._join(rows, first))))
        zeros = (
            Store(ACC, self._at(ACC, row, base).index, const(0, F32)) for row in range(rows) for base in self._bases
        )
        steps = (*zeros, For("block", blocks, inner), *self._finish(rows, first))
        return Alloc(acc, Block(steps))

    def _at(self, name: str, row: int, base: int) -> Load:
        dtype = self.part_dtype if name == PART else F32
        return Load(name, (const(row), self._lane(base)), dtype)

    def _load(self, name: str, row: Expr, *index: Expr, dtype: DType = F32) -> Load:
        """An element of a row."""
        return Load(name, (row, *index) if self._product.row else index, dtype)

    def _lane(self, base: int) -> Expr:
        return Ramp(const(base), self._lanes)

    def _begin(self, part: Buffer, first: Expr) -> Iterator[Stmt]:
        """A block's sums begin with what the zero point takes from them, where all have one."""
        is_one = isinstance(self._product.zeros, int) and self._product.zeros
        for row in range(part.shape[0]):
            start = self._load(OFFSETS, first + row, Var("block"), dtype=part.dtype) if is_one else const(0, part.dtype)
            for base in self._bases:
                yield Store(PART, self._at(PART, row, base).index, start)

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
            for row in range(rows):
                acc, part = self._at(ACC, row, base), op("cast", self._at(PART, row, base), dtype=F32)
                if not isinstance(product.zeros, int):
                    zero = op("cast", Load(product.zeros.name, index, product.zeros.dtype), dtype=F32)
                    part = part - zero * self._load(OFFSETS, first + row, Var("block"))
                yield Store(ACC, acc.index, op("fma", self._scale(scale, first + row), part, acc))

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

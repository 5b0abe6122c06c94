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
"""

from __future__ import annotations

from collections.abc import Iterator
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
)
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..axes import balance, runs
from ..buffers import kernel_around, own_buffer
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
            Knob("unroll", tuple(n for n in (1, 2, 4, 8) if product.places % n == 0)),
            Knob("ahead", (0, 1), PREFETCH),
        )
        preferred = {"vectors": 4 if target.vector_registers > 16 else 2, "rows": 1, "unroll": 4}
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(target, columns),
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
                splits=((tiles, width), (blocks,), (places,)),
                parts=(0, 2, 3, 1),
                maps=_pairs(places) if product.halves > 1 else (),
            ),
            product.scales.name: lines,
            product.zeros.name: lines,
        }
        tile = _Tile(product, schedule["vectors"], lanes, schedule["unroll"], bool(schedule["ahead"]))
        main = For("tile", tiles, tile.rows(schedule["rows"]), LoopKind.PARALLEL)
        sums = _sums(product)
        stages = (*product.before, sums), product.fused_stage, product.after
        return kernel_around((main,), task, stages, partial(write_phase, target=target), packings, (own_buffer(sums),))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("A product of few rows with weights of few bits, unpacked in registers.")
        yield from point.say_tile(point.tiles[0])
        yield from point.say_copies(point.tiles[0])


def _pairs(places: int) -> tuple[tuple[int, AxisMatrix], ...]:
    """How numbers of both halves of a block are joined in bytes."""
    matrix = np.concatenate([np.eye(places), 16 * np.eye(places)], axis=1)
    return ((2, tuple(map(tuple, matrix.tolist()))),)


def _legal(target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers: both sums of each row, and the numbers of both halves."""
    rows, vectors = columns["rows"], columns["vectors"]
    return np.asarray(2 * rows * vectors + 2 * vectors + 1 <= target.vector_registers)


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
    body = Load(product.x.name, tuple(map(Var, names)), F32)
    return FusedStage.of(Stage(SUMS, tuple(spatial), body, (reduced,), "sum"))


class _Tile:
    """The columns of one tile, `vectors` along the lanes."""

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
        acc, part = (Buffer(name, (rows, self._width), F32, Scope.REGISTER) for name in (ACC, PART))
        blocks, places = self._product.blocks, self._product.places
        place = Var("place") * self._unroll if places > self._unroll else const(0)
        fold = Block(tuple(step for copy in range(self._unroll) for step in self._fold(rows, first, place + copy)))
        loop: Stmt = For("place", places // self._unroll, fold) if places > self._unroll else fold
        inner = Alloc(part, Block((*self._clear(PART, rows), loop, *self._join(rows, first))))
        steps = (*self._clear(ACC, rows), For("block", blocks, inner), *self._finish(rows, first))
        return Alloc(acc, Block(steps))

    def _at(self, name: str, row: int, base: int) -> Load:
        return Load(name, (const(row), self._lane(base)), F32)

    def _load(self, name: str, row: Expr, *index: Expr) -> Load:
        """An element of a row."""
        return Load(name, (row, *index) if self._product.row else index, F32)

    def _lane(self, base: int) -> Expr:
        return Ramp(const(base), self._lanes)

    def _clear(self, name: str, rows: int) -> Iterator[Stmt]:
        for row in range(rows):
            for base in self._bases:
                yield Store(name, self._at(name, row, base).index, const(0.0))

    def _fold(self, rows: int, first: Expr, place: Expr) -> Iterator[Stmt]:
        """The products of one byte of each column."""
        product = self._product
        for line in range(0, self._width if self._ahead else 0, F32.size_bytes * LINE):
            yield Prefetch(product.numbers.name, (Var("tile"), Var("block") + self._ahead, place, const(line)))
        for base in self._bases:
            index = Var("tile"), Var("block"), place, self._lane(base)
            number = op("cast", Load(product.numbers.name, index, DType.U8), dtype=DType.I32)
            halves = (number,) if product.halves == 1 else (op("mod", number, 16), op("floordiv", number, 16))
            for part, bits in enumerate(halves):
                weight = op("cast", bits, dtype=F32)
                for row in range(rows):
                    x = self._load(product.x.name, first + row, Var("block"), place + part * product.places)
                    total = self._at(PART, row, base)
                    yield Store(PART, total.index, op("fma", x, weight, total))

    def _join(self, rows: int, first: Expr) -> Iterator[Stmt]:
        """Add the sums of a block to the results, scaled."""
        product = self._product
        for base in self._bases:
            index = Var("tile"), Var("block"), self._lane(base)
            scale = Load(product.scales.name, index, F32)
            zero = op("cast", Load(product.zeros.name, index, DType.U8), dtype=F32)
            for row in range(rows):
                total = self._load(SUMS, first + row, Var("block"))
                acc = self._at(ACC, row, base)
                value = op("fma", scale, self._at(PART, row, base) - zero * total, acc)
                yield Store(ACC, acc.index, value)

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


def _from(first: int, count: int, body: Stmt) -> Stmt:
    """A loop over tiles of rows behind others."""
    return For("row.tile", first + count, If(op("le", const(first), Var("row.tile")), body))

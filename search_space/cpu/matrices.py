"""Matrices: small numbers by known ones in matrix registers, Intel's AMX.

Unsigned by signed bytes, whose sums are words, or bfloat16 by such, whose sums are float32.

parallel chunk                       of tiles of rows and columns
  tile                               several registers down and across, of up to 16 rows by 16 columns
    sums = 0
    reduction                        64 bytes a step, as many as divide it
      load registers of rows, and of packed weights
      multiply each by each
    memory = sums
    output = epilogue(memory)

A register has rows along the last of their axes; where all of them fit, those of a tile lie along the axis before. All
are of one size, as the registers have one shape for a kernel. So the last ones begin earlier where rows are left, and
write those alone that no other does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import WORD_BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op, substitute
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    Do,
    For,
    If,
    Kernel,
    LoopKind,
    Scope,
    Stmt,
    Store,
)
from tunewright.codegen.ir.matrix import COLUMN, MOST_ROWS, MOST_WORDS, REGISTERS, ROW, SUM_TYPES
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..axes import unravel
from ..description import SchedulePoint
from ..patterns.dot import match_bf16_dot, match_dot
from ..patterns.product import Product
from ..patterns.vector_axis import is_contiguous
from ..registers import INNER, TILE, TOTAL
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .loops.blocking import block_choices, tiling
from .loops.chunks import CHUNK, TileAxis
from .packed_dot import BF16_PAIRS, EXACT_BYTES, PackedDot

SUMS, LEFT, RIGHT = ".sums", ".left", ".right"
"""Matrix registers: sums, rows of the operand, columns of the weights."""

DOTS = {dtype: name for name, dtype in SUM_TYPES.items()}
"""What multiplies registers, by the type of the sums."""

LEAST_ROWS = 4
"""Rows below which most of a register would be idle."""

LEAST_WORDS = 4
"""Words of a step of the reduction below which there is nothing to gain."""

MOST_DOWN, MOST_ACROSS = 3, 3
"""Registers of a tile in each direction."""

BLOCK_PART = 4
"""Part of the second-level cache that the rows of a chunk may take."""


class MatricesSketch(PatternSketch[Product]):
    """Tiles of one product of bytes, or with `dtype` BF16 of such, in matrix registers."""

    def __init__(self, dtype: DType = DType.U8) -> None:
        self._dtype = dtype
        self.name, self.version = "bf16_matrices" if dtype is DType.BF16 else "byte_matrices", 1

    def recognise(self, task: Task, target: Target) -> Product | None:
        if not target.has_matrices_of(self._dtype):
            return None
        product = (match_bf16_dot if self._dtype is DType.BF16 else match_dot)(task, is_padded=True)
        if product is None or not product.rows:
            return None
        is_large = product.extent(product.rows[-1]) >= LEAST_ROWS and product.extent(product.vector) >= MOST_WORDS
        is_written_along = is_contiguous(product.fused_stage.index, product.vector)
        return product if is_large and is_written_along and _step(product) >= LEAST_WORDS else None

    def offer(self, task: Task, product: Product, target: Target) -> Space:
        registers, columns = _registers(product), product.extent(product.vector)
        down = tuple(range(1, min(registers, MOST_DOWN) + 1))
        across = tuple(range(1, min(-(-columns // MOST_WORDS), MOST_ACROSS) + 1))
        knobs = (
            Knob("tile", down),
            Knob("vectors", across),
            Knob("block_rows", block_choices(registers)),
            Knob("block_columns", block_choices(-(-columns // MOST_WORDS))),
            Knob("columns_inside", (0, 1)),
        )
        preferred = {"tile": min(2, down[-1]), "vectors": min(2, across[-1]), "columns_inside": 0}
        return self.space_of(
            knobs,
            legal=lambda values: _legal(product, values),
            tiling=lambda values: _tiling(product, values),
            preferred=preferred | _default_blocks(product, target, preferred),
        )

    def write(self, task: Task, product: Product, schedule: Schedule, target: Target) -> Kernel:
        dot = PackedDot.of(task, product, schedule["vectors"] * MOST_WORDS)
        return dot.kernel(_MatrixTile.of(dot.product, schedule, target).chunks(schedule), task, target)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        is_bytes = self._dtype is DType.U8
        yield from point.say_start(f"A product of {'bytes' if is_bytes else 'bfloat16'} in matrix registers.")
        down, across = point.values["tile"], point.values["vectors"]
        yield f"A tile is {down} by {across} registers; {EXACT_BYTES if is_bytes else BF16_PAIRS}."
        yield from point.say_chunk_of_tiles(point.tiles[0])


def _step(product: Product) -> int:
    """Words of the innermost reduction that registers take at once: as many as divide it."""
    words = product.fused_stage.stage.reduce[-1].extent
    return next(n for n in range(min(words, MOST_WORDS), 0, -1) if words % n == 0)


def _down(product: Product) -> str:
    """The axis that the registers of a tile lie along: the last of the rows, or the one before where all fit in one."""
    *outer, last = product.rows
    return outer[-1] if outer and product.extent(last) <= MOST_ROWS else last


def _registers(product: Product) -> int:
    """Registers along that axis."""
    axis = _down(product)
    return -(-product.extent(axis) // (MOST_ROWS if axis == product.rows[-1] else 1))


def _tiles(product: Product, columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tiles along the rows and along the columns."""
    width = product.extent(product.vector)
    return -(-_registers(product) // columns["tile"]), -(-width // (columns["vectors"] * MOST_WORDS))


def _legal(product: Product, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, and no two points alike."""
    down, across = columns["tile"], columns["vectors"]
    row_tiles, column_tiles = _tiles(product, columns)
    rows, tiles = columns["block_rows"], columns["block_columns"]
    legal = (down * across + down + across <= REGISTERS) & (rows < row_tiles) & (tiles < column_tiles)
    order_matters = (np.where(rows == 0, row_tiles, rows) > 1) & (np.where(tiles == 0, column_tiles, tiles) > 1)
    return np.asarray(legal & (order_matters | (columns["columns_inside"] == 0)))


def _tiling(product: Product, columns: Columns) -> Tiling:
    axis, last, column = _down(product), product.rows[-1], product.vector
    tile: dict[str, NDArray[np.int64] | int] = {last: min(product.extent(last), MOST_ROWS)}
    tile[axis] = columns["tile"] * tile.get(axis, 1)
    tile[column] = columns["vectors"] * MOST_WORDS
    block: dict[str, NDArray[np.int64] | int] = {last: 0, axis: columns["block_rows"], column: columns["block_columns"]}
    unroll = np.full_like(columns["vectors"], _step(product))
    every = {name: np.broadcast_to(extent, unroll.shape) for name, extent in tile.items()}
    inside = {name: np.broadcast_to(count, unroll.shape) for name, count in block.items()}
    return tiling(product.fused_stage.stage, column, every, inside, unroll)


def _default_blocks(product: Product, target: Target, values: Mapping[str, int]) -> dict[str, int]:
    """Chunks of so many rows as stay in the cache, by one tile of columns."""
    rows, depth = values["tile"] * MOST_ROWS, prod(axis.extent for axis in product.fused_stage.stage.reduce)
    tiles = -(-_registers(product) // values["tile"])
    most = max(1, target.l2_bytes // BLOCK_PART // (rows * depth * WORD_BYTES))
    block = 0 if most >= tiles else 1 << (most.bit_length() - 1)
    several = -(-product.extent(product.vector) // (values["vectors"] * MOST_WORDS)) > 1
    return {"block_rows": block, "block_columns": int(several)}


@dataclass(frozen=True, slots=True)
class _MatrixTile:
    """The tiles of a product: `down` by `across` registers, those of sums of `height` rows.

    Neighbours along `axis` are `pitch` rows apart.
    """

    product: Product
    lanes: int
    axis: str
    pitch: int
    height: int
    down: int
    across: int

    @staticmethod
    def of(product: Product, schedule: Schedule, target: Target) -> _MatrixTile:
        axis, last, down = _down(product), product.rows[-1], schedule["tile"]
        tiles = -(-_registers(product) // down)
        height = -(-product.extent(last) // (tiles * down)) if axis == last else product.extent(last)
        pitch = height if axis == last else 1
        return _MatrixTile(product, target.lanes(WORD_BYTES), axis, pitch, height, down, schedule["vectors"])

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.across * MOST_WORDS

    def chunks(self, schedule: Schedule) -> Stmt:
        """All tiles, in chunks that the threads share."""
        product, column, last = self.product, self.product.vector, self.product.rows[-1]
        tiles = {
            self.axis: TileAxis(product.extent(self.axis), self.down * self.pitch, schedule["block_rows"]),
            column: TileAxis(product.extent(column), self.width, schedule["block_columns"]),
        }
        rows = [axis for axis in product.rows if axis == self.axis or axis != last]
        outer = (*product.batch, *product.columns)
        order = (*outer, *rows, column) if schedule["columns_inside"] else (*outer, column, *rows)
        counts = [tiles[axis].chunks if axis in tiles else product.extent(axis) for axis in order]
        places = dict(zip(order, unravel(Var(CHUNK), counts), strict=True))
        number = {axis: places.pop(axis) * n.tiles_per_chunk + Var(axis + TILE) for axis, n in tiles.items()}
        body = self._tile(places, number)
        for axis, along in tiles.items():
            body = along.guard(number[axis], body)
        for axis in reversed([axis for axis in order if axis in tiles]):
            body = For(axis + TILE, tiles[axis].tiles_per_chunk, body)
        return For(CHUNK, prod(counts), body, LoopKind.PARALLEL if prod(counts) > 1 else LoopKind.SERIAL)

    def _tile(self, places: Mapping[str, Expr], number: Mapping[str, Expr]) -> Stmt:
        """A tile: where it is along the outer axes, and its numbers along the registers and the columns."""
        places = {**places, self.product.vector + TILE: number[self.product.vector]}
        sums = Buffer(TOTAL, (self.down, self.height, self.width), self.product.dtype, Scope.SHARED)
        steps = (*self._sum(places, number[self.axis]), *self._finish(places, number))
        return Alloc(sums, self._with_registers(Block(steps)))

    def _with_registers(self, body: Stmt) -> Stmt:
        step = _step(self.product)
        shapes = {
            SUMS: (self.down, self.across, self.height, MOST_WORDS),
            LEFT: (self.down, self.height, step),
            RIGHT: (self.across, step, MOST_WORDS),
        }
        for name, shape in shapes.items():
            dtype = self.product.dtype if name == SUMS else DType.I32
            body = Alloc(Buffer(name, shape, dtype, Scope.MATRIX), body)
        return body

    def _rows(self, number: Expr, register: Expr, row: Expr) -> tuple[dict[str, Expr], Expr]:
        """The place of a row of a register, and the first place along the axis that this register writes."""
        last, first = self.product.rows[-1], (number * self.down + register) * self.pitch
        start = op("min", first, const(self.product.extent(self.axis) - self.pitch))
        return {last: row, self.axis: start + row if self.axis == last else start}, first

    def _sum(self, places: Mapping[str, Expr], number: Expr) -> Iterator[Stmt]:
        """Sums in registers, then in memory."""
        sums = {(i, j): self._sums(i, j) for i in range(self.down) for j in range(self.across)}
        yield from (Do("matrix.zero", (register,), ()) for register in sums.values())
        *outer, last = self.product.fused_stage.stage.reduce
        step = _step(self.product)
        body: Stmt = Block(tuple(self._multiply(places, number, Var(last.name) * step)))
        body = For(last.name, last.extent // step, body)
        for axis in reversed(outer):
            body = For(axis.name, axis.extent, body)
        yield body
        for (i, j), register in sums.items():
            place = Load(TOTAL, (const(i), Var(ROW), Var(COLUMN) + j * MOST_WORDS), self.product.dtype)
            yield Do("matrix.store", (place,), (register,))

    def _sums(self, down: int, across: int) -> Load:
        return _register(SUMS, down, across, dtype=self.product.dtype)

    def _multiply(self, places: Mapping[str, Expr], number: Expr, word: Expr) -> Iterator[Stmt]:
        """Load registers for some words of the reduction, and multiply each by each."""
        last, column = self.product.fused_stage.stage.reduce[-1].name, self.product.vector
        for i in range(self.down):
            rows, _ = self._rows(number, const(i), Var(ROW))
            at = {**places, **rows, last: word + Var(COLUMN)}
            yield Do("matrix.load", (_register(LEFT, i),), (_placed(self.product.broadcast, at),))
        for j in range(self.across):
            at = {**places, column + INNER: Var(COLUMN) + j * MOST_WORDS, last: word + Var(ROW)}
            yield Do("matrix.load", (_register(RIGHT, j),), (_placed(self.product.panel, at),))
        for i in range(self.down):
            for j in range(self.across):
                yield Do(DOTS[self.product.dtype], (self._sums(i, j),), (_register(LEFT, i), _register(RIGHT, j)))

    def _finish(self, places: Mapping[str, Expr], number: Mapping[str, Expr]) -> Iterator[Stmt]:
        """Write the results: of the last tile of columns as many as there are, and each row once."""
        column = self.product.vector
        whole, rest = divmod(self.product.extent(column), self.width)
        rows, first = self._rows(number[self.axis], Var("register"), Var("row"))
        at = {**places, **rows}
        for columns, condition in (
            (self.width if whole else 0, op("lt", number[column], whole)),
            (rest, op("eq", number[column], const(whole))),
        ):
            if columns:
                body: Stmt = Block(tuple(self._write(at, number[column] * self.width, columns)))
                if self.product.extent(self.axis) % (self.down * self.pitch):
                    body = If(op("le", first, rows[self.axis]), body)
                loop = For("register", self.down, For("row", self.height, body))
                yield If(condition, loop) if whole and rest else loop

    def _write(self, places: Mapping[str, Expr], first: Expr, columns: int) -> Iterator[Stmt]:
        """Write a row of results."""
        fused_stage, column = self.product.fused_stage, self.product.vector
        at = {**places, column: first + Var(column + INNER)}
        result = Load(TOTAL, (Var("register"), Var("row"), Var(column + INNER)), self.product.dtype)
        value, *index = (substitute(e, at) for e in (fused_stage.apply_epilogue(result), *fused_stage.index))
        for base in range(0, columns, self.lanes):
            count = columns - base if columns - base < self.lanes else None
            vector, *place = (vectorize(e, column + INNER, const(base), self.lanes, count) for e in (value, *index))
            yield Store(fused_stage.output, tuple(place), vector, count)


def _register(name: str, *number: int, dtype: DType = DType.I32) -> Load:
    """A matrix register as an operand."""
    return Load(name, (*map(const, number), Var(ROW), Var(COLUMN)), dtype)


def _placed(operand: Load, places: Mapping[str, Expr]) -> Load:
    return Load(operand.tensor, tuple(substitute(e, places) for e in operand.index), operand.dtype)

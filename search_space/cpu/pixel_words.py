"""Pixel words: bytes of four channels put together in registers, columns along the vector lanes.

    parallel chunk of rows
      border                        a constant word, where the row or the column is padding
      rounds of columns
        words[columns] = channel 0 + 256 * channel 1 + ...

Of pixels that come channel by channel and are quantised, each channel is read in order, and each pixel written as one
word. With channels along the lanes there would be four of them, from four places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import WORD_BYTES, DType
from tunewright.codegen.expr.expr import Const, Expr, Op, Ramp, Var, const, free_vars, loads, op, substitute
from tunewright.codegen.expr.index import simplify
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.expr.symbolic import is_symbolic
from tunewright.codegen.ir.ir import Block, For, If, Kernel, Stmt, Store, single_words_of
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Task

from ..axes import IndexRange
from ..buffers import buffer, params
from ..counts import digits
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage, fuse_stages
from ..patterns.padding import Interior, match_padding
from ..patterns.vector_axis import is_contiguous
from ..patterns.windows import outside_loads
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling, flat_extents, whole_extents
from .loops.chunks import row_loop
from .loops.tile import tile_vectors

CHUNKS_PER_THREAD = 4
"""Chunks of the parallel loop that even out what the threads get."""

BYTE = 256


@dataclass(frozen=True, slots=True)
class Pixels:
    """Rows of columns of four bytes, which a pointwise fused stage makes."""

    interior: Interior
    border: int  # a word

    @property
    def fused_stage(self) -> FusedStage:
        """What makes the bytes."""
        return self.interior.fused_stage

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes around a row."""
        return self.fused_stage.stage.axes[:-2]

    @property
    def column(self) -> Axis:
        """The axis along a row."""
        return self.fused_stage.stage.axes[-2]

    @property
    def row_count(self) -> int:
        """All rows, of all axes around them."""
        return prod(axis.extent for axis in self.rows)

    def byte(self, channel: int) -> Expr:
        """A channel of what is no border, over the other axes, as a word."""
        ranges = {a.name: (r.start, r.stop - 1) for a, r in zip(self.rows, self.interior.inside, strict=False)}
        inside = self.interior.inside[-2]
        ranges[self.column.name] = inside.start, inside.stop - 1
        element = substitute(self.interior.element, {self.fused_stage.stage.axes[-1].name: const(channel)})
        return op("cast", simplify(element, ranges), dtype=DType.I32)

    def word(self) -> Expr:
        """All channels of what is no border, over the other axes."""
        word, *others = (self.byte(channel) for channel in range(WORD_BYTES))
        for channel, byte in enumerate(others, 1):
            word = word + byte * const(_signed(BYTE**channel), DType.I32)
        return word


def _signed(word: int) -> int:
    """A word of 32 bits as a signed number."""
    return int(np.array(word, np.uint32).view(np.int32))


def match_pixels(task: Task, lanes: int) -> Pixels | None:
    """Match a task that makes unsigned bytes, four to a pixel, of channels that it reads one by one, along columns."""
    fused_stages = fuse_stages(task)
    fused_stage = fused_stages[0]
    axes = fused_stage.stage.axes
    is_one = len(fused_stages) == 1 and len(task.outputs) == 1 and task.outputs[0].dtype is DType.U8
    if not is_one or len(axes) < 2 or fused_stage.index != tuple(Var(a.name) for a in axes):
        return None
    if any(is_symbolic(a.extent) for a in axes) or axes[-1].extent != WORD_BYTES or axes[-2].extent < lanes:
        return None
    border = _border(fused_stage)
    interior = match_padding(fused_stage, border)
    if interior is None:
        return None
    *rows, columns, channels = interior.inside
    cut = [n for n, (r, a) in enumerate(zip(rows, axes, strict=False)) if r.extent < a.extent]
    if channels.extent < WORD_BYTES or columns.extent < lanes or len(cut) > 1:
        return None
    pixels = Pixels(interior, _signed((border or 0) * sum(BYTE**channel for channel in range(WORD_BYTES))))
    return pixels if _is_read_along(pixels.word(), axes[-2].name) else None


def _border(fused_stage: FusedStage) -> int | None:
    """The byte in all channels of pixels around the others; None if there is none."""
    match fused_stage.apply_epilogue(fused_stage.stage.body):
        case Op("select", (condition, _, Const(border))) if fused_stage.stage.axes[-1].name not in free_vars(condition):
            return int(border)
    return None


def _is_read_along(word: Expr, column: str) -> bool:
    """Whether all that differs from column to column is read in order."""
    reads = [load for load in loads(word) if column in free_vars(*load.index)]
    return (
        bool(reads) and all(is_contiguous(load.index, column) for load in reads) and column not in outside_loads(word)
    )


class PixelWordsSketch(PatternSketch[Pixels]):
    """Columns of four bytes along the lanes."""

    name = "pixel_words"
    version = 1

    def recognise(self, task: Task, target: Target) -> Pixels | None:
        return match_pixels(task, target.lanes(4))

    def offer(self, task: Task, pixels: Pixels, target: Target) -> Space:
        vectors = pixels.interior.inside[-2].extent // target.lanes(4)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 4, 8) if n <= vectors)),
            Knob("chunk_rows", tuple(1 << n for n in range(pixels.row_count.bit_length()))),
        )
        most = max(1, pixels.row_count // (CHUNKS_PER_THREAD * target.threads))
        preferred = {"vectors": min(2, vectors), "chunk_rows": 1 << (most.bit_length() - 1)}
        return self.space_of(
            knobs,
            legal=lambda columns: columns["vectors"] * 2 <= target.vector_registers,
            tiling=lambda columns: _tiling(pixels, target, columns),
            preferred=preferred,
        )

    def write(self, task: Task, pixels: Pixels, schedule: Schedule, target: Target) -> Kernel:
        words = single_words_of(buffer(task.outputs[0]))
        row = _PixelRow(pixels, words.name, target.lanes(4), schedule["vectors"]).write()
        body = Block((row_loop(pixels.rows, schedule["chunk_rows"], row),))
        return Kernel(params(task, {}), (), body, words=(words,))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("Pixels of four bytes: each channel is read in order, a pixel is written as a word.")
        rows = self.pattern(point.task, point.target).row_count
        if point.chunks[point.main] > 1:
            yield f"A chunk has {digits(point.values['chunk_rows'])} of {digits(rows)} rows."
        yield from point.say_lanes()


def _tiling(pixels: Pixels, target: Target, columns: Columns) -> Tiling:
    stage, along = pixels.fused_stage.stage, pixels.column.name
    whole = whole_extents(stage.axes[-2:])
    chunk = whole | flat_extents(pixels.rows, columns["chunk_rows"])
    chunks = -(-pixels.row_count // columns["chunk_rows"])
    return Tiling.of(stage, along, columns, (whole | {along: columns["vectors"] * target.lanes(4)}, chunk), chunks)


@dataclass(frozen=True, slots=True)
class _PixelRow:
    """Writes the statements for one row, whose axes are variables."""

    pixels: Pixels
    words: str
    lanes: int
    vectors: int

    def write(self) -> Stmt:
        """The pixels of a row, and the border."""
        inside, extent = self.pixels.interior.inside[-2], self.pixels.column.extent
        steps: list[Stmt] = [
            *self._border(IndexRange(0, inside.start)),
            *self._interior(inside),
            *self._border(IndexRange(inside.stop, extent)),
        ]
        for axis, rows in zip(self.pixels.rows, self.pixels.interior.inside, strict=False):
            if rows.extent < axis.extent:
                return self._within(axis, rows, Block(tuple(steps)))
        return Block(tuple(steps))

    def _within(self, axis: Axis, rows: IndexRange, body: Stmt) -> Stmt:
        """The body for these rows, and border alone for the others."""
        row = Var(axis.name)
        outside = Block(tuple(self._border(IndexRange(0, self.pixels.column.extent))))
        parts: list[Stmt] = []
        if rows.start:
            parts.append(If(op("lt", row, rows.start), outside))
        if rows.stop < axis.extent:
            parts.append(If(op("le", const(rows.stop), row), outside))
        is_inside = op("and", op("le", const(rows.start), row), op("lt", row, rows.stop))
        return Block((*parts, If(is_inside, body)))

    def _border(self, columns: IndexRange) -> Iterator[Stmt]:
        return self._along(columns, Const(self.pixels.border, DType.I32))

    def _interior(self, columns: IndexRange) -> Iterator[Stmt]:
        return self._along(columns, self.pixels.word())

    def _along(self, columns: IndexRange, word: Expr) -> Iterator[Stmt]:
        """Stores of a word to all of these columns: rounds of whole vectors, then the rest."""
        step = self.vectors * self.lanes
        rounds = columns.extent // step
        begin = Var("round") * step + columns.start
        if rounds:
            yield For(
                "round", rounds, Block(tuple(self._store(word, begin + n * self.lanes) for n in range(self.vectors)))
            )
        start = columns.start + rounds * step
        for vector in tile_vectors(columns.stop - start, self.lanes):
            yield self._store(word, const(start + vector.base), vector.count)

    def _store(self, word: Expr, column: Expr, count: int | None = None) -> Stmt:
        outer = tuple(Var(axis.name) for axis in self.pixels.rows)
        word = vectorize(word, self.pixels.column.name, column, self.lanes, count)
        return Store(self.words, (*outer, Ramp(column, self.lanes)), word, count)

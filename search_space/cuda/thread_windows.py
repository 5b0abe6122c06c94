"""Thread windows: depthwise convolution and pooling on a GPU, a few neighbouring windows of some channels a thread.

    block, thread                          a tile of windows each, the channels moving first
      sums[rows, columns, channels]        registers
      for each row under the tile          unrolled, as all that follows
        line[columns, channels]            registers; each element is read once, left out where it is padding
        for each window that it belongs to
          sums = fold(sums, line)
      output[tile] = epilogue(sums)

Neighbouring windows share most of what they read, which is then in registers instead of caches. Fused stages before and
after the fold are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, const, loads, op, substitute, transform
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, If, Kernel, Scope, Stmt, Store
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task, identity

from ..axes import unravel
from ..buffers import kernel_around
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import FLOATS
from ..patterns.windows import (
    InputRow,
    Windows,
    fold_element,
    match_windows,
    positions_read,
    tap_uses,
)
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, point_columns, whole_extents
from .tiles.elements import PLAIN_THREADS, SUMS, launch, plain_launch, vectorize_at
from .tiles.sides import fits_multiprocessor, guard_extent

BODY_LIMIT, CHANNELS_LIMIT = 320, 1024
"""Elements that a thread folds, all of them code of their own: of one channel, and of all."""

OTHER_REGISTERS = 48
"""Registers of a thread for indices and conditions, beside sums, elements and weights."""

TILES = ((4, 4), (2, 4), (2, 2), (1, 2), (1, 1))
"""Rows and columns of a thread by default: the first that leave each multiprocessor a block."""


class ThreadWindowsSketch(PatternSketch[Windows]):
    """A few neighbouring windows for each thread."""

    name = "thread_windows"
    version = 1
    kind = CUDA

    def recognise(self, task: Task, target: Target) -> Windows | None:
        return match_windows(task, FLOATS)

    def offer(self, task: Task, windows: Windows, target: Target) -> Space:
        each_bytes = max(windows.read.dtype.size_bytes, windows.fused_stage.epilogue.dtype.size_bytes)
        widest = WIDEST_BYTES // each_bytes
        knobs = (
            Knob("rows", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= windows.rows.extent)),
            Knob("columns", tuple(n for n in (1, 2, 3, 4, 6, 7, 8, 14) if n <= windows.columns.extent)),
            Knob("channels", tuple(n for n in (1, 2, 4, 8) if windows.channels.extent % n == 0 and n <= widest)),
            Knob("threads", (32, 64, 128, 256, 512)),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(windows, target, columns),
            tiling=lambda columns: _tiling(windows, columns),
            preferred=_preferred(windows, target, knobs),
            block=lambda columns: _block(windows, columns),
        )

    def write(self, task: Task, windows: Windows, schedule: Schedule, target: Target) -> Kernel:
        main = ThreadWindows(windows, **dict(schedule.values)).lower()
        return kernel_around((main,), task, windows.stages, plain_launch)

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start(
            "Windows of a few neighbouring places in the registers of a thread, which reads what they share once.",
            point.values["threads"],
        )
        rows, columns, channels = (point.values[name] for name in ("rows", "columns", "channels"))
        tile = f"{counted(rows, 'row')} by {counted(columns, 'column')} of windows"
        yield f"A thread folds {tile}, of {counted(channels, 'channel')} each."


def _registers(
    windows: Windows, rows: NDArray[np.int64], columns: NDArray[np.int64], channels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The registers of a thread with such a tile."""
    taps = windows.columns.taps if len(loads(windows.fused_stage.stage.body)) > 1 else 0
    weights = taps * np.minimum(rows, windows.rows.taps)  # of all rows of a window that one line is for
    return np.asarray(
        channels * (rows * columns + positions_read(windows.columns, columns) + weights) + OTHER_REGISTERS
    )


def _tiles(windows: Windows, columns: Columns) -> NDArray[np.int64]:
    """How many threads have a tile."""
    others = prod(dim.extent for dim in windows.outer_dims)
    down, across = -(-windows.rows.extent // columns["rows"]), -(-windows.columns.extent // columns["columns"])
    return np.asarray(others * down * across * (windows.channels.extent // columns["channels"]))


def _block(windows: Windows, columns: Columns) -> BlockShape:
    threads, tile = columns["threads"], (columns["rows"], columns["columns"], columns["channels"])
    return BlockShape(threads, _registers(windows, *tile), np.zeros_like(threads))


def _legal(windows: Windows, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, not too much code, and no blocks of threads that mostly have nothing to do."""
    rows, across, channels, threads = (columns[name] for name in ("rows", "columns", "channels", "threads"))
    legal = fits_multiprocessor(target, _block(windows, columns))
    folds = rows * across * windows.taps
    legal &= (folds <= BODY_LIMIT) & (folds * channels <= CHANNELS_LIMIT)
    return np.asarray(legal & ((threads == WARP) | (threads < 2 * _tiles(windows, columns))))


def _preferred(windows: Windows, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    choices = {knob.name: knob.choices for knob in knobs}
    best = {name: sizes[0] for name, sizes in choices.items()}
    for channels in (max(n for n in choices["channels"] if n <= 4), 1):
        for rows, columns in TILES:
            if rows not in choices["rows"] or columns not in choices["columns"]:
                continue
            tile = {"rows": rows, "columns": columns, "channels": channels}
            tiles = int(_tiles(windows, point_columns(tile))[0])
            threads = max(n for n in choices["threads"] if n == WARP or (n < 2 * tiles and n <= PLAIN_THREADS // 2))
            values = tile | {"threads": threads}
            if _legal(windows, target, point_columns(values))[0]:
                best = values
                if tiles >= target.threads * threads:
                    return best
    return best


def _tiling(windows: Windows, columns: Columns) -> Tiling:
    """The tile of a thread, and that of a block."""
    stage, channels, left = windows.fused_stage.stage, windows.channels, columns["threads"]
    extents = {channels.name: channels.extent} | {d.axis: d.extent for d in reversed(windows.dims) if d.axis}
    thread: dict[str, NDArray[np.int64]] = {
        windows.rows.axis: columns["rows"],
        windows.columns.axis: columns["columns"],
    }
    thread[channels.name] = columns["channels"]
    block: dict[str, NDArray[np.int64]] = {}
    for name, extent in extents.items():
        size = thread.get(name, np.ones_like(left))
        tiles = -(-extent // size)
        block[name] = size * np.minimum(left, tiles)
        left = -(-left // tiles)
    chunks = -(-_tiles(windows, columns) // columns["threads"])
    return Tiling.of(stage, channels.name, columns, (whole_extents(stage.reduce) | thread, block), chunks)


LINE = "line"
"""The registers of an input row."""


@dataclass(frozen=True, slots=True)
class ThreadWindows:
    """A fold over windows and the numbers of its launch."""

    windows: Windows
    rows: int  # windows of a thread: down
    columns: int  # across
    channels: int  # neighbours of each; divides the task's
    threads: int  # of a block

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each dimension, rows and columns last, and along the channels."""
        windows = self.windows
        others = (dim.extent for dim in windows.outer_dims)
        down, across = -(-windows.rows.extent // self.rows), -(-windows.columns.extent // self.columns)
        return (*others, down, across, windows.channels.extent // self.channels)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return launch(
            lambda number: _ThreadTile(self, *unravel(number, self.counts)).lower(), prod(self.counts), self.threads
        )


class _ThreadTile:
    """The windows of one thread."""

    def __init__(self, numbers: ThreadWindows, *tile: Expr) -> None:
        self.numbers, self.windows = numbers, numbers.windows
        *self.others, row, column, channel = tile
        self.row, self.column = row * numbers.rows, column * numbers.columns
        self.channel = channel * numbers.channels
        self.fused_stage = self.windows.fused_stage

    @cached_property
    def _column_uses(self) -> Mapping[int, list[tuple[int, int]]]:
        """The input columns under the tile, with their windows and taps."""
        columns = self.windows.columns
        return tap_uses(columns, [range(columns.taps)] * self.numbers.columns)

    def lower(self) -> Stmt:
        """The statements of a thread."""
        numbers, combiner = self.numbers, self.fused_stage.stage.combiner
        start = const(identity(combiner, DType.F32), DType.F32)
        steps: list[Stmt] = [Store(SUMS, self._sum(*place).index, start) for place in self._windows()]
        for line in InputRow.all(self.windows, numbers.rows):
            steps += [*self._read(line), *self._fold(line)]
        steps += [self._write(*place) for place in self._windows()]
        stmt: Stmt = Block(tuple(steps))
        for name, shape in ((LINE, (len(self._column_uses),)), (SUMS, (numbers.rows, numbers.columns))):
            stmt = Alloc(Buffer(name, (*shape, numbers.channels), DType.F32, Scope.REGISTER), stmt)
        return stmt

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Row and column of each window of the tile."""
        return ((row, column) for row in range(self.numbers.rows) for column in range(self.numbers.columns))

    def _lanes(self, name: str, *place: int) -> Load:
        """All channels at an index in registers."""
        return Load(name, (*map(const, place), ramp(const(0), self.numbers.channels)), DType.F32)

    def _sum(self, row: int, column: int) -> Load:
        return self._lanes(SUMS, row, column)

    def _vectorize(self, value: Expr, at: Mapping[str, Expr]) -> Expr:
        """Vectorise a value along the thread's channels."""
        channels = self.windows.channels.name
        return vectorize_at(value, {**at, channels: self.channel}, channels, self.numbers.channels)

    def _read(self, line: InputRow) -> Iterator[Stmt]:
        """Load one input row; padding gets the value that leaves a fold unchanged."""
        windows, columns = self.windows, self.windows.columns
        padding = const(windows.border, DType.F32)
        at, is_row = line.locate(self.windows, self.numbers.rows, self.others, self.row)
        last = (self.numbers.counts[-2] - 1) * self.numbers.columns * columns.stride
        for number, offset in enumerate(self._column_uses):
            position = self.column * columns.stride + offset
            element = self._vectorize(windows.element, {**at, columns.position: position})
            place = self._lanes(LINE, number).index
            read = Store(LINE, place, op("cast", element, dtype=DType.F32))
            guard = op("and", is_row, columns.guard(position, offset, last + offset))
            if guard != const(True):
                yield Store(LINE, place, padding)
            if guard != const(False):
                yield read if guard == const(True) else If(guard, read)

    def _fold(self, line: InputRow) -> Iterator[Stmt]:
        """Fold an input row into each window that it belongs to."""
        windows, stage = self.windows, self.fused_stage.stage
        outside = windows.surroundings
        along = (*windows.outer_dims, windows.rows, windows.columns)
        for row, row_tap in line.windows:
            for number, uses in enumerate(self._column_uses.values()):
                for column, tap in uses:
                    taps = zip(along, (*line.taps, row_tap, tap), strict=True)
                    term = substitute(outside, {d.tap: const(value) for d, value in taps})
                    total, element = self._sum(row, column), self._lanes(LINE, number)
                    fold = fold_element(stage.combiner, total, self._vectorize(term, {}), element)
                    yield Store(SUMS, total.index, fold)

    def _write(self, row: int, column: int) -> Stmt:
        """Write one window of all channels, after its epilogue."""
        windows, fused_stage, total = self.windows, self.fused_stage, self._sum(row, column)
        at = {d.axis: place for d, place in zip(windows.outer_dims, self.others, strict=True)}
        at |= {windows.rows.axis: self.row + row, windows.columns.axis: self.column + column}
        epilogue = transform(
            self._vectorize(fused_stage.epilogue, at), lambda node: total if fused_stage.is_result(node) else node
        )
        stmt: Stmt = Store(
            fused_stage.output, tuple(self._vectorize(index, at) for index in fused_stage.index), epilogue
        )
        if row:
            stmt = guard_extent(at[windows.rows.axis], windows.rows.extent, self.numbers.rows, stmt)
        return (
            guard_extent(at[windows.columns.axis], windows.columns.extent, self.numbers.columns, stmt)
            if column
            else stmt
        )

"""Window: depthwise convolution and pooling, the channels along the vector lanes.

    parallel chunk                       rows of the output, by some of its channels
      row tile, channel tile, columns    in one of three orders
        for each row of the input        skipped where it is padding
          for each column of it          left out where it is padding
            load, fold into registers    all windows of the tile that it belongs to
        output[tile] = epilogue(...)

A tile is a few rows by a few columns by some vectors of channels, and its windows are unrolled. Padding is never made:
of a row of tiles only the first and the last ones touch columns outside, and they are code of their own that leaves
them out. Where nothing but the elements is folded, as in pooling, each column is folded once for all windows that share
it, then the columns of each window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES
from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.ir.ir import Block, For, If, Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..buffers import kernel_around
from ..description import SchedulePoint
from ..patterns.fused_stage import FLOAT32
from ..patterns.window_dim import WindowDim
from ..patterns.windows import (
    Windows,
    match_windows,
    positions_read,
)
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Size, Space, Tiling, whole_extents
from .loops.chunks import CHUNK, TileAxis, chunk_indices, chunk_loop
from .loops.lower import plain_phase
from .loops.window_tile import ChannelVector, ColumnRun, WindowTile

MOST_COLUMNS = 14
"""Columns of a tile."""

BODY_LIMIT = 320
"""Elements folded in one tile, beyond which the instruction cache suffers."""

CODE_LIMIT = 1200
"""Elements folded in all copies of a tile. Beyond it a build takes long, and nothing is gained: of 155 tasks with some
thirty schedules timed each, the fastest of none had more."""

CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE = range(3)
"""Where the loop over tiles of channels is: around the rows, between rows and columns, inside the columns."""


class WindowSketch(PatternSketch[Windows]):
    """Tiles of windows, with channels along the lanes."""

    name = "window"
    version = 1

    def recognise(self, task: Task, target: Target) -> Windows | None:
        return match_windows(task, FLOAT32 | BYTES)

    def offer(self, task: Task, windows: Windows, target: Target) -> Space:
        vectors = _vectors(windows, target)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4) if n <= vectors)),
            Knob("tile_columns", tuple(range(1, min(windows.columns.extent, MOST_COLUMNS) + 1))),
            Knob("tile_rows", tuple(n for n in (1, 2, 3, 4) if n <= windows.rows.extent)),
            Knob("block_rows", (0, *(n for n in (1, 2, 4, 7, 8, 14, 16, 28) if n < windows.rows.extent))),
            Knob("block_channels", (0, *(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n < vectors))),
            Knob("order", (CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE)),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(windows, target, columns),
            tiling=lambda columns: _tiling(windows, target, columns),
            preferred=_preferred(windows, target, knobs),
        )

    def write(self, task: Task, windows: Windows, schedule: Schedule, target: Target) -> Kernel:
        main = _WindowLoops(windows, dict(schedule.values), target.lanes(4)).chunks()
        return kernel_around((main,), task, windows.stages, partial(plain_phase, target=target))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("Windows that slide over rows of pixels, channels along the lanes.")
        yield from point.say_chunk(point.tiles[-2])
        yield from point.say_tile(point.tiles[0])
        yield from point.say_copies(point.tiles[0])
        orders = "channels, rows, columns", "rows, channels, columns", "rows, columns, channels"
        yield f"Loops over tiles, outermost first: {orders[point.values['order']]}."


def _vectors(windows: Windows, target: Target) -> int:
    """Vectors that cover the channels."""
    return -(-windows.channels.extent // target.lanes(4))


def _fold_count(windows: Windows, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The folds of a tile of rows by columns."""
    lines = rows * windows.rows.taps * prod(d.taps for d in windows.outer_dims)
    if windows.is_plain:
        return lines * positions_read(windows.columns, columns) + rows * columns * windows.columns.taps
    return lines * columns * windows.columns.taps


def _small_enough(
    windows: Windows, target: Target, vectors: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache."""
    sums = rows * (positions_read(windows.columns, columns) if windows.is_plain else columns)
    registers = (sums + 1) * vectors + 1
    fits = (registers <= target.vector_registers) & (_fold_count(windows, rows, columns) * vectors <= BODY_LIMIT)
    return np.asarray(fits)


def _legal(windows: Windows, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """What fits, without points that are alike."""
    vectors, rows = columns["vectors"], columns["tile_rows"]
    legal = _small_enough(windows, target, vectors, rows, columns["tile_columns"])
    legal &= _code(windows, target, vectors, rows, columns["tile_columns"]) <= CODE_LIMIT
    row_tiles, channel_tiles = -(-windows.rows.extent // rows), -(-_vectors(windows, target) // vectors)
    rows_inside, channels_inside = columns["block_rows"], columns["block_channels"]
    legal &= (rows_inside < row_tiles) & (channels_inside < channel_tiles)
    rows_inside = np.where(rows_inside == 0, row_tiles, rows_inside)
    channels_inside = np.where(channels_inside == 0, channel_tiles, channels_inside)
    column_tiles = -(-windows.columns.extent // columns["tile_columns"])
    order = columns["order"]
    legal &= (channels_inside > 1) | (order == CHANNELS_OUTSIDE)
    legal &= (rows_inside > 1) | (order != CHANNELS_BETWEEN)
    legal &= (column_tiles > 1) | (order != CHANNELS_INSIDE)
    return np.asarray(legal)


def _code(
    windows: Windows, target: Target, vectors: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Elements that are folded in all copies of a tile: of all and of the last channels, at columns of each kind."""
    most = _vectors(windows, target)
    across = np.where(vectors <= most, vectors, 0) + most % vectors
    return np.asarray(_fold_count(windows, rows, columns) * across * _copies_table(windows.columns)[columns])


@lru_cache(maxsize=256)
def _copies_table(columns: WindowDim) -> NDArray[np.int64]:
    """Copies of a tile along the columns, by how many it has; no tile has 0."""
    most = min(columns.extent, MOST_COLUMNS)
    return np.array([0, *(len(ColumnRun.all(columns, size)) for size in range(1, most + 1))])


def _preferred(windows: Windows, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """Pooling goes through memory in order; products go over all columns with one vector of channels.

    The first waits for memory, which is best read in order. The second can keep the multipliers busy, if little else
    is to be loaded than the input.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    vectors, rows, columns = _preferred_tile(windows, target, choices)
    values = {"vectors": vectors, "tile_columns": columns, "tile_rows": rows}
    row_tiles, channel_tiles = -(-windows.rows.extent // rows), -(-_vectors(windows, target) // vectors)
    if windows.is_plain:
        inside = channel_tiles > 1 and columns < windows.columns.extent
        order = CHANNELS_INSIDE if inside else CHANNELS_OUTSIDE
        values |= {"block_rows": int(row_tiles > 1), "block_channels": 0, "order": order}
    else:
        block_rows = _rows_together(windows, target, choices["block_rows"])
        values |= {"block_rows": block_rows, "block_channels": int(channel_tiles > 1), "order": CHANNELS_OUTSIDE}
    return values


def _preferred_tile(windows: Windows, target: Target, choices: Mapping[str, Sequence[int]]) -> tuple[int, int, int]:
    """Vectors, rows and columns: of those that fit, what loads the least for a window; the smallest if none does."""
    plain = windows.is_plain
    most = (4 if windows.columns.stride > 1 else 2) if plain else 1
    rows_most, columns_most = (4, 4) if plain else (1, 8)
    for vectors in sorted((n for n in choices["vectors"] if n <= most), reverse=True):
        sides = product(choices["tile_rows"], choices["tile_columns"])
        rows, columns = np.array([s for s in sides if s[0] <= rows_most and s[1] <= columns_most]).T
        even = -(-windows.columns.extent // -(-windows.columns.extent // columns))
        across = np.full(len(rows), vectors)
        fits = _small_enough(windows, target, across, rows, columns) & (
            _code(windows, target, across, rows, even) <= CODE_LIMIT
        )
        if fits.any():
            loads = positions_read(windows.rows, rows) * positions_read(windows.columns, columns) / (rows * columns)
            best = int(np.argmin(np.where(fits, loads, np.inf)))
            return vectors, int(rows[best]), int(even[best])
    return 1, 1, 1


def _rows_together(windows: Windows, target: Target, choices: Sequence[int]) -> int:
    """As many rows as stay in the cache from one vector of channels to the next, the same for each thread."""
    extent = windows.rows.extent
    row_bytes = (
        4 * windows.channels.extent * windows.columns.extent * windows.columns.stride * max(windows.rows.stride, 1)
    )
    images = prod(d.extent for d in windows.outer_dims)
    numbers = {n or extent: n for n in choices}
    sizes = [n for n in numbers if n * row_bytes <= target.l2_bytes // 2] or [min(numbers)]
    even = [n for n in sizes if extent % n == 0 and images * extent // n % target.threads == 0]
    enough = [n for n in sizes if images * -(-extent // n) * _vectors(windows, target) >= 4 * target.threads]
    return numbers[max(even or enough or [min(sizes)])]


def _tiling(windows: Windows, target: Target, columns: Columns) -> Tiling:
    stage, channels, rows = windows.fused_stage.stage, windows.channels, windows.rows
    width, row_tile = columns["vectors"] * target.lanes(4), columns["tile_rows"]
    tile: dict[str, Size] = {channels.name: width, windows.columns.axis: columns["tile_columns"], rows.axis: row_tile}
    chunk = {
        rows.axis: np.where(columns["block_rows"] == 0, rows.extent, columns["block_rows"] * row_tile),
        channels.name: np.where(columns["block_channels"] == 0, channels.extent, columns["block_channels"] * width),
    }
    line = {windows.columns.axis: windows.columns.extent}
    return Tiling.of(stage, channels.name, columns, (whole_extents(stage.reduce) | tile, line, chunk))


class _WindowLoops:
    """The loops of one schedule."""

    def __init__(self, windows: Windows, values: Mapping[str, int], lanes: int) -> None:
        self.windows, self.values, self.lanes = windows, values, lanes
        self.rows = TileAxis(windows.rows.extent, values["tile_rows"], values["block_rows"])
        self.channels = TileAxis(windows.channels.extent, values["vectors"] * lanes, values["block_channels"])
        self.ranges = {
            "row": (0, self.rows.tiles_per_chunk - 1),
            "channel": (0, self.channels.tiles_per_chunk - 1),
        }
        self.runs = ColumnRun.all(windows.columns, values["tile_columns"])

    def chunks(self) -> Stmt:
        """The loops of the phase."""
        counts = [d.extent for d in self.windows.outer_dims]
        counts += [self.rows.chunks, self.channels.chunks]
        total = prod(counts)
        self.ranges[CHUNK] = (0, total - 1)
        *others, row, channel = chunk_indices(counts)
        return chunk_loop(total, self.chunk(others, row, channel))

    def chunk(self, others: Sequence[Expr], row: Expr, channel: Expr) -> Stmt:
        """One chunk, given the indices along the outer dimensions and the numbers of its blocks."""
        row_tile = self.rows.number(row, "row")

        def tile(run: ColumnRun, column_tile: Expr, base: Expr, channels: int) -> Stmt:
            tiles = (*others, row_tile, column_tile)
            ranges = self.ranges | {"column": (0, run.count - 1)}
            return WindowTile(
                self.windows, self.values, self.lanes, run, tiles, base, ChannelVector.all(channels, self.lanes), ranges
            ).lower()

        def columns(inside: Callable[[ColumnRun, Expr], Stmt]) -> Stmt:
            return Block(tuple(_repeat("column", run.count, partial(inside, run), run.first) for run in self.runs))

        def rows(inside: Stmt) -> Stmt:
            return self.rows.loop("row", self.rows.guard(row_tile, inside))

        channels = partial(self.channel_loop, channel)
        order = self.values["order"]
        if order == CHANNELS_OUTSIDE:
            return channels(lambda base, n: rows(columns(lambda run, at: tile(run, at, base, n))))
        if order == CHANNELS_BETWEEN:
            return rows(channels(lambda base, n: columns(lambda run, at: tile(run, at, base, n))))
        return rows(columns(lambda run, at: channels(lambda base, n: tile(run, at, base, n))))

    def channel_loop(self, block: Expr, inside: Callable[[Expr, int], Stmt]) -> Stmt:
        """`inside` for each tile of channels of a block: its first channel, and how many there are."""
        width, size = self.channels.size, self.channels.tiles_per_chunk
        whole, rest = divmod(self.channels.extent, width)
        last = [inside(const(whole * width), rest)] if rest else []
        if self.channels.chunks == 1:
            full = [_repeat("channel", whole, lambda at: inside(at * width, width))] if whole else []
            return Block((*full, *last))

        def tile(at: Expr) -> Stmt:
            number = block * size + at
            steps = [inside(number * width, width)]
            if rest or self.channels.tiles < self.channels.slots:
                steps = [If(op("lt", number, whole), steps[0]), *(If(op("eq", number, whole), s) for s in last)]
            return Block(tuple(steps))

        return _repeat("channel", size, tile)


def _repeat(var: str, extent: int, inside: Callable[[Expr], Stmt], first: int = 0) -> Stmt:
    """`inside` for each number from `first` on; no loop for one alone."""
    return For(var, extent, inside(Var(var) + first)) if extent > 1 else inside(const(first))

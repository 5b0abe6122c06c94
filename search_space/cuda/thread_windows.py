"""Thread windows: depthwise convolution and pooling on a GPU, a few neighbouring windows of some channels a thread
(`tiles.window_launch`).

Neighbouring windows share most of what they read, which is then in registers instead of caches. Fused stages before and
after the fold are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import loads
from tunewright.codegen.gpu import WARP, WIDEST_BYTES
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..buffers import kernel_around
from ..counts import counted
from ..description import SchedulePoint
from ..patterns.fused_stage import FLOATS
from ..patterns.windows import (
    Windows,
    match_windows,
    positions_read,
)
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import BlockShape, Columns, Knob, Space, Tiling, point_columns, whole_extents
from .tiles.element_launch import PLAIN_THREADS, plain_launch
from .tiles.sides import fits_multiprocessor
from .tiles.window_launch import WindowLaunch

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
        main = WindowLaunch(windows, **dict(schedule.values)).lower()
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

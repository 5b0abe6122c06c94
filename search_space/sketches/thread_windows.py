"""Thread windows: depthwise convolution and pooling on a GPU, a few neighbouring windows a thread (`grids`).

Pieces before and after the fold are launches of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import WARP, WIDEST_BYTES
from tunewright.codegen.expr import loads
from tunewright.codegen.ir import Block, Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task

from ..grids.elements import PLAIN_THREADS, plain_launch
from ..grids.sides import held
from ..grids.thread_windows import ThreadWindows
from ..nests.phases import params, temporaries
from ..nests.pieces import NARROW_TOO
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling
from ..windows.windows import Plan, touched, windows

BODY_LIMIT, CHANNELS_LIMIT = 320, 1024
"""Elements that a thread folds, all of them code of their own: of one channel, and of all."""

OTHER_REGISTERS = 48
"""Registers of a thread for places and conditions, beside sums, elements and weights."""

TILES = ((4, 4), (2, 4), (2, 2), (1, 2), (1, 1))
"""Rows and columns of a thread by default: the first that leave each multiprocessor a block."""


@lru_cache(maxsize=256)
def _seen(task: Task) -> Plan | None:
    """The task's fold over windows, if it has one."""
    found = windows(task, NARROW_TOO)
    return None if found is None else Plan(found, 1)


class ThreadWindowsSketch:
    """See the module."""

    name = "thread_windows"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == CUDA and _seen(task) is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        plan = _plan(task)
        each_bytes = max(plan.windows.read.dtype.size_bytes, plan.windows.piece.finish.dtype.size_bytes)
        widest = WIDEST_BYTES // each_bytes
        knobs = (
            Knob("rows", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= plan.rows.extent)),
            Knob("columns", tuple(n for n in (1, 2, 3, 4, 6, 7, 8, 14) if n <= plan.columns.extent)),
            Knob("channels", tuple(n for n in (1, 2, 4, 8) if plan.channels % n == 0 and n <= widest)),
            Knob("threads", (32, 64, 128, 256, 512)),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, columns),
            preferred=_preferred(plan, target, knobs),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        plan = _plan(task)
        found = plan.windows
        main = ThreadWindows(plan, **dict(schedule.values)).lower()
        before, after = (tuple(map(plain_launch, pieces)) for pieces in (found.before, found.after))
        scratch = temporaries(task, (*found.before, found.piece, *found.after))
        return Kernel(params(task, {}), scratch, Block((*before, main, *after)))


def _plan(task: Task) -> Plan:
    found = _seen(task)
    assert found is not None
    return found


def _taps(plan: Plan) -> int:
    """Elements of a window."""
    return prod(direction.taps for direction in plan.windows.directions)


def _registers(
    plan: Plan, rows: NDArray[np.int64], columns: NDArray[np.int64], channels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of a thread with such a tile."""
    taps = plan.columns.taps if len(loads(plan.windows.piece.stage.body)) > 1 else 0
    weights = taps * np.minimum(rows, plan.rows.taps)  # of all rows of a window that one line is for
    return np.asarray(channels * (rows * columns + touched(plan.columns, columns) + weights) + OTHER_REGISTERS)


def _tiles(plan: Plan, columns: Columns) -> NDArray[np.int64]:
    """How many threads there are something to do for."""
    others = prod(direction.extent for direction in plan.others)
    down, across = -(-plan.rows.extent // columns["rows"]), -(-plan.columns.extent // columns["columns"])
    return np.asarray(others * down * across * (plan.channels // columns["channels"]))


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Within the registers, not too much code, and no blocks of threads that mostly have nothing to do."""
    rows, across, channels, threads = (columns[name] for name in ("rows", "columns", "channels", "threads"))
    legal = held(target, threads, _registers(plan, rows, across, channels), np.zeros_like(threads))
    folds = rows * across * _taps(plan)
    legal &= (folds <= BODY_LIMIT) & (folds * channels <= CHANNELS_LIMIT)
    return np.asarray(legal & ((threads == WARP) | (threads < 2 * _tiles(plan, columns))))


def _preferred(plan: Plan, target: Target, knobs: tuple[Knob, ...]) -> Mapping[str, int]:
    """The largest tiles of which there are enough for all multiprocessors, else the smallest."""
    choices = {knob.name: knob.choices for knob in knobs}
    found = {name: sizes[0] for name, sizes in choices.items()}
    for channels in (max(n for n in choices["channels"] if n <= 4), 1):
        for rows, columns in TILES:
            if rows not in choices["rows"] or columns not in choices["columns"]:
                continue
            tile = {"rows": rows, "columns": columns, "channels": channels}
            tiles = int(_tiles(plan, {name: np.array([n]) for name, n in tile.items()})[0])
            threads = max(n for n in choices["threads"] if n == WARP or (n < 2 * tiles and n <= PLAIN_THREADS // 2))
            values = tile | {"threads": threads}
            if _legal(plan, target, {name: np.array([n]) for name, n in values.items()})[0]:
                found = values
                if tiles >= target.threads * threads:
                    return found
    return found


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    """The tile of a thread, and that of a block."""
    stage = plan.windows.piece.stage
    one = np.ones_like(columns["threads"])
    extents = {axis.name: one * axis.extent for axis in (*stage.axes, *stage.reduce)}
    sizes = {plan.rows.axis: columns["rows"], plan.columns.axis: columns["columns"]}
    sizes[plan.windows.channels.name] = columns["channels"]
    thread = {name: np.minimum(sizes.get(name, one), extent) for name, extent in extents.items()}
    thread |= {axis.name: extents[axis.name] for axis in stage.reduce}
    block, left = dict(thread), columns["threads"]
    order = (plan.windows.channels.name, *(d.axis for d in reversed(plan.windows.directions) if d.axis))
    for name in order:
        tiles = -(-extents[name] // thread[name])
        block[name] = np.minimum(thread[name] * np.minimum(left, tiles), extents[name])
        left = -(-left // tiles)
    chunks = -(-_tiles(plan, columns) // columns["threads"])
    return Tiling(stage, (thread, block, extents), plan.windows.channels.name, chunks)

"""Window: depthwise convolution and pooling, the channels along the vector lanes.

    parallel chunk                       rows of the output, by some of its channels
      row tile, channel tile, columns    in one of three orders
        for each row of the input        skipped where it is padding
          for each column of it          left out where it is padding
            load, fold into registers    all windows of the tile that it belongs to
        output[tile] = finish(...)

A tile is a few rows by a few columns by some vectors of channels, and its windows are unrolled. Padding is never made:
of a row of tiles only the first and the last ones touch columns outside, and they are code of their own that leaves
them out. Where nothing but the elements is folded, as in pooling, each column is folded once for all windows that share
it, then the columns of each window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Expr, Var, const, op
from tunewright.codegen.ir import Block, For, If, Kernel, LoopKind, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..nests.digits import digits
from ..nests.direction import Direction
from ..nests.phases import kernel_around
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling
from ..windows.window_tile import Part, Run, WindowTile
from ..windows.windows import Plan, touched, windows

MOST_COLUMNS = 14
"""Columns of a tile."""

BODY_LIMIT = 320
"""Elements folded in one tile, beyond which the instruction cache suffers."""

CODE_LIMIT = 1200
"""Elements folded in all copies of a tile. Beyond it a build takes long, and nothing is gained: of 155 tasks with some
thirty schedules timed each, the fastest of none had more."""

CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE = range(3)
"""Where the loop over tiles of channels is: around the rows, between rows and columns, inside the columns."""


class WindowSketch:
    """See the module."""

    name = "window"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        found = windows(task)
        return target.kind == "cpu" and found is not None

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        plan = _plan(task, target)
        knobs = (
            Knob("vectors", tuple(n for n in (1, 2, 3, 4) if n <= plan.vectors)),
            Knob("tile_columns", tuple(range(1, min(plan.columns.extent, MOST_COLUMNS) + 1))),
            Knob("tile_rows", tuple(n for n in (1, 2, 3, 4) if n <= plan.rows.extent)),
            Knob("block_rows", (0, *(n for n in (1, 2, 4, 7, 8, 14, 16, 28) if n < plan.rows.extent))),
            Knob("block_channels", (0, *(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n < plan.vectors))),
            Knob("order", (CHANNELS_OUTSIDE, CHANNELS_BETWEEN, CHANNELS_INSIDE)),
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
        plan = _plan(task, target)
        found = plan.windows
        main = _Loops(plan, dict(schedule.values)).chunks()
        return kernel_around(main, task, target, found.before, found.piece, found.after)


def _plan(task: Task, target: Target) -> Plan:
    found = windows(task)
    assert found is not None
    return Plan(found, target.lanes(4))


def _small_enough(
    plan: Plan, target: Target, vectors: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache."""
    registers = (plan.kept(rows, columns) + 1) * vectors + 1
    fits = (registers <= target.vector_registers) & (plan.bodies(rows, columns) * vectors <= BODY_LIMIT)
    return np.asarray(fits)


def _legal(plan: Plan, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """What fits, and no two points alike."""
    vectors, rows = columns["vectors"], columns["tile_rows"]
    legal = _small_enough(plan, target, vectors, rows, columns["tile_columns"])
    legal &= _code(plan, vectors, rows, columns["tile_columns"]) <= CODE_LIMIT
    row_tiles, channel_tiles = -(-plan.rows.extent // rows), -(-plan.vectors // vectors)
    rows_inside, channels_inside = columns["block_rows"], columns["block_channels"]
    legal &= (rows_inside < row_tiles) & (channels_inside < channel_tiles)
    rows_inside = np.where(rows_inside == 0, row_tiles, rows_inside)
    channels_inside = np.where(channels_inside == 0, channel_tiles, channels_inside)
    column_tiles = -(-plan.columns.extent // columns["tile_columns"])
    order = columns["order"]
    legal &= (channels_inside > 1) | (order == CHANNELS_OUTSIDE)
    legal &= (rows_inside > 1) | (order != CHANNELS_BETWEEN)
    legal &= (column_tiles > 1) | (order != CHANNELS_INSIDE)
    return np.asarray(legal)


def _code(
    plan: Plan, vectors: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Elements that are folded in all copies of a tile: of all and of the last channels, at columns of each kind."""
    across = np.where(vectors <= plan.vectors, vectors, 0) + plan.vectors % vectors
    return np.asarray(plan.bodies(rows, columns) * across * _copies_table(plan.columns)[columns])


@lru_cache(maxsize=256)
def _copies_table(columns: Direction) -> NDArray[np.int64]:
    """Copies of a tile along the columns, by how many it has; no tile has 0."""
    most = min(columns.extent, MOST_COLUMNS)
    return np.array([0, *(len(Run.all(columns, size)) for size in range(1, most + 1))])


def _preferred(plan: Plan, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """Pooling goes through memory in order; products go over all columns with one vector of channels.

    The first waits for memory, which is best read in order. The second can keep the multipliers busy, if little else
    is to be loaded than the input.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    vectors, rows, columns = _preferred_tile(plan, target, choices)
    values = {"vectors": vectors, "tile_columns": columns, "tile_rows": rows}
    row_tiles, channel_tiles = -(-plan.rows.extent // rows), -(-plan.vectors // vectors)
    if plan.windows.plain:
        inside = channel_tiles > 1 and columns < plan.columns.extent
        order = CHANNELS_INSIDE if inside else CHANNELS_OUTSIDE
        values |= {"block_rows": int(row_tiles > 1), "block_channels": 0, "order": order}
    else:
        together = _rows_together(plan, target, choices["block_rows"])
        values |= {"block_rows": together, "block_channels": int(channel_tiles > 1), "order": CHANNELS_OUTSIDE}
    return values


def _preferred_tile(plan: Plan, target: Target, choices: Mapping[str, Sequence[int]]) -> tuple[int, int, int]:
    """Vectors, rows and columns: of those that fit, what loads the least for a window; the smallest if none does."""
    plain = plan.windows.plain
    most = (4 if plan.columns.stride > 1 else 2) if plain else 1
    rows_most, columns_most = (4, 4) if plain else (1, 8)
    for vectors in sorted((n for n in choices["vectors"] if n <= most), reverse=True):
        sides = product(choices["tile_rows"], choices["tile_columns"])
        rows, columns = np.array([s for s in sides if s[0] <= rows_most and s[1] <= columns_most]).T
        even = -(-plan.columns.extent // -(-plan.columns.extent // columns))
        across = np.full(len(rows), vectors)
        fits = _small_enough(plan, target, across, rows, columns) & (_code(plan, across, rows, even) <= CODE_LIMIT)
        if fits.any():
            loads = touched(plan.rows, rows) * touched(plan.columns, columns) / (rows * columns)
            best = int(np.argmin(np.where(fits, loads, np.inf)))
            return vectors, int(rows[best]), int(even[best])
    return 1, 1, 1


def _rows_together(plan: Plan, target: Target, choices: Sequence[int]) -> int:
    """As many rows as stay in the cache from one vector of channels to the next, the same for each thread."""
    extent = plan.rows.extent
    row_bytes = 4 * plan.channels * plan.columns.extent * plan.columns.stride * max(plan.rows.stride, 1)
    images = prod(d.extent for d in plan.others)
    numbers = {n or extent: n for n in choices}
    kept = [n for n in numbers if n * row_bytes <= target.l2_bytes // 2] or [min(numbers)]
    even = [n for n in kept if extent % n == 0 and images * extent // n % target.threads == 0]
    enough = [n for n in kept if images * -(-extent // n) * plan.vectors >= 4 * target.threads]
    return numbers[max(even or enough or [min(kept)])]


def _tiling(plan: Plan, columns: Columns) -> Tiling:
    stage = plan.windows.piece.stage
    one = np.ones(len(columns["vectors"]), np.int64)
    whole = {a.name: one * a.extent for a in stage.axes + stage.reduce}
    channels = plan.windows.channels.name
    tile = dict.fromkeys(whole, one) | {a.name: whole[a.name] for a in stage.reduce}
    tile[channels] = np.minimum(columns["vectors"] * plan.lanes, plan.channels)
    chunk = dict(tile)
    for direction, size in ((plan.columns, columns["tile_columns"]), (plan.rows, columns["tile_rows"])):
        if direction.axis:
            tile[direction.axis] = size
            chunk[direction.axis] = whole[direction.axis]
    if plan.rows.axis:
        chunk[plan.rows.axis] = _blocked(columns["block_rows"], columns["tile_rows"], plan.rows.extent)
    width = columns["vectors"] * plan.lanes
    chunk[channels] = _blocked(columns["block_channels"], width, plan.channels)
    line = dict(tile)
    if plan.columns.axis:
        line[plan.columns.axis] = whole[plan.columns.axis]
    chunks = one
    for axis in stage.axes:
        chunks = chunks * -(-axis.extent // chunk[axis.name])
    return Tiling(stage, (tile, line, chunk, whole), channels, chunks)


def _blocked(block: NDArray[np.int64], size: NDArray[np.int64], extent: int) -> NDArray[np.int64]:
    return np.where(block == 0, extent, np.minimum(block * size, extent))


class _Loops:
    """The loops of one schedule."""

    def __init__(self, plan: Plan, values: Mapping[str, int]) -> None:
        self.plan, self.values = plan, values
        self.width = values["vectors"] * plan.lanes
        self.row_tiles = -(-plan.rows.extent // values["tile_rows"])
        self.channel_tiles = -(-plan.channels // self.width)
        self.row_block = values["block_rows"] or self.row_tiles
        self.channel_block = values["block_channels"] or self.channel_tiles
        self.ranges = {"row": (0, self.row_block - 1), "channel": (0, self.channel_block - 1)}
        self.runs = Run.all(plan.columns, values["tile_columns"])

    def chunks(self) -> Stmt:
        """The phase."""
        counts = [d.extent for d in self.plan.others]
        counts += [-(-self.row_tiles // self.row_block), -(-self.channel_tiles // self.channel_block)]
        total = prod(counts)
        self.ranges["chunk"] = (0, total - 1)
        numbers = zip(counts, digits(Var("chunk"), counts), strict=True)
        *others, row, channel = [const(0) if count == 1 else number for count, number in numbers]
        body = self.chunk(others, row, channel)
        return For("chunk", total, body, LoopKind.PARALLEL) if total > 1 else body

    def chunk(self, others: Sequence[Expr], row: Expr, channel: Expr) -> Stmt:
        """One chunk, given the places along the other directions and the numbers of its blocks."""
        row_tile = row * self.row_block + (Var("row") if self.row_block > 1 else const(0))

        def tile(run: Run, column_tile: Expr, base: Expr, channels: int) -> Stmt:
            tiles = (*others, row_tile, column_tile)
            ranges = self.ranges | {"column": (0, run.count - 1)}
            return WindowTile(
                self.plan, self.values, run, tiles, base, Part.all(channels, self.plan.lanes), ranges
            ).lower()

        def columns(inside: Callable[[Run, Expr], Stmt]) -> Stmt:
            return Block(tuple(_repeated("column", run.count, partial(inside, run), run.first) for run in self.runs))

        def rows(inside: Stmt) -> Stmt:
            spare = self.row_tiles % self.row_block
            inside = If(op("lt", row_tile, self.row_tiles), inside) if spare else inside
            return For("row", self.row_block, inside) if self.row_block > 1 else inside

        channels = partial(self.channel_loop, channel)
        order = self.values["order"]
        if order == CHANNELS_OUTSIDE:
            return channels(lambda base, n: rows(columns(lambda run, at: tile(run, at, base, n))))
        if order == CHANNELS_BETWEEN:
            return rows(channels(lambda base, n: columns(lambda run, at: tile(run, at, base, n))))
        return rows(columns(lambda run, at: channels(lambda base, n: tile(run, at, base, n))))

    def channel_loop(self, block: Expr, inside: Callable[[Expr, int], Stmt]) -> Stmt:
        """`inside` for each tile of channels of a block: its first channel, and how many there are."""
        whole, rest = divmod(self.plan.channels, self.width)
        together = self.channel_block
        last = [inside(const(whole * self.width), rest)] if rest else []
        if together == self.channel_tiles:
            full = [_repeated("channel", whole, lambda at: inside(at * self.width, self.width))] if whole else []
            return Block((*full, *last))

        def one(at: Expr) -> Stmt:
            number = block * together + at
            steps = [inside(number * self.width, self.width)]
            if rest or self.channel_tiles % together:
                steps = [If(op("lt", number, whole), steps[0]), *(If(op("eq", number, whole), s) for s in last)]
            return Block(tuple(steps))

        return _repeated("channel", together, one)


def _repeated(var: str, extent: int, inside: Callable[[Expr], Stmt], first: int = 0) -> Stmt:
    """`inside` for each number from `first` on; no loop for one alone."""
    return For(var, extent, inside(Var(var) + first)) if extent > 1 else inside(const(first))

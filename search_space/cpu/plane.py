"""Plane: depthwise convolution and pooling of channels-first tensors, neighbouring columns along the vector lanes.

    parallel chunk                       some of the planes, or some rows of one
      plane                              what the fold needs beside elements, such as weights, goes into registers
        row tile, column tile
          for each row of the input      skipped where it is padding
            for each tap, vector         load, fold into the registers of all windows that it belongs to
          output[tile] = epilogue(...)

A tile is a few rows by a few vectors of columns, and its windows are unrolled. Padding is never made: rows of it are
skipped, and tiles at the first and the last columns are code of their own, where lanes outside are replaced by what
leaves the fold as it is. Where nothing but the elements is folded, as in pooling, the columns of a row are folded once
for all rows of windows that share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.ir.ir import Block, For, If, Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..axes import unravel
from ..buffers import kernel_around
from ..counts import digits
from ..description import SchedulePoint
from ..patterns.windows import Windows, match_planes, positions_read
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling, flat_extents, whole_extents
from .loops.chunks import CHUNK, TileAxis, chunk_indices, chunk_loop
from .loops.lower import plain_phase
from .loops.plane_tile import ColumnStrip, PlaneTile, PlaneWeights, RowRun, VectorRun

BODY_LIMIT = 400
"""Vectors folded in one tile, beyond which the instruction cache suffers."""

CODE_LIMIT = 1400
"""Vectors folded in all copies of a tile. Beyond it a build takes long, and nothing is gained: of 176 tasks with some
forty schedules timed each, the fastest of none had more."""

APART_LIMIT = 192
"""Vectors folded in all copies of a tile up to which tiles with rows of padding are copies of their own. Larger ones
are one body with conditions, which is built sooner and as fast: less code is in the way of other code."""

FEWEST_LANES = 4
"""Columns below which other axes are better laid along the lanes."""

SPARE_REGISTERS = 3
"""Registers for elements, beside the sums and weights of a tile."""

SUMS_AT_ONCE = 8
"""Sums that a tile needs to hide how long one multiplication takes."""

LINES_AT_ONCE = 6
"""Rows of the input that a tile reads, beyond which hardware prefetching of large planes falls behind."""

CHUNKS_PER_THREAD = 8
"""Chunks of the parallel loop that even out what the threads get."""


class PlaneSketch(PatternSketch[Windows]):
    """Tiles of windows over planes, with columns along the lanes."""

    name = "plane"
    version = 2

    def recognise(self, task: Task, target: Target) -> Windows | None:
        planes = match_planes(task)
        if planes is None or min(planes.columns.extent, target.lanes(4)) < FEWEST_LANES or planes.taps > BODY_LIMIT:
            return None
        whole = planes.columns.whole
        padded = whole.start, planes.columns.extent - whole.stop  # windows at both ends; each vector of them is code
        least_code = planes.taps * (1 + sum(-(-count // target.lanes(4)) for count in padded))
        return planes if least_code <= CODE_LIMIT else None

    def offer(self, task: Task, planes: Windows, target: Target) -> Space:
        knobs = (
            Knob("lanes", _lanes(planes, target)),
            Knob("vectors", tuple(range(1, 9))),
            Knob("tile_rows", tuple(n for n in (1, 2, 3, 4, 5, 6, 7, 8) if n <= planes.rows.extent)),
            Knob("held", (0, 1), "What is the same for a whole plane, such as weights, stays in registers."),
            Knob("ahead", (0, 1), "The rows of the next tile are prefetched."),
            Knob("block_rows", (0, *(n for n in (1, 2, 4, 8, 16) if n < planes.rows.extent))),
            Knob("block_planes", tuple(n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= _count(planes))),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(planes, target, columns),
            tiling=lambda columns: _tiling(planes, columns),
            preferred=_preferred(planes, target, knobs),
        )

    def write(self, task: Task, planes: Windows, schedule: Schedule, target: Target) -> Kernel:
        main = _PlaneLoops(planes, dict(schedule.values)).chunks()
        return kernel_around((main,), task, planes.stages, partial(plain_phase, target=target))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        planes = self.pattern(point.task, point.target)
        values, count, whole = point.values, _count(planes), planes.rows.extent
        yield from point.say_start("Windows that slide over planes, neighbouring columns along the lanes.")
        rows = min(values["block_rows"] * values["tile_rows"], whole)
        if point.chunks[point.main] > 1:
            part = f"{rows} of {whole} rows" if rows else f"{values['block_planes']} of {digits(count)} planes"
            where = f" of one of {digits(count)} planes" if rows and count > 1 else ""
            yield f"A chunk{point.in_main} has {part}{where}."
        yield from point.say_tile(point.tiles[0])
        yield from point.say_copies(point.tiles[0])
        yield from point.say_knobs()


def _count(planes: Windows) -> int:
    return prod(a.extent for a in planes.others)


def _lanes(planes: Windows, target: Target) -> tuple[int, ...]:
    """Lanes of a vector: no more than cover the columns, to the next power of two."""
    wide = min(target.lanes(4), 1 << (planes.columns.extent - 1).bit_length())
    return tuple(n for n in (wide // 2, wide) if n >= FEWEST_LANES)


def _legal(planes: Windows, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """What fits, without points that are alike."""
    lanes, vectors, rows, in_registers = (columns[name] for name in ("lanes", "vectors", "tile_rows", "held"))
    legal = _small_enough(planes, target, vectors, rows, in_registers)
    legal &= (vectors - 1) * lanes < planes.columns.extent
    legal &= (_code(planes, lanes, vectors, rows) <= CODE_LIMIT) | (vectors * rows == 1)
    tiles = -(-planes.rows.extent // rows)
    legal &= (columns["ahead"] == 0) | (tiles > 1)
    legal &= (columns["block_rows"] < tiles) & ((columns["block_rows"] == 0) | (columns["block_planes"] == 1))
    if planes.is_plain:
        legal &= in_registers == 0
    return np.asarray(legal)


def _small_enough(
    planes: Windows,
    target: Target,
    vectors: NDArray[np.int64],
    rows: NDArray[np.int64],
    in_registers: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache; one window of one vector always is."""
    registers = vectors * rows + in_registers * planes.taps + SPARE_REGISTERS
    fits = (registers <= target.vector_registers) & (vectors * rows * planes.taps <= BODY_LIMIT)
    return np.asarray(fits | ((vectors * rows == 1) & (in_registers == 0)))


def _code(
    planes: Windows, lanes: NDArray[np.int64], vectors: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """About how many vectors are folded in all copies of a tile: at both borders, between them, and of rows left."""
    across = np.minimum(3 * vectors, -(-planes.columns.extent // lanes))
    return np.asarray(across * (rows + planes.rows.extent % rows) * planes.taps)


def _preferred(planes: Windows, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """A tile that loads little. Pooling of large planes prefetches, as it waits for memory most of the time."""
    choices = {knob.name: knob.choices for knob in knobs}
    is_in_cache = 4 * planes.rows.extent * planes.columns.extent * planes.columns.stride**2 <= target.l1_bytes // 2
    values = _preferred_tile(planes, target, choices, is_in_cache)
    count, tiles = _count(planes), -(-planes.rows.extent // values["tile_rows"])
    values["ahead"] = int(planes.is_plain and not is_in_cache and tiles > 1)
    if count >= 2 * target.threads or tiles == 1:
        share = max(1, count // (CHUNKS_PER_THREAD * target.threads))
        values |= {"block_rows": 0, "block_planes": max(n for n in choices["block_planes"] if n <= share)}
    else:
        tiles_per_chunk = max(1, tiles * count // (4 * target.threads))
        values |= {"block_rows": max(n for n in choices["block_rows"] if 0 < n <= tiles_per_chunk), "block_planes": 1}
    return values


def _preferred_tile(
    planes: Windows, target: Target, choices: Mapping[str, Sequence[int]], is_in_cache: bool
) -> dict[str, int]:
    """Weights in registers if they fit, and the tile that costs the least."""
    lanes = choices["lanes"][-1]
    names = "vectors", "tile_rows", "held"
    sizes = vectors, rows, in_registers = np.array(list(product(*(choices[name] for name in names)))).T
    others = {"lanes": lanes, "ahead": 0, "block_rows": 0, "block_planes": 1}
    columns = dict(zip(names, sizes, strict=True)) | {name: np.full(len(rows), n) for name, n in others.items()}
    legal = _legal(planes, target, columns)
    legal &= is_in_cache | (rows == 1) | (positions_read(planes.rows, rows) <= LINES_AT_ONCE)
    legal &= (vectors <= 2) if planes.is_plain else (in_registers == 1) | (vectors * rows <= SUMS_AT_ONCE)
    best = int(np.argmin(np.where(legal, _cost(planes, lanes, vectors, rows, in_registers), np.inf)))
    return {
        "lanes": lanes,
        "vectors": int(vectors[best]),
        "tile_rows": int(rows[best]),
        "held": int(in_registers[best]),
    }


def _cost(
    planes: Windows, lanes: int, vectors: NDArray[np.int64], rows: NDArray[np.int64], in_registers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Estimate the instructions of a plane: vectors loaded and folded, and the overhead of tiles."""
    row_tiles = -(-planes.rows.extent // rows)
    tiles = row_tiles * -(-planes.columns.extent // (lanes * vectors))
    vector_count = row_tiles * -(-planes.columns.extent // lanes)  # vectors of columns, of all rows of tiles
    lines = positions_read(planes.rows, rows)  # of the input
    loaded = lines * planes.columns.taps * (1 if planes.columns.stride == 1 else 3)
    folds = lines * (planes.columns.taps - 1) + rows * planes.rows.taps if planes.is_plain else rows * planes.taps
    latency = np.maximum(0.0, 1 - vectors * rows / SUMS_AT_ONCE) * folds  # too few sums at once hide nothing
    weights = 0 if planes.is_plain else (1 - in_registers) * rows * planes.taps
    return np.asarray(vector_count * (1.5 * loaded + folds + latency) + tiles * (weights + 4))


def _tiling(planes: Windows, columns: Columns) -> Tiling:
    stage, rows, across = planes.fused_stage.stage, planes.rows, planes.columns
    tile = {across.axis: columns["lanes"] * columns["vectors"], rows.axis: columns["tile_rows"]}
    block_rows = columns["block_rows"] * columns["tile_rows"]
    chunk = flat_extents(planes.others, columns["block_planes"])
    chunk[rows.axis] = np.where(columns["block_rows"] == 0, rows.extent, block_rows)
    line = {across.axis: across.extent}
    return Tiling.of(stage, across.axis, columns, (whole_extents(stage.reduce) | tile, line, chunk))


class _PlaneLoops:
    """The loops of one schedule."""

    def __init__(self, planes: Windows, values: Mapping[str, int]) -> None:
        self.planes, self.values = planes, values
        self.width = values["lanes"] * values["vectors"]
        self.rows = TileAxis(planes.rows.extent, values["tile_rows"], values["block_rows"])
        self.others = TileAxis(_count(planes), 1, values["block_planes"])
        self.total = self.others.chunks * self.rows.chunks
        chunk, self.row_chunk = chunk_indices((self.others.chunks, self.rows.chunks))
        self.number = self.others.number(chunk, "plane")
        places = unravel(self.number, [a.extent for a in planes.others])
        plane = dict(zip((a.name for a in planes.others), places, strict=True))
        self.weights = PlaneWeights(planes, values["lanes"], bool(values["held"]), plane)
        counts = {"row": self.rows.tiles, "plane": self.others.tiles_per_chunk, CHUNK: self.total}
        ranges = {var: (0, count - 1) for var, count in counts.items()}
        runs = VectorRun.all(planes.columns, values["lanes"], values["vectors"])
        self.strips = [ColumnStrip(self.weights, run, self.width, ranges) for run in runs]
        self.row_runs = self._cut_rows(values["tile_rows"])

    def _cut_rows(self, size: int) -> list[RowRun]:
        """Tiles of `size` rows; where that is little code, those with padding are runs of their own."""
        runs = RowRun.all(self.planes.rows.extent, size)
        apart = [part for run in runs for part in run.split_padding(self.planes.rows, size)]
        vectors = sum(len(strip.run.vectors) for strip in self.strips)
        folds = vectors * sum(run.rows for run in apart) * self.planes.taps
        return apart if folds <= APART_LIMIT else runs

    def chunks(self) -> Stmt:
        """The loops of the phase."""
        plane = self.others.guard(self.number, self.weights.load(self.plane()))
        return chunk_loop(self.total, self.others.loop("plane", plane))

    def plane(self) -> Stmt:
        """The row tiles of one plane, or of a block of its rows, those of each run with code of their own."""
        if self.rows.chunks == 1:
            return Block(tuple(self.row_run(run) for run in self.row_runs))
        tile = self.rows.number(self.row_chunk, "row")
        variants: list[Stmt] = []
        for run in self.row_runs:
            if run.count == 1:
                variants.append(If(op("eq", tile, run.first), self.columns(run, const(run.first))))
                continue
            within = op("le", const(run.first), tile) if run.first else const(True)
            if len(self.row_runs) > 1 or self.rows.tiles < self.rows.slots:
                within = op("and", within, op("lt", tile, run.tiles.stop))
            body = self.columns(run, tile)
            variants.append(body if within == const(True) else If(within, body))
        return self.rows.loop("row", Block(tuple(variants)))

    def row_run(self, run: RowRun) -> Stmt:
        """Neighbouring row tiles of one size."""
        if run.count == 1:
            return self.columns(run, const(run.first))
        return For("row", run.count, self.columns(run, Var("row") + run.first))

    def columns(self, run: RowRun, row: Expr) -> Stmt:
        """The tiles of one row of tiles."""
        steps: list[Stmt] = []
        for strip in self.strips:
            tile, count = PlaneTile(strip, run, self.values, row).lower(), strip.run.count
            steps.append(For("column", count, tile) if count > 1 else tile)
        return Block(tuple(steps))

"""Plane: depthwise convolution and pooling of channels-first tensors, neighbouring columns along the vector lanes.

    parallel chunk                       some of the planes, or some rows of one
      plane                              what the fold needs beside elements, such as weights, goes into registers
        row tile, column tile
          for each row of the input      skipped where it is padding
            for each tap, vector         load, fold into the registers of all windows that it belongs to
          output[tile] = finish(...)

A tile is a few rows by a few vectors of columns, and its windows are unrolled. Padding is never made: rows of it are
skipped, and tiles at the first and the last columns are code of their own, where lanes outside are replaced by what
leaves the fold as it is. Where nothing but the elements is folded, as in pooling, the columns of a row are folded once
for all rows of windows that share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Expr, Var, const, op
from tunewright.codegen.ir import Block, For, If, Kernel, LoopKind, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..nests.digits import digits
from ..nests.phases import kernel_around
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling
from ..windows.plane_tile import Band, Held, PlaneTile, Stretch, Strip
from ..windows.planes import Planes, planes
from ..windows.windows import touched

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
"""For elements on their way, beside what a tile keeps."""

SUMS_AT_ONCE = 8
"""Sums that a tile needs to hide how long one multiplication takes."""

LINES_AT_ONCE = 6
"""Rows of the input that a tile reads, beyond which what is fetched ahead of large planes falls behind."""

CHUNKS_PER_THREAD = 8
"""Pieces of the parallel loop that even out what the threads get."""


class PlaneSketch:
    """See the module."""

    name = "plane"
    version = 2

    def applies(self, task: Task, target: Target) -> bool:
        found = planes(task)
        return (
            target.kind == "cpu"
            and found is not None
            and min(found.columns.extent, target.lanes(4)) >= FEWEST_LANES
            and found.taps <= BODY_LIMIT
        )

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        found = _planes(task)
        knobs = (
            Knob("lanes", _lanes(found, target)),
            Knob("vectors", tuple(range(1, 9))),
            Knob("tile_rows", tuple(n for n in (1, 2, 3, 4, 5, 6, 7, 8) if n <= found.rows.extent)),
            Knob("held", (0, 1)),
            Knob("ahead", (0, 1)),
            Knob("block_rows", (0, *(n for n in (1, 2, 4, 8, 16) if n < found.rows.extent))),
            Knob("block_planes", tuple(n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n <= _count(found))),
        )
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: _legal(found, target, columns),
            tiling=lambda columns: _tiling(found, columns),
            preferred=_preferred(found, target, knobs),
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = _planes(task)
        main = _Loops(found, dict(schedule.values)).chunks()
        return kernel_around(main, task, target, found.before, found.piece, found.after)


def _planes(task: Task) -> Planes:
    found = planes(task)
    assert found is not None
    return found


def _count(found: Planes) -> int:
    return prod(a.extent for a in found.still)


def _lanes(found: Planes, target: Target) -> tuple[int, ...]:
    """Lanes of a vector: no more than cover the columns, to the next power of two."""
    wide = min(target.lanes(4), 1 << (found.columns.extent - 1).bit_length())
    return tuple(n for n in (wide // 2, wide) if n >= FEWEST_LANES)


def _legal(found: Planes, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """What fits, and no two points alike."""
    lanes, vectors, rows, held = (columns[name] for name in ("lanes", "vectors", "tile_rows", "held"))
    legal = _small_enough(found, target, vectors, rows, held)
    legal &= (vectors - 1) * lanes < found.columns.extent
    legal &= (_code(found, lanes, vectors, rows) <= CODE_LIMIT) | (vectors * rows == 1)
    tiles = -(-found.rows.extent // rows)
    legal &= (columns["ahead"] == 0) | (tiles > 1)
    legal &= (columns["block_rows"] < tiles) & ((columns["block_rows"] == 0) | (columns["block_planes"] == 1))
    if found.plain:
        legal &= held == 0
    return np.asarray(legal)


def _small_enough(
    found: Planes,
    target: Target,
    vectors: NDArray[np.int64],
    rows: NDArray[np.int64],
    held: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Within the registers and the instruction cache; one window of one vector always is."""
    registers = vectors * rows + held * found.taps + SPARE_REGISTERS
    fits = (registers <= target.vector_registers) & (vectors * rows * found.taps <= BODY_LIMIT)
    return np.asarray(fits | ((vectors * rows == 1) & (held == 0)))


def _code(
    found: Planes, lanes: NDArray[np.int64], vectors: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """About how many vectors are folded in all copies of a tile: at both borders, between them, and of rows left."""
    across = np.minimum(3 * vectors, -(-found.columns.extent // lanes))
    return np.asarray(across * (rows + found.rows.extent % rows) * found.taps)


def _preferred(found: Planes, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """A tile that loads little; pooling of large planes asks ahead, since it waits for memory more than it computes."""
    choices = {knob.name: knob.choices for knob in knobs}
    near = 4 * found.rows.extent * found.columns.extent * found.columns.stride**2 <= target.l1_bytes // 2
    values = _preferred_tile(found, target, choices, near)
    count, tiles = _count(found), -(-found.rows.extent // values["tile_rows"])
    values["ahead"] = int(found.plain and not near and tiles > 1)
    if count >= 2 * target.threads or tiles == 1:
        share = max(1, count // (CHUNKS_PER_THREAD * target.threads))
        values |= {"block_rows": 0, "block_planes": max(n for n in choices["block_planes"] if n <= share)}
    else:
        wanted = max(1, tiles * count // (4 * target.threads))
        values |= {"block_rows": max(n for n in choices["block_rows"] if 0 < n <= wanted), "block_planes": 1}
    return values


def _preferred_tile(found: Planes, target: Target, choices: Mapping[str, Sequence[int]], near: bool) -> dict[str, int]:
    """Weights in registers if they fit, and the tile that costs the least."""
    lanes = choices["lanes"][-1]
    names = "vectors", "tile_rows", "held"
    sizes = vectors, rows, held = np.array(list(product(*(choices[name] for name in names)))).T
    others = {"lanes": lanes, "ahead": 0, "block_rows": 0, "block_planes": 1}
    columns = dict(zip(names, sizes, strict=True)) | {name: np.full(len(rows), n) for name, n in others.items()}
    good = _legal(found, target, columns)
    good &= near | (rows == 1) | (touched(found.rows, rows) <= LINES_AT_ONCE)
    good &= (vectors <= 2) if found.plain else (held == 1) | (vectors * rows <= SUMS_AT_ONCE)
    best = int(np.argmin(np.where(good, _cost(found, lanes, vectors, rows, held), np.inf)))
    return {"lanes": lanes, "vectors": int(vectors[best]), "tile_rows": int(rows[best]), "held": int(held[best])}


def _cost(
    found: Planes, lanes: int, vectors: NDArray[np.int64], rows: NDArray[np.int64], held: NDArray[np.int64]
) -> NDArray[np.float64]:
    """About what a plane takes, in instructions: vectors loaded and folded, and what surrounds a tile."""
    row_tiles = -(-found.rows.extent // rows)
    tiles = row_tiles * -(-found.columns.extent // (lanes * vectors))
    whole = row_tiles * -(-found.columns.extent // lanes)  # vectors of columns, of all rows of tiles
    lines = touched(found.rows, rows)  # of the input
    loaded = lines * found.columns.taps * (1 if found.columns.stride == 1 else 3)
    joined = lines * (found.columns.taps - 1) + rows * found.rows.taps if found.plain else rows * found.taps
    few = np.maximum(0.0, 1 - vectors * rows / SUMS_AT_ONCE) * joined  # too few sums at once hide nothing
    weights = 0 if found.plain else (1 - held) * rows * found.taps
    return np.asarray(whole * (1.5 * loaded + joined + few) + tiles * (weights + 4))


def _tiling(found: Planes, columns: Columns) -> Tiling:
    stage = found.piece.stage
    one = np.ones(len(columns["lanes"]), np.int64)
    whole = {a.name: one * a.extent for a in stage.axes + stage.reduce}
    tile = dict.fromkeys(whole, one) | {a.name: whole[a.name] for a in stage.reduce}
    width = columns["lanes"] * columns["vectors"]
    tile[found.columns.axis] = np.minimum(width, found.columns.extent)
    line, chunk = dict(tile), dict(tile)
    line[found.columns.axis] = chunk[found.columns.axis] = whole[found.columns.axis]
    if found.rows.axis:
        tile[found.rows.axis] = line[found.rows.axis] = columns["tile_rows"]
        rows = np.minimum(columns["block_rows"] * columns["tile_rows"], found.rows.extent)
        chunk[found.rows.axis] = np.where(columns["block_rows"] == 0, found.rows.extent, rows)
    left = columns["block_planes"]
    for axis in reversed(found.still):
        chunk[axis.name] = np.minimum(left, axis.extent)
        left = -(-left // axis.extent)
    chunks = one
    for axis in stage.axes:
        chunks = chunks * -(-axis.extent // chunk[axis.name])
    return Tiling(stage, (tile, line, chunk, whole), found.columns.axis, chunks)


class _Loops:
    """The loops of one schedule."""

    def __init__(self, found: Planes, values: Mapping[str, int]) -> None:
        self.found, self.values = found, values
        self.width = values["lanes"] * values["vectors"]
        self.count, self.together = _count(found), values["block_planes"]
        self.tiles = -(-found.rows.extent // values["tile_rows"])
        self.block = values["block_rows"] or self.tiles
        blocks, parts = -(-self.tiles // self.block), -(-self.count // self.together)
        self.total = blocks * parts
        chunk: Expr = Var("chunk") if self.total > 1 else const(0)
        part, self.place = (chunk, const(0)) if blocks == 1 else (chunk // blocks, chunk % blocks)  # of rows
        self.number = part * self.together + (Var("plane") if self.together > 1 else const(0))
        places = digits(self.number, [a.extent for a in found.still])
        plane = dict(zip((a.name for a in found.still), places, strict=True))
        self.held = Held(found, values["lanes"], bool(values["held"]), plane)
        counts = {"row": self.tiles, "plane": self.together, "chunk": self.total}
        ranges = {var: (0, count - 1) for var, count in counts.items()}
        stretches = Stretch.all(found.columns, values["lanes"], values["vectors"])
        self.strips = [Strip(self.held, stretch, self.width, ranges) for stretch in stretches]
        self.bands = self.banded(values["tile_rows"])

    def banded(self, size: int) -> list[Band]:
        """Tiles of so many rows; where that is little code, those with padding apart from the others."""
        bands = Band.all(self.found.rows.extent, size)
        apart = [part for band in bands for part in band.apart(self.found.rows, size)]
        vectors = sum(len(strip.stretch.vectors) for strip in self.strips)
        folds = vectors * sum(band.rows for band in apart) * self.found.taps
        return apart if folds <= APART_LIMIT else bands

    def chunks(self) -> Stmt:
        """The phase."""
        body = self.held.keep(self.rows())
        if self.count % self.together:
            body = If(op("lt", self.number, self.count), body)
        if self.together > 1:
            body = For("plane", self.together, body)
        return For("chunk", self.total, body, LoopKind.PARALLEL) if self.total > 1 else body

    def rows(self) -> Stmt:
        """The row tiles of one plane, or of a block of its rows, those of each band with code of their own."""
        if self.block == self.tiles:
            return Block(tuple(self.band(band) for band in self.bands))
        tile = self.place * self.block + (Var("row") if self.block > 1 else const(0))
        variants: list[Stmt] = []
        for band in self.bands:
            if band.count == 1:
                variants.append(If(op("eq", tile, band.first), self.columns(band, const(band.first))))
                continue
            within = op("le", const(band.first), tile) if band.first else const(True)
            if len(self.bands) > 1 or self.tiles % self.block:
                within = op("and", within, op("lt", tile, band.tiles.stop))
            body = self.columns(band, tile)
            variants.append(body if within == const(True) else If(within, body))
        return For("row", self.block, Block(tuple(variants))) if self.block > 1 else Block(tuple(variants))

    def band(self, band: Band) -> Stmt:
        """Neighbouring row tiles of one size."""
        if band.count == 1:
            return self.columns(band, const(band.first))
        return For("row", band.count, self.columns(band, Var("row") + band.first))

    def columns(self, band: Band, row: Expr) -> Stmt:
        """The tiles of one row of tiles."""
        steps: list[Stmt] = []
        for strip in self.strips:
            tile, count = PlaneTile(strip, band, self.values, row).lower(), strip.stretch.count
            steps.append(For("column", count, tile) if count > 1 else tile)
        return Block(tuple(steps))

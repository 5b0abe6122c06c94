"""Generic: any task as tiled, vectorised loops, derived from its index expressions alone.

Fused stages that pass data within rows only run together, row by row (`patterns.rows`); the others are phases of their
own. The knobs are for the fused stage where most of the work is; the rest takes fair numbers (`plain_nest`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.ir.ir import Block, Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..buffers import allocate, params, temporaries
from ..counts import digits
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage, fuse_stages
from ..patterns.rows import RowGroup, row_groups
from ..patterns.vector_axis import crossing_axis, vector_axes
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling, whole_extents
from .loops.chunks import row_loop
from .loops.lower import lower, plain_nest, plain_phase
from .loops.nest import Nest

BODY_LIMIT = 256
"""Copies of the innermost body in one register tile, beyond which the instruction cache suffers."""

CHUNK_POINTS = tuple(1 << n for n in range(10, 21))
"""Evaluations of the body in one chunk of the parallel loop."""

CHUNKS_PER_THREAD = 8
"""Chunks of the parallel loop that even out what the threads get."""


@dataclass(frozen=True, slots=True)
class GenericLayout:
    """The row groups of a task, the group that the knobs tile, and the axes for the lanes."""

    groups: tuple[RowGroup, ...]
    group: RowGroup  # that of the main fused stage
    vectors: tuple[str, ...]  # axes that may lie along the lanes, best first; "" for none

    @property
    def main(self) -> FusedStage:
        """The fused stage that the knobs are for."""
        return self.group.main

    @property
    def rows(self) -> tuple[str, ...]:
        """The axes whose loop is around the whole group."""
        return tuple(axis.name for axis in self.group.rows)

    def extent(self, axis: str) -> int:
        """Extent of an axis of the main fused stage; 1 for none."""
        return next((a.extent for a in (*self.main.stage.axes, *self.main.stage.reduce) if a.name == axis), 1)

    def tile_axis(self, vector: str) -> str:
        """The axis tiled beside the vector axis: where loads cross the lanes, the one that they run along.

        Else the last other spatial one; "" if there is none.
        """
        crossed = self.crossing_axis(vector)
        if crossed:
            return crossed
        free = [a.name for a in self.main.stage.axes if a.name not in self.rows and a.name != vector]
        return free[-1] if free else ""

    def crossing_axis(self, vector: str) -> str:
        """The axis that loads which cross the lanes run along; "" if there are none."""
        axis = crossing_axis(self.main, vector)
        return "" if axis in self.rows else axis


@lru_cache(maxsize=256)
def generic_layout(task: Task, lanes: int) -> GenericLayout:
    """The layout of a task's loops."""
    groups = row_groups(task, fuse_stages(task))
    group = max(groups, key=lambda g: g.main.stage.points)
    rows = {axis.name for axis in group.rows}
    axes = [a for a in vector_axes(group.main, lanes) if a not in rows]
    return GenericLayout(tuple(groups), group, tuple(axes[:3]) or ("",))


class GenericSketch(PatternSketch[GenericLayout]):
    """Tiled loops of any task."""

    name = "generic"
    version = 2

    def recognise(self, task: Task, target: Target) -> GenericLayout | None:
        return generic_layout(task, target.lanes(4))

    def offer(self, task: Task, plan: GenericLayout, target: Target) -> Space:
        free = [a for a in plan.main.stage.axes if a.name not in plan.rows]
        widest = max((a.extent for a in free), default=1)
        copies = prod(a.extent for a in plan.main.stage.reduce)
        lanes = target.lanes(4)
        square = {min(lanes, plan.extent(axis)) for axis in map(plan.crossing_axis, plan.vectors) if axis}
        knobs = (
            Knob("along", tuple(range(len(plan.vectors)))),
            Knob("vectors", (1, 2, 4, 8)),
            Knob("tile", tuple(n for n in sorted({1, 2, 3, 4, 6, 7, 8} | square) if n <= widest)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8, 16) if n == 1 or n < 2 * copies)),
            Knob("chunk_points", CHUNK_POINTS),
        )
        return self.space_of(
            knobs,
            legal=lambda columns: _legal(plan, target, columns),
            tiling=lambda columns: _tiling(plan, target, columns),
            preferred=_preferred(plan, target, knobs),
        )

    def write(self, task: Task, plan: GenericLayout, schedule: Schedule, target: Target) -> Kernel:
        steps: list[Stmt] = []
        for group in plan.groups:
            nest = _nest(plan, dict(schedule.values), target) if plan.main in group.stages else None
            if group.rows:
                steps.append(_row_loop(group, plan.main, nest, schedule["chunk_points"], target))
            else:
                steps += [lower(nest) if nest and p == plan.main else plain_phase(p, target) for p in group.stages]
        local = {b.name for group in plan.groups for b in group.locals}
        scratch = temporaries(task, (p for group in plan.groups for p in group.stages if p.output not in local))
        return Kernel(params(task, {}), scratch, Block(tuple(steps)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        plan = self.pattern(point.task, point.target)
        yield from point.say_start("Loops that follow from the indices of the task alone, tiled and along the lanes.")
        tile, count = point.even_tile(point.tiles[0], point.whole), plan.group.row_count
        if plan.rows:
            each = min(count, max(1, point.values["chunk_points"] // max(plan.group.row_points, 1)))
            chunk = f"; a chunk has {digits(each)} of {digits(count)} rows" if each < count else ""
            yield f"{len(plan.group.stages)} steps run row by row{chunk}."
        else:
            yield from point.say_chunk_of_tiles(tile)
        yield from point.say_tile(tile)
        yield from point.say_copies(point.tiles[0])


def _legal(plan: GenericLayout, target: Target, columns: Columns) -> NDArray[np.bool_]:
    copies = columns["vectors"] * columns["tile"]
    legal = (copies + columns["vectors"] + 1 <= target.vector_registers) & (copies * columns["unroll"] <= BODY_LIMIT)
    for number, vector in enumerate(plan.vectors):
        is_chosen = columns["along"] == number
        fits = -(-plan.extent(vector) // target.lanes(4))
        legal &= ~is_chosen | (columns["vectors"] < 2 * fits)
        legal &= ~is_chosen | (columns["tile"] <= plan.extent(plan.tile_axis(vector)))
    halved = {**columns, "chunk_points": columns["chunk_points"] // 2}
    same = np.all(
        [a == b for a, b in zip(_blocks(plan, target, columns), _blocks(plan, target, halved), strict=True)], 0
    )
    return np.asarray(legal & (~same | (columns["chunk_points"] == CHUNK_POINTS[0])))


def _blocks(plan: GenericLayout, target: Target, columns: Columns) -> list[NDArray[np.int64]]:
    """The rows, or the tiles along each axis, of a chunk of so many points: see `with_chunks`."""
    points = columns["chunk_points"]
    if plan.rows:
        return [np.minimum(plan.group.row_count, np.maximum(1, points // max(plan.group.row_points, 1)))]
    stage = plan.main.stage
    tiles = _tile_columns(plan, target, columns)
    blocks = []
    covered = np.full(len(points), prod(a.extent for a in stage.reduce))
    for axis in reversed(stage.axes):
        block = np.maximum(1, points // (covered * tiles[axis.name]))
        blocks.append(np.where(covered * axis.extent <= points, 0, np.minimum(block, axis.extent)))
        covered = covered * axis.extent
    return blocks


def _preferred(plan: GenericLayout, target: Target, knobs: Sequence[Knob]) -> dict[str, int]:
    """The best axis along the lanes, up to four vectors, chunks of a size that is worth sharing.

    Each register of a vector is of its own, beside one that is loaded and one that is broadcast.
    """
    choices = {knob.name: knob.choices for knob in knobs}
    fits = -(-plan.extent(plan.vectors[0]) // target.lanes(4))
    vectors = max(n for n in (1, 2, 4) if n < 2 * fits and 2 * n + 1 <= target.vector_registers)
    values = {"along": 0, "vectors": vectors, "tile": 1, "unroll": 1}
    crossed = plan.crossing_axis(plan.vectors[0])
    if crossed:
        most = min(target.lanes(4), plan.extent(crossed), target.vector_registers - 2)
        values |= {"vectors": 1, "tile": max(n for n in choices["tile"] if n <= most)}
    share = plan.main.stage.points // (CHUNKS_PER_THREAD * target.threads)
    sizes = np.array([n for n in CHUNK_POINTS if n <= min(max(share, 1 << 11), 1 << 14)])
    columns = {name: np.full(len(sizes), value) for name, value in values.items()} | {"chunk_points": sizes}
    return values | {"chunk_points": int(sizes[_legal(plan, target, columns)][-1])}


def _unrolls(plan: GenericLayout, vector: str, copies: int) -> Mapping[str, int]:
    """Share copies of the body among the reduction axes, the innermost first."""
    unroll: dict[str, int] = {}
    for axis in reversed(plan.main.stage.reduce):
        if axis.name != vector:
            unroll[axis.name] = min(copies, axis.extent)
            copies = copies // axis.extent if unroll[axis.name] == axis.extent else 1
    return unroll


def _nest(plan: GenericLayout, values: Mapping[str, int], target: Target) -> Nest:
    lanes = target.lanes(4)
    vector, stage = plan.vectors[values["along"]], plan.main.stage
    unroll = dict(_unrolls(plan, vector, values["unroll"]))
    tile = {plan.tile_axis(vector): values["tile"]}
    if any(a.name == vector for a in stage.reduce):
        unroll[vector] = values["vectors"]
    else:
        tile[vector] = values["vectors"] * lanes
    base = plain_nest(plan.main, target, frozenset(plan.rows))
    nest = Nest(plan.main, lanes, vector, tile, {}, unroll, fixed=base.fixed)
    return nest.with_chunks(values["chunk_points"])


def _row_loop(group: RowGroup, main: FusedStage, nest: Nest | None, chunk_points: int, target: Target) -> Stmt:
    """One parallel loop over the rows, all fused stages of the group inside."""
    fixed = frozenset(axis.name for axis in group.rows)
    body: Stmt = Block(tuple(lower(nest if nest and p == main else plain_nest(p, target, fixed)) for p in group.stages))
    size = max(1, chunk_points // max(group.row_points, 1))
    return row_loop(group.rows, size, allocate(group.locals, body))


def _tiling(plan: GenericLayout, target: Target, columns: Columns) -> Tiling:
    stage = plan.main.stage
    tile = _tile_columns(plan, target, columns)
    chunk: dict[str, NDArray[np.int64]] = {}
    covered = np.full(len(columns["along"]), prod(a.extent for a in stage.reduce))
    for axis in reversed(stage.axes):
        left = np.maximum(columns["chunk_points"] // np.maximum(covered, 1), 1)
        chunk[axis.name] = np.minimum(np.maximum(left, tile[axis.name]), axis.extent)
        covered = covered * chunk[axis.name]
    along = np.array(plan.vectors)[columns["along"]]
    return Tiling.of(stage, along, columns, (tile, whole_extents(stage.reduce), chunk))


def _tile_columns(plan: GenericLayout, target: Target, columns: Columns) -> dict[str, NDArray[np.int64]]:
    """Extent of the register tile along each axis; of a reduction axis, copies of the body."""
    stage, lanes = plan.main.stage, target.lanes(4)
    tile = {a.name: np.ones(len(columns["along"]), np.int64) for a in (*stage.axes, *stage.reduce)}
    for number, vector in enumerate(plan.vectors):
        is_chosen = columns["along"] == number
        if vector:
            tile[vector][is_chosen] = np.minimum(columns["vectors"][is_chosen] * lanes, plan.extent(vector))
        axis = plan.tile_axis(vector)
        if axis:
            tile[axis][is_chosen] = columns["tile"][is_chosen]
        for name, copies in _unroll_columns(plan, vector, columns["unroll"]).items():
            tile[name][is_chosen] = copies[is_chosen]
    return tile


def _unroll_columns(plan: GenericLayout, vector: str, copies: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
    """`_unrolls` for many points."""
    shares = {int(n): _unrolls(plan, vector, int(n)) for n in np.unique(copies)}
    names = [a.name for a in plan.main.stage.reduce if a.name != vector]
    return {name: np.array([shares[int(n)][name] for n in copies], np.int64) for name in names}

"""Loops: register-tiled loops for one fused stage, the part that all CPU sketches share.

    parallel chunk                     chunks of the output, shared by the threads
      tile loops (order)               origins of register tiles inside the chunk
        .wide = cast(panel)            where narrow weights are cast for several tiles: see `wide_panel`
        if size                        an odd extent has tiles of two sizes
          acc[tile] = identity         register buffer, one vector a lane group
          reduce loops                 the innermost unrolled
            if edge                    where a window leaves what it reads, a body of its own for the places left
              acc[tile] = fold(acc[tile], body)
          output[tile] = epilogue(acc[tile])

One axis lies along the vector lanes: either a spatial axis, or a reduction axis, whose partial results are folded
across the lanes at the end. A load that does not depend on all axes of the tile is made once and kept in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.expr.symbolic import is_plain
from tunewright.codegen.ir.ir import Alloc, Block, For, If, Stmt
from tunewright.codegen.target import Target

from ...axes import TileRun
from ...patterns.fused_stage import FusedStage
from ...patterns.vector_axis import crossing_axis, vector_axes
from ...registers import TILE
from .chunks import chunk_indices, chunk_loop
from .nest import Nest
from .tile import Tile


def lower(nest: Nest) -> Stmt:
    """The loops of a nest. With fixed axes, or one chunk, there is no parallel loop."""
    counts = {axis: nest.tile_axis(axis).chunks for axis in nest.spatial}
    if not nest.fixed:
        chunk = dict(zip(counts, chunk_indices(tuple(counts.values())), strict=True))
        return chunk_loop(prod(counts.values()), _tile_loops(nest, chunk))
    body = _tile_loops(nest, {axis: Var(f"{axis}.chunk") if n > 1 else const(0) for axis, n in counts.items()})
    for axis, count in reversed(counts.items()):
        if count > 1:
            body = For(f"{axis}.chunk", count, body)
    return body


def _tile_loops(nest: Nest, chunk: Mapping[str, Expr]) -> Stmt:
    tile = {axis: nest.tile_axis(axis).number(chunk[axis], axis + TILE) for axis in nest.spatial}
    body = _variants(nest, tile, nest.spatial, {})
    for axis in reversed(nest.order or nest.spatial):
        if nest.wide_panel is not None and axis == nest.vector:
            fill = nest.tile_axis(axis).guard(tile[axis], nest.wide_panel.fill(axis, tile, nest.lanes))
            body = Alloc(nest.wide_panel.buffer, Block((fill, body)))
        body = nest.tile_axis(axis).loop(axis + TILE, body)
    return body


def _variants(nest: Nest, tile: Mapping[str, Expr], axes: Sequence[str], runs: dict[str, TileRun]) -> Stmt:
    """The tile body once for each size of tiles along each axis."""
    if not axes:
        return Tile(nest, tile, runs).lower()
    axis, *rest = axes
    slots = nest.tile_axis(axis).slots
    variants: list[Stmt] = []
    for run in nest.runs(axis):
        number = const(run.first) if is_plain(run.count, 1) else tile[axis]
        body = _variants(nest, {**tile, axis: number}, rest, {**runs, axis: run})
        variants.append(only_run(tile[axis], run, slots, body))
    return Block(tuple(variants)) if len(variants) > 1 else variants[0]


def only_run(number: Expr, run: TileRun, slots: int, body: Stmt) -> Stmt:
    """The body where the number of a tile, of `slots` numbers, is one of the run's."""
    if is_plain(run.count, 1) and slots > 1:
        return If(op("eq", number, run.first), body)
    if run.first + run.count < slots:
        body = If(op("lt", number, run.first + run.count), body)
    return If(op("le", const(run.first), number), body) if run.first else body


CHUNK_POINTS = 16_384
"""Body evaluations below which a parallel chunk does not pay for the barrier."""


def plain_nest(fused_stage: FusedStage, target: Target, fixed: frozenset[str] = frozenset()) -> Nest:
    """A nest with fair numbers: up to four vectors a tile, chunks large enough to be worth sharing.

    A fused stage that reads across its lanes has square tiles, which are transposed in registers.
    """
    lanes = target.lanes(4)
    stage = fused_stage.stage
    vector = next((a for a in vector_axes(fused_stage, lanes) if a not in fixed), "")
    crossed = crossing_axis(fused_stage, vector)
    tile = {vector: 4 * lanes} if any(a.name == vector for a in stage.axes) else {}
    if crossed and crossed not in fixed:
        tile = {vector: lanes, crossed: lanes}
    unroll = {vector: 4} if any(a.name == vector for a in stage.reduce) else {}
    return Nest(fused_stage, lanes, vector, tile, {}, unroll, fixed=fixed).with_chunks(CHUNK_POINTS)


def plain_phase(fused_stage: FusedStage, target: Target) -> Stmt:
    """The fused stage as a phase of its own."""
    return lower(plain_nest(fused_stage, target))

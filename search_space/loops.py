"""Loops: register-tiled loops for one piece, the part that all CPU sketches share.

    parallel chunk                     pieces of the output, shared by the threads
      tile loops (order)               origins of register tiles inside the chunk
        if full / if tail              an odd extent is a second, smaller tile
          acc[tile] = identity         register buffer, one vector a lane group
          reduce loops                 the innermost unrolled
            acc[tile] = fold(acc[tile], body)
          output[tile] = finish(acc[tile])

One axis lies along the vector lanes: either a spatial axis, or a reduction axis, whose partial results are folded
across the lanes at the end. A load that does not depend on all axes of the tile is made once and kept in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tunewright.codegen.expr import Expr, Var, const, op
from tunewright.codegen.ir import Block, For, If, LoopKind, Stmt

from .nest import Nest
from .tile import TILE, Tile


def lower(nest: Nest) -> Stmt:
    """The loops of a nest. With fixed axes, or one chunk, there is no parallel loop."""
    total = prod(nest.chunks(a) for a in nest.spatial)
    parallel = total > 1 and not nest.fixed
    numbers: dict[str, Expr] = {}
    stride = total
    for axis in nest.spatial:
        count = nest.chunks(axis)
        stride //= count
        if count == 1:
            numbers[axis] = const(0)
        elif parallel:
            outer = Var("chunk") // stride
            numbers[axis] = outer if stride * count == total else outer % count
        else:
            numbers[axis] = Var(f"{axis}.chunk")
    body = _tile_loops(nest, numbers)
    if parallel:
        return For("chunk", total, body, LoopKind.PARALLEL)
    for axis in reversed(nest.spatial):
        if nest.chunks(axis) > 1:
            body = For(f"{axis}.chunk", nest.chunks(axis), body)
    return body


def _tile_loops(nest: Nest, chunk: Mapping[str, Expr]) -> Stmt:
    tile = {}
    for axis in nest.spatial:
        inside = nest.tiles_per_chunk(axis)
        step = Var(axis + TILE) if inside > 1 else const(0)
        tile[axis] = chunk[axis] * inside + step
    body = _variants(nest, tile, nest.spatial, {})
    for axis in reversed(nest.order or nest.spatial):
        if nest.tiles_per_chunk(axis) > 1:
            body = For(axis + TILE, nest.tiles_per_chunk(axis), body)
    return body


def _variants(nest: Nest, tile: Mapping[str, Expr], axes: Sequence[str], sizes: dict[str, int]) -> Stmt:
    """The tile body once for full tiles and once for the smaller last one, along each axis."""
    if not axes:
        return Tile(nest, tile, sizes).lower()
    axis, *rest = axes
    extent, size = nest.extent(axis), nest.tile_extent(axis)
    full, tail = divmod(extent, size)
    whole = _variants(nest, tile, rest, {**sizes, axis: size})
    if tail:
        part = _variants(nest, tile, rest, {**sizes, axis: tail})
        return Block((If(op("lt", tile[axis], full), whole), If(op("eq", tile[axis], full), part)))
    if nest.chunks(axis) * nest.tiles_per_chunk(axis) > full:
        return If(op("lt", tile[axis], full), whole)
    return whole

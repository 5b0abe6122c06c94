"""Nest: how the loops of one piece are tiled. `loops.lower` writes them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from .pieces import Piece


@dataclass(frozen=True, slots=True)
class Nest:
    """How the loops of one piece are tiled. Axes that a mapping leaves out have 1."""

    piece: Piece
    lanes: int
    vector: str  # the axis along the lanes: spatial or reduction; empty for scalar code
    tile: Mapping[str, int]  # spatial axis -> extent of the register tile
    block: Mapping[str, int]  # spatial axis -> tiles in one parallel chunk; 0 for all
    unroll: Mapping[str, int]  # reduction axis -> copies of its body (of vectors, for the axis along the lanes)
    order: tuple[str, ...] = ()  # tile loops of a chunk, outermost first; empty: as the axes are
    fixed: frozenset[str] = frozenset()  # axes whose loops are the caller's
    ahead: Mapping[str, int] = field(default_factory=dict)  # tensor -> steps of the innermost reduction to prefetch

    def tiles(self, axis: str) -> int:
        """Number of tiles along a spatial axis, the smaller last one included."""
        return -(-self.extent(axis) // self.tile_extent(axis))

    def tile_extent(self, axis: str) -> int:
        """Extent of a full register tile."""
        return min(self.tile.get(axis, 1), self.extent(axis))

    def tiles_per_chunk(self, axis: str) -> int:
        """How many tiles along the axis belong to one chunk."""
        return min(self.block.get(axis, 1) or self.tiles(axis), self.tiles(axis))

    def chunks(self, axis: str) -> int:
        """Number of chunks along a spatial axis."""
        return -(-self.tiles(axis) // self.tiles_per_chunk(axis))

    def with_chunks(self, points: int) -> Nest:
        """The same nest with chunks that evaluate the body about `points` times: whole inner axes, a block of one."""
        block: dict[str, int] = {}
        covered = prod(a.extent for a in self.piece.stage.reduce)
        for axis in reversed(self.spatial):
            extent = self.extent(axis)
            whole = covered * extent <= points
            block[axis] = 0 if whole else max(1, points // (covered * self.tile_extent(axis)))
            covered *= extent
        return replace(self, block=block)

    def extent(self, axis: str) -> int:
        """Extent of a spatial axis."""
        return next(a.extent for a in self.piece.stage.axes if a.name == axis)

    @property
    def spatial(self) -> tuple[str, ...]:
        """The axes whose loops are made here, in the order of the stage."""
        return tuple(a.name for a in self.piece.stage.axes if a.name not in self.fixed)

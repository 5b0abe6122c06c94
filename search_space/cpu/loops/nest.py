"""Nest: how the loops of one fused stage are tiled. `loops.lower` writes them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from ...axes import TileRun, balance, runs
from ...patterns.fused_stage import FusedStage
from ...patterns.window_dim import WindowDim
from .chunks import CHUNK, TileAxis
from .wide_panel import WidePanel

CALLER = frozenset({CHUNK})
"""The fixed axes of a nest inside a chunk of the caller, which has no parallel loop."""


@dataclass(frozen=True, slots=True)
class Nest:
    """How the loops of one fused stage are tiled. Axes that a mapping leaves out have 1."""

    fused_stage: FusedStage
    lanes: int
    vector: str  # the axis along the lanes: spatial or reduction; empty for scalar code
    tile: Mapping[str, int]  # spatial axis -> extent of the register tile
    block: Mapping[str, int]  # spatial axis -> tiles in one parallel chunk; 0 for all
    unroll: Mapping[str, int]  # reduction axis -> copies of its body (of vectors, for the axis along the lanes)
    order: tuple[str, ...] = ()  # tile loops of a chunk, outermost first; empty: as the axes are
    fixed: frozenset[str] = frozenset()  # axes whose loops are the caller's
    edges: tuple[WindowDim, ...] = ()  # where the body is not evaluated; one an axis and one a tap at most
    prefetch: Mapping[str, int] = field(default_factory=dict)  # tensor -> steps of the innermost reduction to prefetch
    wide_panel: WidePanel | None = None  # which the body reads, filled once for the tiles at one place along the lanes
    compact: bool = False  # whether short tiles cross the lanes in little code: in registers or by way of memory

    def tile_axis(self, axis: str) -> TileAxis:
        """The tiles along a spatial axis as chunks have them, those of the smaller size included."""
        return TileAxis(self.extent(axis), self.tile_extent(axis), self.block.get(axis, 1))

    def tile_extent(self, axis: str) -> int:
        """Extent of the largest register tile."""
        size = min(self.tile.get(axis, 1), self.extent(axis))
        return size if axis == self.vector else balance(self.extent(axis), size)

    def runs(self, axis: str) -> list[TileRun]:
        """The tiles along a spatial axis: along the lanes all are full but the last, elsewhere they are balanced."""
        extent, size = self.extent(axis), self.tile_extent(axis)
        if axis != self.vector:
            return runs(extent, size)
        full, tail = divmod(extent, size)
        return [TileRun(0, full, size), *([TileRun(full, 1, tail, full * (size - tail))] if tail else [])]

    def with_chunks(self, points: int) -> Nest:
        """The same nest with chunks that evaluate the body about `points` times: whole inner axes, a block of one."""
        block: dict[str, int] = {}
        covered = prod(a.extent for a in self.fused_stage.stage.reduce)
        for axis in reversed(self.spatial):
            extent = self.extent(axis)
            whole = covered * extent <= points
            block[axis] = 0 if whole else max(1, points // (covered * self.tile_extent(axis)))
            covered *= extent
        return replace(self, block=block)

    def extent(self, axis: str) -> int:
        """Extent of a spatial axis."""
        return next(a.extent for a in self.fused_stage.stage.axes if a.name == axis)

    @property
    def spatial(self) -> tuple[str, ...]:
        """The axes whose loops are made here, in the order of the stage."""
        return tuple(a.name for a in self.fused_stage.stage.axes if a.name not in self.fixed)

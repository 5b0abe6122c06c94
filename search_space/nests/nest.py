"""Nest: how the loops of one piece are tiled. `loops.lower` writes them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tunewright.codegen.expr import Expr, op

from .pieces import Piece

CALLER = frozenset({"chunk"})
"""What is fixed in a nest whose loops run inside a chunk of the caller's: so it has no parallel one."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tiles of one size along an axis: tile t begins at t * size + offset."""

    first: int  # number of the first tile
    count: int
    size: int
    offset: int = 0

    @property
    def start(self) -> int:
        """Where the first tile begins."""
        return self.first * self.size + self.offset

    def part(self, first: int, last: int) -> Run:
        """The tiles first .. last of the run, without those that it doesn't have."""
        first, last = max(first, self.first), min(last, self.first + self.count - 1)
        return replace(self, first=first, count=max(0, last - first + 1))


@dataclass(frozen=True, slots=True)
class Taps:
    """Neighbouring taps at which the same places of a tile read inside: `span`, from the first to behind the last."""

    first: int
    count: int
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Edge:
    """A window that reaches beyond what it reads.

    The body adds something only where `axis * stride + tap * dilation - before` is in 0 .. extent - 1.
    """

    axis: str  # spatial
    tap: str  # reduction
    taps: int  # extent of `tap`
    stride: int
    dilation: int
    before: int
    extent: int

    def place(self, axis: Expr, tap: Expr) -> Expr:
        """What the window reads."""
        return op("sub", axis * self.stride + tap * self.dilation, self.before)

    def inside(self, start: int, size: int, tap: int) -> tuple[int, int]:
        """Which of the places start .. start + size - 1 read inside at that tap: from the first to behind the last."""
        shift = start * self.stride + tap * self.dilation - self.before
        first = max(0, -(shift // self.stride))
        return first, max(first, min(size, (self.extent - 1 - shift) // self.stride + 1))

    def groups(self, start: int, size: int) -> list[Taps]:
        """The taps at which any of the places read inside, neighbours at which the same do together."""
        found: list[Taps] = []
        for tap in range(self.taps):
            span = self.inside(start, size, tap)
            if found and found[-1].span == span and found[-1].first + found[-1].count == tap:
                found[-1] = replace(found[-1], count=found[-1].count + 1)
            elif span[0] < span[1]:
                found.append(Taps(tap, 1, span))
        return found

    def whole(self, start: int, size: int) -> bool:
        """Whether the places read inside at every tap."""
        return all(self.inside(start, size, tap) == (0, size) for tap in (0, self.taps - 1))


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
    edges: tuple[Edge, ...] = ()  # where the body is not evaluated; one an axis and one a tap at most
    ahead: Mapping[str, int] = field(default_factory=dict)  # tensor -> steps of the innermost reduction to prefetch

    def tiles(self, axis: str) -> int:
        """Number of tiles along a spatial axis, the smaller ones included."""
        return -(-self.extent(axis) // self.tile_extent(axis))

    def tile_extent(self, axis: str) -> int:
        """Extent of the largest register tile: no more than is wanted."""
        wanted = min(self.tile.get(axis, 1), self.extent(axis))
        return wanted if axis == self.vector else balanced(self.extent(axis), wanted)

    def runs(self, axis: str) -> list[Run]:
        """The tiles along a spatial axis: along the lanes all are full but the last, elsewhere they are balanced."""
        extent, size = self.extent(axis), self.tile_extent(axis)
        if axis != self.vector:
            return runs(extent, size)
        full, tail = divmod(extent, size)
        return [Run(0, full, size), *([Run(full, 1, tail, full * (size - tail))] if tail else [])]

    def edge(self, axis: str) -> Edge | None:
        """The edge along a spatial axis."""
        return next((edge for edge in self.edges if edge.axis == axis), None)

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


def balanced(extent: int, wanted: int) -> int:
    """The extent of tiles, `wanted` at most, where as many cover an extent evenly."""
    return -(-extent // -(-extent // wanted))


def runs(extent: int, size: int) -> list[Run]:
    """Tiles that cover an extent, of a balanced size or one less: those of few rows keep a machine least busy."""
    tiles = -(-extent // size)
    small = tiles * size - extent
    full = tiles - small
    return [Run(0, full, size), *([Run(full, small, size - 1, full)] if small else [])]


def parted(run: Run, edge: Edge | None) -> list[Run]:
    """The run in parts: each tile for itself that a window leaves, and the others together.

    Tiles of one place are not parted: there a condition decides, once a tap.
    """
    if edge is None or run.size == 1:
        return [run]
    numbers = range(run.first, run.first + run.count)
    inner = [t for t in numbers if edge.whole(t * run.size + run.offset, run.size)]
    if not inner:
        return [run.part(t, t) for t in numbers]
    before, after = range(run.first, inner[0]), range(inner[-1] + 1, numbers.stop)
    middle = run.part(inner[0], inner[-1])
    return [*(run.part(t, t) for t in before), middle, *(run.part(t, t) for t in after)]

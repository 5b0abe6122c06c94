"""Nest: how the loops of one piece are tiled. `loops.lower` writes them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

from tunewright.codegen.expr import Expr, Var, const, op
from tunewright.codegen.index import Domain

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

    @property
    def numbers(self) -> range:
        """The numbers of its tiles."""
        return range(self.first, self.first + self.count)


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

    def spans(self, run: Run) -> list[tuple[int, int]]:
        """Which places read inside at any tap of any tile of a run, different ones once: from first to behind last."""
        starts = [number * run.size + run.offset for number in run.numbers]
        left = [start for start in starts if not self.whole(start, run.size)]
        found = [(0, run.size)] if len(left) < len(starts) else []
        found += [self.inside(start, run.size, tap) for start in left for tap in range(self.taps)]
        return [span for span in dict.fromkeys(found) if span[0] < span[1]]

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

    def never_left(self, run: Run) -> bool:
        """Whether all tiles of a run read inside at every tap."""
        return all(self.whole(number * run.size + run.offset, run.size) for number in run.numbers)


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
    compact: bool = False  # whether short tiles cross the lanes in little code: in registers or by way of memory

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


@lru_cache(maxsize=1 << 12)
def reading(edge: Edge, run: Run, span: tuple[int, int], number: str) -> Expr:
    """The condition under which exactly these places of a tile read inside, over its number and the tap.

    What holds for all tiles of the run anyway is left out.
    """
    (first, last), tile = span, Var(number) * run.size + run.offset

    def at(place: int) -> Expr:
        return edge.place(tile + place, Var(edge.tap))

    facts = [op("lt", at(first - 1), 0)] if first else []
    facts += [op("le", const(edge.extent), at(last))] if last < run.size else []
    facts += [op("le", const(0), at(first)), op("lt", at(last - 1), edge.extent)]
    domain = Domain({number: (run.first, run.first + run.count - 1), edge.tap: (0, edge.taps - 1)})
    needed: Expr = const(True)
    for fact in facts:
        if not domain.decide(fact):
            needed, domain = op("and", needed, fact), domain.given(fact)
    return needed


def balanced(extent: int, wanted: int) -> int:
    """The extent of tiles, `wanted` at most, where as many cover an extent evenly."""
    return -(-extent // -(-extent // wanted))


def runs(extent: int, size: int) -> list[Run]:
    """Tiles that cover an extent, of a balanced size or one less: those of few rows keep a machine least busy."""
    tiles = -(-extent // size)
    small = tiles * size - extent
    full = tiles - small
    return [Run(0, full, size), *([Run(full, small, size - 1, full)] if small else [])]

"""How windows move along one dimension of what they read, where that is no padding, and the conditions for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tunewright.codegen.expr.expr import Expr, Var, const, op
from tunewright.codegen.expr.index import Domain, linear

from ..axes import IndexRange, TileRun
from .fused_stage import FusedStage

AT = ".at"
"""Suffix of the variable for a position along a dimension, whose number precedes it."""


@dataclass(frozen=True, slots=True)
class TapGroup:
    """Neighbouring taps at which the same indices of a tile read inside: `span`, from the first to behind the last."""

    first: int
    count: int
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One dimension of what is read: window `n` reads with tap `t` position n * stride + t * dilation + start.

    `axis` is that of the output ("": the output has none), `tap` that of the window ("": there is one tap).
    """

    dimension: int
    axis: str
    extent: int
    tap: str
    taps: int
    stride: int
    dilation: int
    start: int  # position of the first tap of the first window
    inside: IndexRange  # the positions that are no padding

    @property
    def position(self) -> str:
        """The variable of the position."""
        return f"{self.dimension}{AT}"

    def offset(self, place: int, tap: int) -> int:
        """The position of a window's tap."""
        return place * self.stride + tap * self.dilation + self.start

    def guard(self, position: Expr, least: int, most: int) -> Expr:
        """Whether a position is no padding, of which the least and the most that it comes to are known."""
        condition: Expr = const(True)
        if least < self.inside.start:
            condition = op("and", condition, op("le", self.inside.start, position))
        if most >= self.inside.stop:
            condition = op("and", condition, op("lt", position, self.inside.stop))
        return condition

    def is_inside(self, place: int, tap: int) -> bool:
        """Whether the tap of a window is no padding."""
        return self.offset(place, tap) in self.inside

    @property
    def whole(self) -> IndexRange:
        """The windows that read no padding at any tap."""
        stride = max(1, self.stride)  # there is one window where it is 0
        room = self.inside.stop - 1 - self.offset(0, self.taps - 1)  # how far the last tap may move
        start = min(self.extent, max(0, -(-self.before // stride)))
        return IndexRange(start, max(start, min(self.extent, room // stride + 1)))

    @property
    def before(self) -> int:
        """Positions of padding in front of the first tap of the first window."""
        return self.inside.start - self.start

    def inside_span(self, start: int, size: int, tap: int) -> tuple[int, int]:
        """Which of the indices start .. start + size - 1 read inside at that tap: from the first to behind the last."""
        shift = start * self.stride + tap * self.dilation - self.before
        first = max(0, -(shift // self.stride))
        return first, max(first, min(size, (self.inside.extent - 1 - shift) // self.stride + 1))

    def spans(self, run: TileRun) -> list[tuple[int, int]]:
        """Which indices read inside at any tap of any tile of a run, different ones once: from first to behind last."""
        starts = [number * run.size + run.offset for number in run.numbers]
        edge_starts = [start for start in starts if not self.is_whole(start, run.size)]
        spans = [(0, run.size)] if len(edge_starts) < len(starts) else []
        spans += [self.inside_span(start, run.size, tap) for start in edge_starts for tap in range(self.taps)]
        return [span for span in dict.fromkeys(spans) if span[0] < span[1]]

    def groups(self, start: int, size: int) -> list[TapGroup]:
        """The taps at which any of the indices read inside, neighbours at which the same do together."""
        groups: list[TapGroup] = []
        for tap in range(self.taps):
            span = self.inside_span(start, size, tap)
            if groups and groups[-1].span == span and groups[-1].first + groups[-1].count == tap:
                groups[-1] = replace(groups[-1], count=groups[-1].count + 1)
            elif span[0] < span[1]:
                groups.append(TapGroup(tap, 1, span))
        return groups

    def is_whole(self, start: int, size: int) -> bool:
        """Whether all indices read inside at every tap."""
        return all(self.inside_span(start, size, tap) == (0, size) for tap in (0, self.taps - 1))

    def is_always_inside(self, run: TileRun) -> bool:
        """Whether all tiles of a run read inside at every tap."""
        return all(self.is_whole(number * run.size + run.offset, run.size) for number in run.numbers)


def match_window_dim(fused_stage: FusedStage, index: Expr, inside: IndexRange, dimension: int) -> WindowDim | None:
    """How windows move along a dimension that is read at this index; None if it isn't by one axis and one tap."""
    form = linear(index)
    if form is None or any(c < 1 for c in form.coefficients.values()):
        return None
    extents = {a.name: a.extent for a in fused_stage.stage.axes + fused_stage.stage.reduce}
    spatial = {a.name for a in fused_stage.stage.axes}
    axes = [name for name in form.coefficients if name in spatial]
    taps = [name for name in form.coefficients if name not in spatial]
    if len(axes) > 1 or len(taps) > 1:
        return None
    axis, tap = (axes or [""])[0], (taps or [""])[0]
    return WindowDim(
        dimension=dimension,
        axis=axis,
        extent=extents.get(axis, 1),
        tap=tap,
        taps=extents.get(tap, 1),
        stride=form.coefficients.get(axis, 0),
        dilation=form.coefficients.get(tap, 0),
        start=form.constant,
        inside=inside,
    )


@lru_cache(maxsize=1 << 12)
def inside_condition(dim: WindowDim, run: TileRun, span: tuple[int, int], number: str) -> Expr:
    """The condition under which exactly these indices of a tile read inside, over its number and the tap.

    What holds for all tiles of the run anyway is left out.
    """
    (first, last), tile = span, Var(number) * run.size + run.offset

    def at(place: int) -> Expr:
        return op("sub", (tile + place) * dim.stride + Var(dim.tap) * dim.dilation, dim.before)

    facts = [op("lt", at(first - 1), 0)] if first else []
    facts += [op("le", const(dim.inside.extent), at(last))] if last < run.size else []
    facts += [op("le", const(0), at(first)), op("lt", at(last - 1), dim.inside.extent)]
    domain = Domain({number: (run.first, run.first + run.count - 1), dim.tap: (0, dim.taps - 1)})
    needed: Expr = const(True)
    for fact in facts:
        if not domain.decide(fact):
            needed, domain = op("and", needed, fact), domain.assume(fact)
    return needed

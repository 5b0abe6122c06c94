"""Direction: how windows move along one dimension of what they read, and where that is no padding."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr import Expr, const, op
from tunewright.codegen.index import linear

from .pieces import Piece

AT = ".at"
"""Suffix of the variable that stands for a position along a direction; before it the direction's dimension."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One dimension of what is read: the window at `place`, its tap `t`, reads position place * stride + t * dilation.

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
    inside: range  # the positions that are no padding

    @property
    def at(self) -> str:
        """The variable of the position."""
        return f"{self.dimension}{AT}"

    def offset(self, place: int, tap: int) -> int:
        """How far the tap of a window is from position 0."""
        return place * self.stride + tap * self.dilation + self.start

    def guard(self, position: Expr, least: int, most: int) -> Expr:
        """Whether a position is no padding, of which the least and the most that it comes to are known."""
        found: Expr = const(True)
        if least < self.inside.start:
            found = op("and", found, op("le", self.inside.start, position))
        if most >= self.inside.stop:
            found = op("and", found, op("lt", position, self.inside.stop))
        return found

    def within(self, place: int, tap: int) -> bool:
        """Whether the tap of a window is no padding."""
        return self.offset(place, tap) in self.inside


def direction_along(piece: Piece, index: Expr, inside: range, dimension: int) -> Direction | None:
    """How windows move along a dimension that is read at this index; None if it isn't by one axis and one tap."""
    form = linear(index)
    if form is None or any(c < 1 for c in form.coefficients.values()):
        return None
    extents = {a.name: a.extent for a in piece.stage.axes + piece.stage.reduce}
    spatial = {a.name for a in piece.stage.axes}
    axes = [name for name in form.coefficients if name in spatial]
    taps = [name for name in form.coefficients if name not in spatial]
    if len(axes) > 1 or len(taps) > 1:
        return None
    axis, tap = (axes or [""])[0], (taps or [""])[0]
    return Direction(
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

"""Images seen through a grid of places. Formulas: ONNX's operator documentation of GridSample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import product
from typing import NamedTuple

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from .definition import Definition, Index, OpDef, load

F32, I64 = DType.F32, DType.I64

_FAR = 1e9
"""Places further away are all outside, and whole numbers hold those nearer."""

_CUBIC = -0.75
"""Keys' parameter of cubic interpolation."""


class Tap(NamedTuple):
    """An element along an axis that a result is made of: where it is, whether it counts, and by how much.

    None: it always counts; it is taken as it is.
    """

    element: Expr
    inside: Expr | None
    weight: Expr | None


Weights = list[tuple[int, Expr | None]]
"""Steps from the element before a place, and their weights."""


def _nearest(rest: Expr) -> Weights:
    return [(0, None)]


def _linear(rest: Expr) -> Weights:
    return [(0, 1.0 - rest), (1, rest)]


def _cubic(rest: Expr) -> Weights:
    def near(d: Expr) -> Expr:
        return (d * (_CUBIC + 2) - (_CUBIC + 3)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d * _CUBIC - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [(-1, far(rest + 1.0)), (0, near(rest)), (1, near(1.0 - rest)), (2, far(2.0 - rest))]


_WEIGHTS = {"nearest": _nearest, "linear": _linear, "bilinear": _linear, "cubic": _cubic, "bicubic": _cubic}
"""The weights of each mode, of which opset 20 has new names for two."""


class _Axis:
    """An axis of the image, and how it goes on beyond its ends."""

    def __init__(self, extent: int, padding: str, is_aligned: bool) -> None:
        self._extent = extent
        self._padding = padding
        self._is_aligned = is_aligned

    def place(self, at: Expr) -> Expr:
        """Where among the elements a place from -1 to 1 is. NaN is far outside."""
        whole = (at + 1.0) * float(self._extent - 1 if self._is_aligned else self._extent)
        place = (whole if self._is_aligned else whole - 1.0) * 0.5
        place = op("select", op("eq", place, place), place, const(-_FAR))
        return op("min", op("max", place, -_FAR), _FAR)

    def taps(self, mode: str, place: Expr) -> list[Tap]:
        """What the value at a place is made of."""
        place = self._inner(op("round", place) if mode == "nearest" else place)
        first = op("floor", place)
        return [self._tap(first + float(step), weight) for step, weight in _WEIGHTS[mode](place - first)]

    def _tap(self, place: Expr, weight: Expr | None) -> Tap:
        inside = None
        if self._padding == "zeros":
            inside = op("and", op("le", const(0.0), place), op("le", place, self._extent - 1.0))
        at = op("cast", self._inner(place), dtype=I64)
        return Tap(op("min", op("max", at, 0), self._extent - 1), inside, weight)

    def _inner(self, place: Expr) -> Expr:
        """A place beyond the ends reflected, back and forth, where that is how the image goes on."""
        if self._padding != "reflection":
            return place
        low, span = (0.0, self._extent - 1.0) if self._is_aligned else (-0.5, float(self._extent))
        if span == 0:
            return const(low)
        distance = op("abs", place - low)
        turns = op("floor", distance / span)
        rest = distance - turns * span
        is_odd = op("ne", op("floor", turns * 0.5) * 2.0, turns)
        return op("select", is_odd, (low + span) - rest, rest + low)


def grid_sample(d: Definition) -> None:
    """Values of x `[N, C, *extents]` at the places of the grid `[N, *places, rank]`, the last axis first.

    Places are worked out once for all channels.
    """
    x, grid, y = d.input(0, F32), d.input(1, F32), d.output()
    mode, padding = str(d.attr("mode", "linear")), str(d.attr("padding_mode", "zeros"))
    axes = [_Axis(extent, padding, bool(d.attr("align_corners", 0))) for extent in x.shape[2:]]

    def place(axis: _Axis, number: int, i: Index) -> Expr:
        return axis.place(load(grid, [*i, const(number)]))

    places = [
        d.write(d.temporary(grid.shape[:-1], F32), partial(place, axis, len(axes) - 1 - k))
        for k, axis in enumerate(axes)
    ]

    def value(i: Index) -> Expr:
        at = [i[0], *i[2:]]
        taps = [axis.taps(mode, load(place, at)) for axis, place in zip(axes, places, strict=True)]
        return reduce(lambda a, b: a + b, (term(i, corner) for corner in product(*taps)))

    def term(i: Index, corner: Sequence[Tap]) -> Expr:
        result = load(x, [*i[:2], *(tap.element for tap in corner)])
        for tap in corner:
            result = result if tap.weight is None else result * tap.weight
            result = result if tap.inside is None else op("select", tap.inside, result, const(0.0))
        return result

    d.write(y, value)


SAMPLING: Mapping[str, OpDef] = {"GridSample": grid_sample}

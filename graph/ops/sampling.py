"""Images seen through a grid of places, and boxes of them. Formulas: ONNX's documentation of GridSample, RoiAlign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from typing import NamedTuple

from tunewright.codegen.expr.dtype import FLOATS, DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..evaluation.onnx_form import IN_ELEMENTS
from ..task import Index, Tensor, load
from .definition import ActivationLayout, Definition, OpDef, quotient, where_all

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

    def __init__(self, d: Definition, extent: int) -> None:
        self._extent = extent
        self._padding = str(d.attr("padding_mode", "zeros"))
        self._is_aligned = bool(d.attr("align_corners", 0))
        self._is_in_elements = bool(d.attr(IN_ELEMENTS, 0))

    def place(self, at: Expr) -> Expr:
        """Where among the elements a place of the grid is, mostly from -1 to 1. NaN is far outside."""
        whole = (at + 1.0) * float(self._extent - 1 if self._is_aligned else self._extent)
        place = at if self._is_in_elements else (whole if self._is_aligned else whole - 1.0) * 0.5
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

    Elements and weights along each axis are worked out once for all channels.
    """
    x, grid, y = d.input(0, F32), d.input(1, F32), d.output()
    mode, padding = str(d.attr("mode", "linear")), str(d.attr("padding_mode", "zeros"))
    layout = ActivationLayout.of(d, x.shape)
    _, extents, _ = layout.parts(x.shape)
    axes = [_Axis(d, extent) for extent in extents]
    rank, count = len(axes), len(_WEIGHTS[mode](const(0.0)))

    def tap(k: int, number: int, i: Index) -> Tap:
        """The tap of a number along an axis."""
        return axes[k].taps(mode, axes[k].place(load(grid, [*i, const(rank - 1 - k)])))[number]

    def element(k: int, number: int, i: Index) -> Expr:
        """The element; -1 where it does not count."""
        at, inside, _ = tap(k, number, i)
        return op("cast", at if inside is None else op("select", inside, at, const(-1)), dtype=DType.I32)

    def weight(k: int, number: int, i: Index) -> Expr:
        factor = tap(k, number, i).weight
        assert factor is not None
        return factor

    def all_taps(dtype: DType, body: Callable[[int, int, Index], Expr]) -> list[list[Tensor]]:
        """A tensor for each axis and number."""
        shape = grid.shape[:-1]
        return [[d.write(d.temporary(shape, dtype), partial(body, k, n)) for n in range(count)] for k in range(rank)]

    elements = all_taps(DType.I32, element)
    weights = all_taps(F32, weight) if mode != "nearest" else []

    def term(i: Index, corner: Sequence[int]) -> Expr:
        batch, space, channels = layout.parts(i)
        at = [batch, *space]
        places = [load(elements[k][n], at) for k, n in enumerate(corner)]
        bounds = zip(places, extents, strict=True)
        source = [op("cast", op("min", op("max", place, 0), extent - 1), dtype=I64) for place, extent in bounds]
        result = load(x, layout.join(batch, source, channels))
        for k, n in enumerate(corner if weights else ()):
            result = result * load(weights[k][n], at)
        inside = [op("le", const(0, DType.I32), place) for place in places] if padding == "zeros" else []
        return where_all(inside, result, const(0.0))

    def value(i: Index) -> Expr:
        return reduce(lambda a, b: a + b, (term(i, corner) for corner in product(range(count), repeat=rank)))

    d.write(y, value)


def roi_align(d: Definition) -> None:
    """Boxes of images x `[N, C, H, W]`, each as a grid of cells: the mean of some samples of each, or the largest.

    Where samples lie is worked out once for all channels. How many there are must be said: else boxes decide.
    """
    x, boxes, images, y = d.input(0, *FLOATS), d.input(1, *FLOATS), d.input(2, I64), d.output()
    count, is_mean = int(d.attr("sampling_ratio", 0)), d.attr("mode", "avg") == "avg"
    d.require(count > 0, "as many samples as boxes are large")
    layout = ActivationLayout.of(d, x.shape)
    (_, extents, _), (boxes_count, cells, _) = layout.parts(x.shape), layout.parts(y.shape)
    # before opset 16 nothing is shifted
    is_shifted = d.node.version >= 16 and d.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"

    def place(axis: int, i: Index) -> Expr:
        """Where a sample is along an axis; NaN is outside."""
        shift, scale = 0.5 if is_shifted else 0.0, float(d.attr("spatial_scale", 1.0))
        start, end = (load(boxes, [i[0], const(1 - axis + side)]) * scale - shift for side in (0, 2))
        size = end - start
        cell = quotient(size if is_shifted else op("max", size, 1.0), cells[axis])
        share = quotient(op("cast", i[2], dtype=x.dtype) + 0.5, count)
        at = start + op("cast", i[1], dtype=x.dtype) * cell + share * cell
        return op("select", op("eq", at, at), at, const(-2.0, x.dtype))

    places = [
        d.write(d.temporary((boxes_count, extent, count), x.dtype), partial(place, axis))
        for axis, extent in enumerate(cells)
    ]

    def sample(i: Index, r: Index) -> Expr:
        box, cell, channels = layout.parts(i)
        image = op("min", op("max", load(images, [box]), 0), x.shape[0] - 1)
        sides = [_sides(load(places[k], [box, cell[k], r[k]]), extents[k]) for k in range(2)]
        corners = [
            load(x, layout.join(image, (row, column), channels)) * (height * width)
            for (row, height), (column, width) in product(sides[0][0], sides[1][0])
        ]
        value = reduce(partial(op, "add" if is_mean else "max"), corners)
        return op("select", op("and", sides[0][1], sides[1][1]), value, const(0.0, x.dtype))

    if is_mean:
        total = d.fold(d.temporary(y.shape, x.dtype), "sum", (count, count), sample)
        d.write(y, lambda i: quotient(load(total, i), count * count))
    else:
        d.fold(y, "max", (count, count), sample)


def _sides(at: Expr, extent: int) -> tuple[list[tuple[Expr, Expr]], Expr]:
    """The elements on both sides of a place with their weights, and whether it is inside, or nearly."""
    inside = op("and", op("le", const(-1.0, at.dtype), at), op("le", at, float(extent)))
    at = op("min", op("max", at, 0.0), float(extent - 1))
    low = op("min", op("max", op("cast", at, dtype=I64), 0), extent - 1)
    rest = at - op("cast", low, dtype=at.dtype)
    return [(low, 1.0 - rest), (op("min", op("add", low, 1), extent - 1), rest)], inside


SAMPLING: Mapping[str, OpDef] = {"GridSample": grid_sample, "RoiAlign": roi_align}

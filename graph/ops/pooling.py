"""Pools: the maximum or mean over windows, or over all places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import BYTES, FLOATS, DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..task import Index, Tensor, load
from .definition import (
    ActivationLayout,
    Definition,
    OpDef,
    Window,
    clamp,
    quotient,
    where_all,
)


def _pool(
    d: Definition,
    combiner: str,
    border: float,
    y: Tensor,
    element_of: Callable[[Expr], Expr] = lambda x: x,
) -> tuple[ActivationLayout, Window]:
    """Pad with `border` and fold `element_of` what is in each window into `y`, of the shape of the output."""
    x = d.input(0, *FLOATS, *BYTES)
    layout = ActivationLayout.of(d, x.shape)
    _, extents, _ = layout.parts(x.shape)
    _, outputs, _ = layout.parts(y.shape)
    window = Window.of(d, extents, outputs, d.ints("kernel_shape"))
    padded = window.pad(d, layout, x, const(border, x.dtype))

    def element(i: Index, r: Index) -> Expr:
        batch, place, channels = layout.parts(i)
        return element_of(load(padded, layout.join(batch, window.at(place, r), channels)))

    d.fold(y, combiner, window.kernel, element)
    return layout, window


def max_pool(d: Definition) -> None:
    """The largest value in each window, and where it is; padding never wins. Of bytes, in int32."""
    dtype = d.input(0, *FLOATS, *BYTES).dtype
    y = d.output() if d.has_output(0) else d.temporary(d.output(1).shape, dtype)
    if dtype.is_float:
        layout, window = _pool(d, "max", float("-inf"), y)
    else:
        largest = d.temporary(y.shape, dtype.wide)
        least = -128 if dtype is DType.I8 else 0
        layout, window = _pool(d, "max", least, largest, lambda x: op("cast", x, dtype=dtype.wide))
        d.write(y, lambda i: op("cast", load(largest, i), dtype=dtype))
    if d.has_output(1):
        _place_of_largest(d, y, layout, window)


def _place_of_largest(d: Definition, y: Tensor, layout: ActivationLayout, window: Window) -> None:
    """The first place in each window that has its largest value, or NaN, counted through the whole input."""
    x, places = d.input(0), d.output(1)
    _, extents, channels = layout.parts(x.shape)
    is_columns_first = bool(d.attr("storage_order", 0))
    first_places = d.temporary(places.shape, places.dtype) if is_columns_first else places
    steps = np.cumprod((1, *extents[::-1]))[:-1][::-1].tolist()
    size = prod(x.shape)

    def place(i: Index, r: Index) -> Expr:
        first, spatial, inner = layout.parts(i)
        number, taps, conditions = first * channels[0] + inner[0], [], []
        number = number * prod(extents)
        bounds = zip(window.at(spatial, r), window.before, window.reach, extents, steps, strict=True)
        for at, before, reach, extent, step in bounds:
            tap, inside = clamp(op("sub", at, before), -before, reach - 1 - before, extent)
            number = number + tap * step
            taps.append(tap)
            conditions += inside
        value, largest = load(x, layout.join(first, taps, inner)), load(y, i)
        is_largest = op("eq", value, largest)
        if x.dtype.is_float:
            is_largest = op("or", is_largest, op("ne", value, value))
        return where_all([*conditions, is_largest], number, const(size))

    d.fold(first_places, "min", window.kernel, place)
    if is_columns_first:

        def by_columns(i: Index) -> Expr:
            in_bounds = op("min", op("max", load(first_places, i), 0), size - 1)  # which a kernel has to see
            return _by_columns(in_bounds, extents, steps)

        d.write(places, by_columns)


def _by_columns(place: Expr, extents: Sequence[int], steps: Sequence[int]) -> Expr:
    """A place that counts the last axis first, as one that counts the first axis first."""
    number = op("mul", op("div", place, prod(extents)), prod(extents))
    columns = np.cumprod((1, *extents))[:-1].tolist()
    for extent, step, column in zip(extents, steps, columns, strict=True):
        number = number + op("mod", op("div", place, step), extent) * column
    return number


def lp_pool(d: Definition) -> None:
    """The norm of each window."""
    order = int(d.attr("p", 2))
    y, total = d.output(), d.temporary(d.output().shape, d.input(0, *FLOATS).dtype)

    def power(x: Expr) -> Expr:
        size = op("abs", x)
        return size if order == 1 else x * x if order == 2 else op("pow", size, float(order))

    _pool(d, "sum", 0.0, total, power)

    def root(x: Expr) -> Expr:
        return x if order == 1 else op("sqrt", x) if order == 2 else op("pow", x, 1 / order)

    d.write(y, lambda i: root(load(total, i)))


def average_pool(d: Definition) -> None:
    """The mean over each window, of the elements inside the input or, on demand, inside its padding too."""
    y, total = d.output(), d.temporary(d.output().shape, d.input(0, *FLOATS).dtype)
    layout, window = _pool(d, "sum", 0.0, total)
    limits = _limits(window, bool(d.attr("count_include_pad", 0)))
    if limits is None:
        d.write(y, lambda i: quotient(load(total, i), prod(window.kernel)))
        return

    def body(i: Index) -> Expr:
        place = layout.parts(i)[1]
        count: Expr = const(1)
        for number, (low, high) in enumerate(limits):
            count = count * _count(window, number, place[number], low, high)
        return load(total, i) / op("cast", count, dtype=total.dtype)

    d.write(y, body)


def _limits(window: Window, include_pad: bool) -> list[tuple[int, int]] | None:
    """Along each dimension, the first place and the one after the last that count; None if all of all windows do."""
    sides = list(zip(window.before, window.after, window.extents, window.reach, strict=True))
    if include_pad:
        limits = [(0, before + extent + after) for before, after, extent, _ in sides]
    else:
        limits = [(before, before + extent) for before, _, extent, _ in sides]
    whole = all(low == 0 and reach <= high for (low, high), reach in zip(limits, window.reach, strict=True))
    return None if whole else limits


def _count(window: Window, number: int, place: Expr, low: int, high: int) -> Expr:
    """The number of taps of the window at `place` in low .. high - 1, along dimension `number`."""
    step, taps = window.dilations[number], window.kernel[number]
    start = place * window.strides[number]

    def taps_before(limit: int) -> Expr:
        ahead = op("max", op("sub", limit + step - 1, start), 0)
        return op("min", ahead // step, taps)

    return taps_before(high) - taps_before(low)


def global_pool(combiner: str) -> OpDef:
    """A fold over all places; the mean if it is a sum."""

    def define(d: Definition) -> None:
        x, y = d.input(0, *FLOATS), d.output()
        layout = ActivationLayout.of(d, x.shape)
        _, extents, _ = layout.parts(x.shape)

        def element(i: Index, r: Index) -> Expr:
            batch, _, channels = layout.parts(i)
            return load(x, layout.join(batch, r, channels))

        if combiner == "max":
            d.fold(y, combiner, extents, element)
        else:
            total = d.fold(d.temporary(y.shape, x.dtype), combiner, extents, element)
            d.write(y, lambda i: quotient(load(total, i), prod(extents)))

    return define


POOLS: Mapping[str, OpDef] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("sum"),
    "GlobalMaxPool": global_pool("max"),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}

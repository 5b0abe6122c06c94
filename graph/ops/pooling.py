"""Pools: the maximum or mean over windows, or over all places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, const, op

from ..task import Tensor
from .definition import Definition, Index, OpDef, load, quotient
from .window import Layout, Window

F32 = DType.F32


def _pool(d: Definition, combiner: str, border: float, output: Callable[[Tensor], Tensor]) -> tuple[Layout, Window]:
    """Pad with `border` and fold each window into `output` of the node's output."""
    d.require(not d.wanted(1), "indices")
    x, y = d.input(0, F32), d.output()
    layout = Layout.of(d, x.shape)
    _, extents, _ = layout.parts(x.shape)
    _, outputs, _ = layout.parts(y.shape)
    window = Window.of(d, extents, outputs, d.ints("kernel_shape"))
    padded = window.pad(d, layout, x, const(border))

    def element(i: Index, r: Index) -> Expr:
        batch, place, channels = layout.parts(i)
        return load(padded, layout.join(batch, window.at(place, r), channels))

    d.fold(output(y), combiner, window.kernel, element)
    return layout, window


def max_pool(d: Definition) -> None:
    """The largest value in each window; padding never wins."""
    _pool(d, "max", float("-inf"), lambda y: y)


def average_pool(d: Definition) -> None:
    """The mean over each window, of the elements inside the input or, on demand, inside its padding too."""
    y, total = d.output(), d.temporary(d.output().shape, F32)
    layout, window = _pool(d, "sum", 0.0, lambda _: total)
    limits = _limits(window, bool(d.attr("count_include_pad", 0)))
    if limits is None:
        d.write(y, lambda i: quotient(load(total, i), prod(window.kernel)))
        return

    def body(i: Index) -> Expr:
        place = layout.parts(i)[1]
        count: Expr = const(1)
        for number, (low, high) in enumerate(limits):
            count = count * _count(window, number, place[number], low, high)
        return load(total, i) / op("cast", count, dtype=F32)

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
    """How many taps of the window at `place` lie in low .. high - 1, along dimension `number`."""
    step, taps = window.dilations[number], window.kernel[number]
    start = place * window.strides[number]

    def taps_before(limit: int) -> Expr:
        ahead = op("max", op("sub", limit + step - 1, start), 0)
        return op("min", ahead // step, taps)

    return taps_before(high) - taps_before(low)


def global_pool(combiner: str) -> OpDef:
    """A fold over all places; the mean if it is a sum."""

    def define(d: Definition) -> None:
        x, y = d.input(0, F32), d.output()
        layout = Layout.of(d, x.shape)
        _, extents, _ = layout.parts(x.shape)

        def element(i: Index, r: Index) -> Expr:
            batch, _, channels = layout.parts(i)
            return load(x, layout.join(batch, r, channels))

        if combiner == "max":
            d.fold(y, combiner, extents, element)
        else:
            total = d.fold(d.temporary(y.shape, F32), combiner, extents, element)
            d.write(y, lambda i: quotient(load(total, i), prod(extents)))

    return define


POOLS: Mapping[str, OpDef] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool("sum"),
    "GlobalMaxPool": global_pool("max"),
    "MaxPool": max_pool,
}

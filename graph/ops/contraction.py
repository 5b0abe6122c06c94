"""Sums of products: convolutions and matrix products, of floats and of bytes.

Each is one stage whose body multiplies two loads, the form that register-tiled kernels are made for. Padding is a
stage before it, bias one after it. Bytes are multiplied as they are: their zero points are taken into account around
the product (`rewrites.quantisation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from tunewright.codegen.expr.dtype import BYTES, FLOATS, NARROW, DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..task import Index, Tensor, load
from .definition import ActivationLayout, Definition, OpDef, T, Window, clamp, where_all

F32 = DType.F32

FACTORS = (*FLOATS, DType.I64, DType.I32, DType.U64, DType.U32)
"""Element types whose products and sums have the same type."""


def conv(d: Definition) -> None:
    """Convolution of floats: see `_convolve`."""
    _convolve(d, d.input(0, *FLOATS), d.input(1, *FLOATS), d.optional(2, *FLOATS))


def conv_integer(d: Definition) -> None:
    """Convolution of bytes: see `_convolve`."""
    _convolve(d, *_bytes(d), bias=None)


def conv_narrow(d: Definition) -> None:
    """Convolution of narrow floats as they are, whose sums are float32: see `_convolve`."""
    _convolve(d, d.input(0, *NARROW), d.input(1, *NARROW), d.optional(2, F32))


def _bytes(d: Definition) -> tuple[Tensor, Tensor]:
    """The operands of a product of bytes."""
    for position in (2, 3):
        known = d.constant_input(position)
        d.require(not d.has(position) or (known is not None and not known.any()), "a zero point other than 0")
    return d.input(0, *BYTES), d.input(1, *BYTES)


def _multiply(left: Expr, right: Expr) -> Expr:
    """The product of two elements in the type of their sum."""
    return op("cast", left, dtype=left.dtype.wide) * op("cast", right, dtype=right.dtype.wide)


def _convolve(d: Definition, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    """Write a convolution of any number of spatial dimensions, groups, strides and dilations.

    Channels are seen as [group, channel of the group], so that every index is affine.
    """
    y = d.output()
    layout, groups = ActivationLayout.of(d, x.shape), int(d.attr("group", 1))
    batch, extents, (channels,) = layout.parts(x.shape)
    _, outputs, (features,) = layout.parts(y.shape)
    kernel = w.shape[:-2] if layout.channels_last else w.shape[2:]
    window = Window.of(d, extents, outputs, kernel)
    group_channels, group_features = channels // groups, features // groups
    x = d.reshape(x, layout.join(batch, extents, (groups, group_channels)))
    y = d.reshape(y, layout.join(batch, outputs, (groups, group_features)))
    w = d.reshape(w, _conv_weights(layout, kernel, groups, group_channels, group_features))
    x = window.pad(d, layout, x, const(0, x.dtype))

    def product(i: Index, r: Index) -> Expr:
        batch, place, (group, feature) = layout.parts(i)
        source = layout.join(batch, window.at(place, r[:-1]), (group, r[-1]))
        return _multiply(load(x, source), load(w, _conv_weights(layout, r[:-1], group, r[-1], feature)))

    _sum_and_bias(d, layout, y, (*kernel, group_channels), product, bias)


def _conv_weights(layout: ActivationLayout, taps: Sequence[T], group: T, channel: T, feature: T) -> list[T]:
    if layout.channels_last:
        return [*taps, channel, group, feature]
    return [group, feature, channel, *taps]


def _sum_and_bias(
    d: Definition,
    layout: ActivationLayout,
    y: Tensor,
    extents: Sequence[int],
    product: Callable[[Index, Index], Expr],
    bias: Tensor | None,
) -> None:
    if bias is None:
        d.fold(y, "sum", extents, product)
        return
    bias = d.reshape(bias, layout.parts(y.shape)[2])
    total = d.fold(d.temporary(y.shape, y.dtype), "sum", extents, product)
    d.write(y, lambda i: load(total, i) + load(bias, layout.parts(i)[2]))


def conv_transpose(d: Definition) -> None:
    """Transposed convolution.

    Where windows tile the output, each output element has one tap: a plain product per tap. Otherwise the input is
    spread out by the stride, with zeros between, and convolved with the kernel turned round.
    """
    x, w, y, bias = d.input(0, *FLOATS), d.input(1, *FLOATS), d.output(), d.optional(2, *FLOATS)
    layout, groups = ActivationLayout.of(d, x.shape), int(d.attr("group", 1))
    batch, extents, (channels,) = layout.parts(x.shape)
    _, outputs, (features,) = layout.parts(y.shape)
    kernel = w.shape[:-2] if layout.channels_last else w.shape[2:]
    group_channels, group_features = channels // groups, features // groups
    strides, dilations, before = d.ints("strides"), d.ints("dilations"), d.ints("pads")[: len(kernel)]
    x = d.reshape(x, layout.join(batch, extents, (groups, group_channels)))
    w = d.reshape(w, _transposed_weights(layout, kernel, groups, group_channels, group_features))
    tiles = tuple(e * k for e, k in zip(extents, kernel, strict=True)) == outputs
    if kernel == strides and tiles and not any(before) and all(dilation == 1 for dilation in dilations):
        pairs = [extent for pair in zip(extents, kernel, strict=True) for extent in pair]
        y = d.reshape(y, layout.join(batch, pairs, (groups, group_features)))
        tiled = ActivationLayout(layout.channels_last, len(pairs))

        def tap_product(i: Index, r: Index) -> Expr:
            batch, place, (group, feature) = tiled.parts(i)
            weight = load(w, _transposed_weights(layout, place[1::2], group, r[0], feature))
            return load(x, layout.join(batch, place[::2], (group, r[0]))) * weight

        _sum_and_bias(d, tiled, y, (group_channels,), tap_product, bias)
        return
    y = d.reshape(y, layout.join(batch, outputs, (groups, group_features)))
    spans = [(k - 1) * g for k, g in zip(kernel, dilations, strict=True)]
    spread = _dilate_input(d, layout, x, [p + s for p, s in zip(outputs, spans, strict=True)], before, spans, strides)

    def product(i: Index, r: Index) -> Expr:
        batch, place, (group, feature) = layout.parts(i)
        at = [p + s - t * g for p, s, t, g in zip(place, spans, r[:-1], dilations, strict=True)]
        weight = load(w, _transposed_weights(layout, r[:-1], group, r[-1], feature))
        return load(spread, layout.join(batch, at, (group, r[-1]))) * weight

    _sum_and_bias(d, layout, y, (*kernel, group_channels), product, bias)


def _transposed_weights(layout: ActivationLayout, taps: Sequence[T], group: T, channel: T, feature: T) -> list[T]:
    if layout.channels_last:
        return [*taps, group, channel, feature]
    return [group, channel, feature, *taps]


def _dilate_input(
    d: Definition,
    layout: ActivationLayout,
    x: Tensor,
    shape: Sequence[int],
    before: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    """Write the input with its elements `strides` apart and zeros elsewhere, shifted so that no tap reads outside."""
    batch, extents, channels = layout.parts(x.shape)
    spread = d.temporary(layout.join(batch, shape, channels), x.dtype)

    def body(i: Index) -> Expr:
        first, place, rest = layout.parts(i)
        source: list[Expr] = []
        conditions: list[Expr] = []
        for at, extent, length, cut, span, stride in zip(place, extents, shape, before, spans, strides, strict=True):
            shift = cut - span
            position, bounds = clamp(op("add", at, shift), shift, length - 1 + shift, (extent - 1) * stride + 1)
            source.append(position // stride)
            conditions += bounds
            if stride > 1:
                conditions.append(op("eq", position % stride, 0))
        return where_all(conditions, load(x, layout.join(first, source, rest)), const(0.0, x.dtype))

    return d.write(spread, body)


def matmul(d: Definition) -> None:
    """Matrix product of floats, or of integers as they are: see `_product`."""
    _product(d, d.input(0, *FACTORS), d.input(1, *FACTORS))


def matmul_integer(d: Definition) -> None:
    """Matrix product of bytes: see `_product`."""
    _product(d, *_bytes(d))


def matmul_narrow(d: Definition) -> None:
    """Matrix product of narrow floats as they are, whose sums are float32: see `_product`."""
    _product(d, d.input(0, *NARROW), d.input(1, *NARROW))


def _product(d: Definition, a: Tensor, b: Tensor) -> None:
    """Write a product over the last two dimensions; the ones before broadcast, and vectors are rows and columns."""
    y = d.output()
    d.require(bool(a.shape and b.shape), "a scalar operand")
    batch_rank = max(len(a.shape), len(b.shape), 2) - 2
    first_column = batch_rank + len(a.shape[-2:-1])

    def product(i: Index, r: Index) -> Expr:
        outer, row, column = i[:batch_rank], i[batch_rank:first_column], i[first_column:]
        return _multiply(load(a, [*outer, *row, r[0]]), load(b, [*outer, r[0], *column]))

    d.fold(y, "sum", a.shape[-1:], product)


MAX_DETERMINANT = 5
"""Most rows of a matrix whose determinant is written out: twice the products for each row more."""


def determinant(d: Definition) -> None:
    """Determinants of matrices, expanded from the last row up: those of parts are shared."""
    x, y = d.input(0, *FLOATS), d.output()
    rows = x.shape[-1]
    d.require(rows <= MAX_DETERMINANT, f"more than {MAX_DETERMINANT} rows")

    def body(i: Index) -> Expr:
        parts: dict[tuple[int, ...], Expr] = {(): const(1.0, x.dtype)}
        for count in range(1, rows + 1):
            for columns in combinations(range(rows), count):
                value: Expr = const(0.0, x.dtype)
                for place, column in enumerate(columns):
                    rest = parts[columns[:place] + columns[place + 1 :]]
                    product = load(x, [*i, const(rows - count), const(column)]) * rest
                    value = value - product if place % 2 else value + product
                parts[columns] = value
        return parts[tuple(range(rows))]

    d.write(y, body)


NARROW_PRODUCTS: Mapping[str, OpDef] = {"ConvNarrow": conv_narrow, "MatMulNarrow": matmul_narrow}
"""Ops of this package alone, whose operands are narrow and stay so."""

CONTRACTIONS: Mapping[str, OpDef] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "Det": determinant,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    **NARROW_PRODUCTS,
}

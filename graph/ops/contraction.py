"""Sums of products: convolutions and matrix products, of floats and of bytes.

Each is one stage whose body multiplies two loads, the form that register-tiled kernels are made for. Padding is a
stage before it, bias one after it. Bytes are multiplied as they are: their zero points are taken into account around
the product (`rewrites.quantised`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tunewright.codegen.dtype import BYTES, DType
from tunewright.codegen.expr import Expr, const, op

from ..task import Tensor
from .definition import Definition, Index, OpDef, clamped, load, where_all
from .window import Layout, T, Window

F32 = DType.F32


def conv(d: Definition) -> None:
    """Convolution of floats: see `_convolved`."""
    _convolved(d, d.input(0, F32), d.input(1, F32), d.optional(2, F32))


def conv_integer(d: Definition) -> None:
    """Convolution of bytes: see `_convolved`."""
    _convolved(d, *_bytes(d), bias=None)


def _bytes(d: Definition) -> tuple[Tensor, Tensor]:
    """The operands of a product of bytes."""
    for position in (2, 3):
        known = d.known(position)
        d.require(not d.has(position) or (known is not None and not known.any()), "a zero point other than 0")
    return d.input(0, *BYTES), d.input(1, *BYTES)


def _multiplied(left: Expr, right: Expr) -> Expr:
    """The product of two elements, in the type that such are added up in."""
    return op("cast", left, dtype=left.dtype.wide) * op("cast", right, dtype=right.dtype.wide)


def _convolved(d: Definition, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    """Any number of spatial dimensions, groups, strides, dilations.

    Channels are seen as [group, channel of the group], so that every index is affine.
    """
    y = d.output()
    layout, groups = Layout.of(d, x.shape), int(d.attr("group", 1))
    batch, extents, (channels,) = layout.parts(x.shape)
    _, outputs, (features,) = layout.parts(y.shape)
    kernel = w.shape[:-2] if layout.channels_last else w.shape[2:]
    window = Window.of(d, extents, outputs, kernel)
    inside, made = channels // groups, features // groups
    x = d.viewed(x, layout.join(batch, extents, (groups, inside)))
    y = d.viewed(y, layout.join(batch, outputs, (groups, made)))
    w = d.viewed(w, _conv_weights(layout, kernel, groups, inside, made))
    x = window.pad(d, layout, x, const(0, x.dtype))

    def product(i: Index, r: Index) -> Expr:
        batch, place, (group, feature) = layout.parts(i)
        source = layout.join(batch, window.at(place, r[:-1]), (group, r[-1]))
        return _multiplied(load(x, source), load(w, _conv_weights(layout, r[:-1], group, r[-1], feature)))

    _sum_and_bias(d, layout, y, (*kernel, inside), product, bias)


def _conv_weights(layout: Layout, taps: Sequence[T], group: T, inside: T, made: T) -> list[T]:
    if layout.channels_last:
        return [*taps, inside, group, made]
    return [group, made, inside, *taps]


def _sum_and_bias(
    d: Definition,
    layout: Layout,
    y: Tensor,
    extents: Sequence[int],
    product: Callable[[Index, Index], Expr],
    bias: Tensor | None,
) -> None:
    if bias is None:
        d.fold(y, "sum", extents, product)
        return
    bias = d.viewed(bias, layout.parts(y.shape)[2])
    total = d.fold(d.temporary(y.shape, F32), "sum", extents, product)
    d.write(y, lambda i: load(total, i) + load(bias, layout.parts(i)[2]))


def conv_transpose(d: Definition) -> None:
    """Transposed convolution.

    Where windows tile the output, each output element has one tap: a plain product per tap. Otherwise the input is
    spread out by the stride, with zeros between, and convolved with the kernel turned round.
    """
    x, w, y, bias = d.input(0, F32), d.input(1, F32), d.output(), d.optional(2, F32)
    layout, groups = Layout.of(d, x.shape), int(d.attr("group", 1))
    batch, extents, (channels,) = layout.parts(x.shape)
    _, outputs, (features,) = layout.parts(y.shape)
    kernel = w.shape[:-2] if layout.channels_last else w.shape[2:]
    inside, made = channels // groups, features // groups
    strides, dilations, before = d.ints("strides"), d.ints("dilations"), d.ints("pads")[: len(kernel)]
    x = d.viewed(x, layout.join(batch, extents, (groups, inside)))
    w = d.viewed(w, _transposed_weights(layout, kernel, groups, inside, made))
    tiles = tuple(e * k for e, k in zip(extents, kernel, strict=True)) == outputs
    if kernel == strides and tiles and not any(before):
        pairs = [extent for pair in zip(extents, kernel, strict=True) for extent in pair]
        y = d.viewed(y, layout.join(batch, pairs, (groups, made)))
        tiled = Layout(layout.channels_last, len(pairs))

        def tap_product(i: Index, r: Index) -> Expr:
            batch, place, (group, feature) = tiled.parts(i)
            weight = load(w, _transposed_weights(layout, place[1::2], group, r[0], feature))
            return load(x, layout.join(batch, place[::2], (group, r[0]))) * weight

        _sum_and_bias(d, tiled, y, (inside,), tap_product, bias)
        return
    y = d.viewed(y, layout.join(batch, outputs, (groups, made)))
    spans = [(k - 1) * g for k, g in zip(kernel, dilations, strict=True)]
    spread = _spread(d, layout, x, [p + s for p, s in zip(outputs, spans, strict=True)], before, spans, strides)

    def product(i: Index, r: Index) -> Expr:
        batch, place, (group, feature) = layout.parts(i)
        at = [p + s - t * g for p, s, t, g in zip(place, spans, r[:-1], dilations, strict=True)]
        weight = load(w, _transposed_weights(layout, r[:-1], group, r[-1], feature))
        return load(spread, layout.join(batch, at, (group, r[-1]))) * weight

    _sum_and_bias(d, layout, y, (*kernel, inside), product, bias)


def _transposed_weights(layout: Layout, taps: Sequence[T], group: T, inside: T, made: T) -> list[T]:
    if layout.channels_last:
        return [*taps, group, inside, made]
    return [group, inside, made, *taps]


def _spread(
    d: Definition,
    layout: Layout,
    x: Tensor,
    shape: Sequence[int],
    before: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    """The input with its elements `strides` apart and zeros elsewhere, shifted so that no tap reads outside."""
    batch, extents, channels = layout.parts(x.shape)
    spread = d.temporary(layout.join(batch, shape, channels), F32)

    def body(i: Index) -> Expr:
        first, place, rest = layout.parts(i)
        source: list[Expr] = []
        conditions: list[Expr] = []
        for at, extent, length, cut, span, stride in zip(place, extents, shape, before, spans, strides, strict=True):
            shift = cut - span
            moved, within = clamped(op("add", at, shift), shift, length - 1 + shift, (extent - 1) * stride + 1)
            source.append(moved // stride)
            conditions += within
            if stride > 1:
                conditions.append(op("eq", moved % stride, 0))
        return where_all(conditions, load(x, layout.join(first, source, rest)), const(0.0))

    return d.write(spread, body)


def matmul(d: Definition) -> None:
    """Matrix product of floats: see `_product`."""
    _product(d, d.input(0, F32), d.input(1, F32))


def matmul_integer(d: Definition) -> None:
    """Matrix product of bytes: see `_product`."""
    _product(d, *_bytes(d))


def _product(d: Definition, a: Tensor, b: Tensor) -> None:
    """Over the last two dimensions; the ones before broadcast, and vectors are rows and columns."""
    y = d.output()
    d.require(bool(a.shape and b.shape), "a scalar operand")
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    first_column = len(batch) + len(a.shape[-2:-1])

    def product(i: Index, r: Index) -> Expr:
        outer, row, column = i[: len(batch)], i[len(batch) : first_column], i[first_column:]
        return _multiplied(load(a, [*outer, *row, r[0]]), load(b, [*outer, r[0], *column]))

    d.fold(y, "sum", a.shape[-1:], product)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(left), len(right))
    padded = ([1] * (rank - len(shape)) + list(shape) for shape in (left, right))
    return tuple(max(pair) for pair in zip(*padded, strict=True))


CONTRACTIONS: Mapping[str, OpDef] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
}

"""Folds over dimensions, and normalisations, which are folds with pointwise work between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import FLOATS, DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..evaluation.windows import window_attributes, window_counts
from ..task import Index, Tensor, fold_value, identity, load
from .definition import (
    ARITHMETIC,
    ActivationLayout,
    Definition,
    NotNative,
    OpDef,
    axis_of,
    clamp,
    padding,
    quotient,
    where_all,
)


def _keepdims_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape after folding with the folded dimensions kept as 1."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def _fold(
    d: Definition, x: Tensor, y: Tensor, axes: Sequence[int], combiner: str, body: Callable[[Index], Expr]
) -> Tensor:
    """Fold `body`, over the index of x, along `axes`. y has them as 1."""
    axes = sorted(axes)

    def element(i: Index, r: Index) -> Expr:
        place = list(i)
        for axis, at in zip(axes, r, strict=True):
            place[axis] = at
        return body(place)

    return d.fold(y, combiner, [x.shape[axis] for axis in axes], element)


def reduction(
    combiner: str,
    before: Callable[[Expr], Expr] = lambda x: x,
    after: Callable[[Expr, int], Expr] | None = None,
    *dtypes: DType,
) -> OpDef:
    """Fold `before` of the elements; `after` gets the result and how many elements it was made from."""

    def define(d: Definition) -> None:
        x, y = d.input(0, *(dtypes or FLOATS)), d.output()
        axes = d.ints("axes")
        y = d.reshape(y, _keepdims_shape(x.shape, axes))
        count = prod(x.shape[axis] for axis in axes)
        if x.dtype is DType.BOOL:
            total = d.temporary(y.shape, DType.I32)
            _fold(d, x, total, axes, combiner, lambda i: op("cast", load(x, i), dtype=DType.I32))
            d.write(y, lambda i: op("ne", load(total, i), 0))
        elif after is None:
            _fold(d, x, y, axes, combiner, lambda i: before(load(x, i)))
        else:
            total = d.temporary(y.shape, x.dtype)
            _fold(d, x, total, axes, combiner, lambda i: before(load(x, i)))
            d.write(y, lambda i: after(load(total, i), count))

    return define


def softmax(d: Definition) -> None:
    """exp(x - max) over its sum."""
    x, y = d.input(0, *FLOATS), d.output()
    axes = [int(d.attr("axis"))]
    folded_shape = _keepdims_shape(x.shape, axes)
    top = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "max", lambda i: load(x, i))
    power = d.write(d.temporary(x.shape, x.dtype), lambda i: op("exp", load(x, i) - load(top, i)))
    total = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "sum", lambda i: load(power, i))
    scale = d.write(d.temporary(folded_shape, x.dtype), lambda i: op("div", 1.0, load(total, i)))
    d.write(y, lambda i: load(power, i) * load(scale, i))


def log_softmax(d: Definition) -> None:
    """x - max - log(sum of exp(x - max))."""
    x, y = d.input(0, *FLOATS), d.output()
    axes = [int(d.attr("axis"))]
    folded_shape = _keepdims_shape(x.shape, axes)
    top = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "max", lambda i: load(x, i))
    total = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "sum", lambda i: op("exp", load(x, i) - load(top, i)))
    level = d.write(d.temporary(folded_shape, x.dtype), lambda i: op("log", load(total, i)))
    d.write(y, lambda i: load(x, i) - load(top, i) - load(level, i))


def log_sum_exp(d: Definition) -> None:
    """max + log(sum of exp(x - max)); an infinite maximum is taken for the largest number there is."""
    x, y = d.input(0, *FLOATS), d.output()
    axes, largest = d.ints("axes"), float(np.finfo(x.dtype.value).max)
    y = d.reshape(y, _keepdims_shape(x.shape, axes))
    top = _fold(d, x, d.temporary(y.shape, x.dtype), axes, "max", lambda i: load(x, i))

    def level(i: Index) -> Expr:
        return op("min", op("max", load(top, i), -largest), largest)

    def power(i: Index) -> Expr:
        return op("exp", load(x, i) - level(i))

    total = _fold(d, x, d.temporary(y.shape, x.dtype), axes, "sum", power)
    d.write(y, lambda i: op("log", load(total, i)) + level(i))


def lp_normalization(d: Definition) -> None:
    """Each element over the norm along an axis; 0 where that is 0."""
    x, order = d.input(0, *FLOATS), int(d.attr("p", 2))
    axes = [axis_of(int(d.attr("axis", -1)), len(x.shape))]

    def size(i: Index) -> Expr:
        return op("abs", load(x, i)) if order == 1 else load(x, i) * load(x, i)

    total = _fold(d, x, d.temporary(_keepdims_shape(x.shape, axes), x.dtype), axes, "sum", size)

    def body(i: Index) -> Expr:
        norm = load(total, i) if order == 1 else op("sqrt", load(total, i))
        return op("select", op("eq", norm, 0.0), 0.0, op("div", load(x, i), norm))

    d.write(d.output(), body)


SHORT_ROW, BLOCK = 32, 8
"""The longest axis that is added up from its beginning for each element anew, and the blocks that longer ones are cut
to: an element then takes the sum of those before its own, which are added up the same way.
"""


def cumulative(combiner: str) -> OpDef:
    """All elements up to each, or before it, from either end, joined."""
    return lambda d: _cumulate(d, combiner)


def _cumulate(d: Definition, combiner: str) -> None:
    x, y = d.input(0, *ARITHMETIC), d.output()
    d.require("axis" in d.node.attrs, "axis is known only at run time")
    axis = axis_of(int(d.attr("axis")), len(x.shape))
    is_reverse, is_exclusive = (bool(d.attr(name, 0)) for name in ("reverse", "exclusive"))
    _cumulate_axis(d, (x, y), axis, combiner, is_reverse=is_reverse, is_exclusive=is_exclusive)


def _cumulate_axis(
    d: Definition, tensors: tuple[Tensor, Tensor], axis: int, combiner: str, *, is_reverse: bool, is_exclusive: bool
) -> None:
    """Join along one axis what comes before each element, or after it, and unless `is_exclusive` itself."""
    x, y = tensors
    extent, nothing = x.shape[axis], const(identity(combiner, x.dtype), x.dtype)
    block = BLOCK if extent > SHORT_ROW else extent
    blocks = -(-extent // block)

    def place(i: Index, at: Expr) -> Index:
        return [*i[:axis], at, *i[axis + 1 :]]

    def element(i: Index, at: Expr) -> Expr:
        if not extent % block:
            return load(x, place(i, at))
        return op("select", op("lt", at, extent), load(x, place(i, op("min", at, extent - 1))), nothing)

    def own(i: Index, r: Index) -> Expr:
        at = i[axis] // block * block + r[0] if blocks > 1 else r[0]
        pair = (i[axis], at) if is_reverse else (at, i[axis])
        return op("select", op("lt" if is_exclusive else "le", *pair), element(i, at), nothing)

    if blocks == 1:
        d.fold(y, combiner, (block,), own)
        return
    shape = tuple(blocks if a == axis else size for a, size in enumerate(x.shape))
    totals, earlier, inside = (d.temporary(one, x.dtype) for one in (shape, shape, x.shape))
    d.fold(totals, combiner, (block,), lambda i, r: element(i, i[axis] * block + r[0]))
    _cumulate_axis(d, (totals, earlier), axis, combiner, is_reverse=is_reverse, is_exclusive=True)
    d.fold(inside, combiner, (block,), own)
    d.write(y, lambda i: fold_value(combiner, load(inside, i), load(earlier, place(i, i[axis] // block))))


def _moments(d: Definition, x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """The mean, and one over the standard deviation, along `axes`."""
    folded_shape = _keepdims_shape(x.shape, axes)
    count = prod(x.shape[axis] for axis in axes)
    total = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "sum", lambda i: load(x, i))
    mean = d.write(d.temporary(folded_shape, x.dtype), lambda i: quotient(load(total, i), count))

    def square(i: Index) -> Expr:
        centred = load(x, i) - load(mean, i)
        return centred * centred

    spread = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "sum", square)
    scale = d.temporary(folded_shape, x.dtype)
    d.write(scale, lambda i: op("div", 1.0, op("sqrt", quotient(load(spread, i), count) + epsilon)))
    return mean, scale


def layer_normalization(d: Definition) -> None:
    """Rows moved to mean 0 and variance 1, then scaled and shifted; optionally the moments as well."""
    d.require(int(d.attr("stash_type", 1)) == 1, "stash_type")
    x, gain, bias = d.input(0, *FLOATS), d.input(1, *FLOATS), d.optional(2, *FLOATS)
    axes = list(range(axis_of(int(d.attr("axis", -1)), len(x.shape)), len(x.shape)))
    mean, scale = _moments(d, x, axes, float(d.attr("epsilon", 1e-5)))

    def body(i: Index) -> Expr:
        value = (load(x, i) - load(mean, i)) * load(scale, i) * load(gain, i)
        return value if bias is None else value + load(bias, i)

    d.write(d.output(), body)
    for position, moment in ((1, mean), (2, scale)):
        if d.has_output(position):
            y = d.output(position)
            d.write(y, lambda i, y=y, moment=moment: op("cast", load(moment, i), dtype=y.dtype))  # type: ignore[misc]


def instance_normalization(d: Definition) -> None:
    """Each channel of each sample moved to mean 0 and variance 1, then scaled and shifted."""
    x, gain, bias = d.input(0, *FLOATS), d.input(1, *FLOATS), d.input(2, *FLOATS)
    layout = ActivationLayout.of(d, x.shape)
    channel = len(x.shape) - 1 if layout.channels_last else 1
    axes = [axis for axis in range(1, len(x.shape)) if axis != channel]
    mean, scale = _moments(d, x, axes, float(d.attr("epsilon", 1e-5)))

    def body(i: Index) -> Expr:
        at = [i[channel]]
        return (load(x, i) - load(mean, i)) * load(scale, i) * load(gain, at) + load(bias, at)

    d.write(d.output(), body)


def rms_normalization(d: Definition) -> None:
    """Rows over their root mean square, scaled."""
    d.require(int(d.attr("stash_type", 1)) == 1, "stash_type")
    x, gain = d.input(0, *FLOATS), d.input(1, *FLOATS)
    axes = list(range(axis_of(int(d.attr("axis", -1)), len(x.shape)), len(x.shape)))
    folded_shape, count = _keepdims_shape(x.shape, axes), prod(x.shape[axis] for axis in axes)
    epsilon = float(d.attr("epsilon", 1e-5))
    total = _fold(d, x, d.temporary(folded_shape, x.dtype), axes, "sum", lambda i: load(x, i) * load(x, i))
    scale = d.temporary(folded_shape, x.dtype)
    d.write(scale, lambda i: op("div", 1.0, op("sqrt", quotient(load(total, i), count) + epsilon)))
    d.write(d.output(), lambda i: load(x, i) * load(scale, i) * load(gain, i))


def local_response(d: Definition) -> None:
    """LRN: each element over a power of the mean square of its neighbours along the channels."""
    x, y = d.input(0, *FLOATS), d.output()
    layout = ActivationLayout.of(d, x.shape)
    channel = len(x.shape) - 1 if layout.channels_last else 1
    size = int(d.attr("size"))
    alpha, beta, bias = float(d.attr("alpha", 1e-4)), float(d.attr("beta", 0.75)), float(d.attr("bias", 1.0))
    before = [(size - 1) // 2 if axis == channel else 0 for axis in range(len(x.shape))]
    shape = [extent + (size - 1 if axis == channel else 0) for axis, extent in enumerate(x.shape)]
    padded = d.write(d.temporary(shape, x.dtype), lambda i: padding(x, i, shape, before, const(0.0, x.dtype)))

    def neighbour(i: Index, r: Index) -> Expr:
        place = list(i)
        place[channel] = op("add", i[channel], r[0])
        return load(padded, place) * load(padded, place)

    total = d.fold(d.temporary(x.shape, x.dtype), "sum", (size,), neighbour)
    d.write(y, lambda i: load(x, i) * op("pow", load(total, i) * (alpha / size) + bias, -beta))


def col2im(d: Definition) -> None:
    """Columns `[N, C * kernel, places]`, each of which was a window of an image, added up where they overlap."""
    x, y = d.input(0, *ARITHMETIC), d.output()
    image, block = d.constant_input(1), d.constant_input(2)
    if image is None or block is None:
        raise NotNative("Col2Im: a shape is known only at run time")
    kernel = tuple(map(int, block))
    attrs = window_attributes(d.node.attrs, y.shape[2:], kernel)
    counts, pads = window_counts(attrs, y.shape[2:], ceil=False), attrs["pads"]
    x = d.reshape(x, (*y.shape[:2], *kernel, *counts))
    strides, dilations = attrs["strides"], attrs["dilations"]
    are_plain = all(stride == 1 or dilation == 1 for stride, dilation in zip(strides, dilations, strict=True))
    d.require(are_plain, "strides with dilations")
    dims = tuple(zip(y.shape[2:], kernel, counts, strides, dilations, pads, strict=False))

    def column(i: Index, r: Index) -> Expr:
        taps: list[Expr] = []
        places: list[Expr] = []
        conditions: list[Expr] = []
        for at, number, (extent, most, count, stride, dilation, before) in zip(i[2:], r, dims, strict=True):
            whole, last = op("add", at, before), (most - 1) // stride  # only every stride-th tap meets a place
            tap, tap_bounds = clamp(op("add", whole % stride, number * stride), 0, (last + 1) * stride - 1, most)
            high = (extent - 1 + before) // stride
            step = number * dilation
            place, bounds = clamp(op("sub", whole // stride, step), before // stride - last * dilation, high, count)
            taps.append(tap)
            places.append(place)
            conditions += [*tap_bounds, *bounds]
        return where_all(conditions, load(x, [*i[:2], *taps, *places]), const(0, x.dtype))

    d.fold(y, "sum", [-(-most // stride) for most, stride in zip(kernel, strides, strict=True)], column)


def _mean_of(total: Expr, count: int) -> Expr:
    """The mean; that of integers is rounded towards zero."""
    return quotient(total, count) if total.dtype.is_float else op("div", total, const(count, total.dtype))


REDUCTIONS: Mapping[str, OpDef] = {
    "Col2Im": col2im,
    "CumProd": cumulative("prod"),
    "CumSum": cumulative("sum"),
    "InstanceNormalization": instance_normalization,
    "LRN": local_response,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "LpNormalization": lp_normalization,
    "RMSNormalization": rms_normalization,
    "ReduceL1": reduction("sum", lambda x: op("abs", x), None, *ARITHMETIC),
    "ReduceL2": reduction("sum", lambda x: x * x, lambda total, _: op("sqrt", total)),
    "ReduceLogSum": reduction("sum", after=lambda total, _: op("log", total)),
    "ReduceLogSumExp": log_sum_exp,
    "ReduceMax": reduction("max", lambda x: x, None, *ARITHMETIC, DType.BOOL),
    "ReduceMean": reduction("sum", lambda x: x, _mean_of, *ARITHMETIC),
    "ReduceMin": reduction("min", lambda x: x, None, *ARITHMETIC, DType.BOOL),
    "ReduceProd": reduction("prod", lambda x: x, None, *ARITHMETIC),
    "ReduceSum": reduction("sum", lambda x: x, None, *ARITHMETIC),
    "ReduceSumSquare": reduction("sum", lambda x: x * x, None, *ARITHMETIC),
    "Softmax": softmax,
}

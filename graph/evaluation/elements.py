"""Corrections of ops on single elements, of those that move elements, and of quantised ones: see `corrections`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf, prod
from typing import Any

import numpy as np
from onnx.reference import ops

from ..ir import Array
from .corrections import Correction, OnnxCall, widen


def _prelu(_: OnnxCall, x: Any, slope: Any) -> Array:
    """Times the slope below zero alone: 0 times an infinite slope is no number."""
    return np.asarray(np.where(x < 0, x * slope, x), x.dtype)


def _det(_: OnnxCall, x: Any) -> Array:
    """Determinants by elimination: numpy's go by logarithms, and lose places."""
    rows = np.array(x, np.longdouble).reshape(-1, *x.shape[-2:])
    result, every = np.ones(len(rows), np.longdouble), np.arange(len(rows))
    with np.errstate(all="ignore"):
        for k in range(rows.shape[-1]):
            pivot = k + np.abs(rows[:, k:, k]).argmax(axis=1)
            taken, first = rows[every, pivot].copy(), rows[:, k].copy()
            rows[every, pivot], rows[:, k] = first, taken
            result *= np.where(pivot == k, 1, -1) * taken[:, k]
            factors = np.where(taken[:, k, None] == 0, 0, rows[:, k + 1 :, k] / taken[:, k, None])
            rows[:, k + 1 :] -= factors[:, :, None] * taken[:, None]
        return np.asarray(result.reshape(x.shape[:-2])).astype(x.dtype)


_erf = np.vectorize(erf, otypes=[np.float64])


def _shrink(call: OnnxCall, x: Any) -> Array:
    """0 within a bound, elsewhere nearer to 0 by a bias; whole numbers by a whole one stay exact."""
    bias, bound = float(call.attrs.get("bias", 0.0)), float(call.attrs.get("lambd", 0.5))
    is_exact = x.dtype.kind in "iu" and bias.is_integer()
    step, floats = np.array(bias).astype(np.int64).astype(x.dtype) if is_exact else bias, x.astype(np.float64)
    with np.errstate(over="ignore"):
        shrunk = np.where(floats < -bound, x + step, np.where(floats > bound, x - step, 0))
    return np.asarray(shrunk).astype(x.dtype)


def _pow(_: OnnxCall, x: Any, exponent: Any) -> Array:
    """Powers in the type of the base. Those of integers are cut off towards zero: 2 to the power of -1 is 0."""
    if x.dtype.kind not in "iu" or exponent.dtype.kind not in "iu":
        return np.asarray(np.power(x, exponent)).astype(x.dtype)
    most = np.uint64(np.iinfo(np.int64).max)
    whole = (np.minimum(exponent, most) if exponent.dtype == np.uint64 else exponent).astype(np.int64)
    powers = np.power(x, np.abs(whole))
    return np.asarray(np.where((whole >= 0) | (np.abs(x) == 1), powers, 0)).astype(x.dtype)


def _mean(_: OnnxCall, *operands: Any) -> Array:
    """The mean of all operands, which broadcast."""
    wide = np.result_type(operands[0].dtype, np.float32)
    total = sum(operand.astype(wide) for operand in operands)
    return np.asarray(total / np.asarray(len(operands), wide)).astype(operands[0].dtype)


# Movement


def _flatten(call: OnnxCall, x: Array) -> Array:
    axis = call.attrs.get("axis", 1)
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _gather_elements(call: OnnxCall, data: Array, indices: Any) -> Array:
    """Single elements, each chosen along one axis."""
    axis = call.attrs.get("axis", 0) % data.ndim
    part = tuple(slice(None) if k == axis else slice(0, extent) for k, extent in enumerate(indices.shape))
    return np.take_along_axis(data[part], indices, axis)


def _gather_nd(call: OnnxCall, data: Array, indices: Any) -> Array:
    """Slices chosen by index vectors, the last axis of the indices."""
    batches = np.indices(indices.shape[:-1], sparse=True)[: call.attrs.get("batch_dims", 0)]
    return np.asarray(data[(*batches, *np.moveaxis(indices, -1, 0))])


def _one_hot(call: OnnxCall, indices: Any, depth: Any, values: Any) -> Array:
    """Vectors with one value at the index and another elsewhere."""
    count = int(np.asarray(depth).reshape(-1)[0])
    indices = np.asarray(indices, np.result_type(indices.dtype, np.int64))  # the depth may be beyond their own type
    axis = call.attrs.get("axis", -1) % (indices.ndim + 1)
    places = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
    is_hot = np.expand_dims(np.mod(indices, count), axis) == places
    is_valid = np.expand_dims((indices >= -count) & (indices < count), axis)
    return np.asarray(np.where(is_hot & is_valid, values[1], values[0]))


def _scatter(call: OnnxCall, data: Array, indices: Any, updates: Array) -> Array:
    """Single elements replaced, each at a place along one axis."""
    axis = call.attrs.get("axis", 0) % data.ndim
    result = data.copy()
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    result[tuple(places)] = updates
    return result


def _pad(call: OnnxCall, data: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Array:
    """Elements added around, or taken away where pads are negative. Opsets before 11 say all by attributes."""
    if pads is None:
        pads, value = call.attrs["pads"], call.attrs.get("value")
    pad_axes = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
    widths = [(0, 0)] * data.ndim
    for axis, before, after in zip(pad_axes, *np.reshape(pads, (2, -1)).tolist(), strict=True):
        widths[axis] = before, after
    mode = call.attrs.get("mode") or "constant"
    if mode == "constant":
        zero = "" if data.dtype.kind in "OUST" else 0
        return _pad_constant(data, widths, zero if value is None else np.asarray(value).reshape(-1)[0])
    for axis, (before, after) in enumerate(widths):
        data = np.take(data, _source_indices(data.shape[axis], before, after, mode), axis)
    return np.asarray(data)


def _pad_constant(data: Any, widths: Sequence[tuple[int, int]], value: Any) -> Array:
    """Pad with one value. Where a negative pad exceeds the elements, the rest is cut from the pad at the other end."""
    spans = list(zip(data.shape, widths, strict=True))
    shape = [extent + before + after for extent, (before, after) in spans]
    result = np.full(shape, value, object if data.dtype.kind in "OUST" else data.dtype)
    target = tuple(slice(max(before, 0), max(before + extent, 0)) for extent, (before, _) in spans)
    source = tuple(slice(max(-before, 0), max(extent + min(after, 0), 0)) for extent, (before, after) in spans)
    result[target] = data[source]
    return result


def _source_indices(extent: int, before: int, after: int, mode: str) -> Any:
    """The indices of the elements along one padded axis: the rest after cutting is continued in both directions."""
    first, left = max(-before, 0), extent + min(before, 0) + min(after, 0)
    if left < 0 or (left == 0 and max(before, after) > 0):
        raise ValueError(f"{extent} elements can't be padded by ({before}, {after}) with mode {mode}")
    return first + _BORDERS[mode](np.arange(-max(before, 0), left + max(after, 0)), max(left, 1))


def _reflect(places: Any, extent: int) -> Any:
    period = max(2 * (extent - 1), 1)
    inside = places % period
    return np.minimum(inside, period - inside) if extent > 1 else inside


_BORDERS: Mapping[str, Callable[[Any, int], Any]] = {
    "edge": lambda places, extent: np.clip(places, 0, extent - 1),
    "reflect": _reflect,
    "wrap": lambda places, extent: places % extent,
}
"""Padding modes, as functions from places and the extent to the places inside that are read."""


def _squeeze(call: OnnxCall, x: Any, axes: Any = None) -> Array:
    positions = call.attrs.get("axes", axes)
    return np.asarray(np.squeeze(x, None if positions is None else tuple(map(int, np.reshape(positions, -1)))))


def _unsqueeze(call: OnnxCall, x: Any, axes: Any = None) -> Array:
    """More dimensions of extent 1, counted from either end of the result."""
    positions = np.asarray(call.attrs.get("axes", axes)).reshape(-1)
    return np.expand_dims(x, tuple(map(int, positions)))


def _compress(call: OnnxCall, x: Any, condition: Any) -> Array:
    """The slices, or elements, for which a condition holds, which may be shorter than there are."""
    axis = call.attrs.get("axis")
    whole = x.reshape(-1) if axis is None else x
    indices = np.flatnonzero(condition[: whole.shape[axis or 0]])
    return np.take(whole, indices, axis or 0)


def _unique(call: OnnxCall, x: Any) -> tuple[Array, ...]:
    """The different elements, or slices along an axis, in ascending order or in that of first occurrence.

    NaN is one element, above all others. Where each is first, which of them stands at each place and how often each
    occurs are the other results.
    """
    axis = call.attrs.get("axis")
    whole = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
    # Ranks, not values: numpy has slices that hold NaN differ, and can't compare those of texts.
    ranks = np.unique(whole, return_inverse=True)[1].reshape(len(whole), prod(whole.shape[1:]))
    first, places, counts = np.unique(ranks, True, True, True, axis=0)[1:]
    order = np.arange(len(first)) if call.attrs.get("sorted", 1) else np.argsort(first)
    values = np.moveaxis(whole[first[order]], 0, axis or 0)
    results = (values, first[order], np.argsort(order)[places.reshape(-1)], counts[order])
    return results[: call.output_count]


# Quantised numbers


_BOUNDS = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (2, 4, 8, 16)} | {
    f"uint{bits}": (0, (1 << bits) - 1) for bits in (2, 4, 8, 16)
}
"""The least and the most of what is quantised to, by the name of the type. Floats saturate by themselves."""

_convolution = ops.load_op("", "Conv").eval


def _linear_convolution(
    call: OnnxCall, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any,
    bias: Any = None,
) -> Array:  # fmt: skip
    """A convolution of bytes: sums are exact, scaled and rounded once."""

    def along(values: Any, axis: int) -> Any:
        return np.asarray(values).reshape([-1 if k == axis else 1 for k in range(w.ndim)])

    left = x.astype(np.float64) - x_zero.astype(np.float64)
    right = w.astype(np.float64) - along(w_zero, 0).astype(np.float64)
    total = _convolution(left, right, **call.attrs)
    if bias is not None:
        total = total + along(bias, 1)
    steps = np.rint(total.astype(np.float32) * (x_scale * along(w_scale, 1) / scale)) + zero.astype(np.float32)
    return np.asarray(np.clip(steps, *_BOUNDS[zero.dtype.name]).astype(zero.dtype))


def _integer_product(_: OnnxCall, a: Any, b: Any, zero_a: Any = None, zero_b: Any = None) -> Array:
    """A product of integers less their zero points."""
    left, right = (np.asarray(values, np.int32) for values in (a, b))
    if zero_a is not None:  # a vector is of rows
        left = left - (zero_a[:, None] if np.ndim(zero_a) == 1 and np.size(zero_a) > 1 else zero_a)
    if zero_b is not None:
        right = right - zero_b
    return np.asarray(np.matmul(left, right), np.int32)


class SaturatingQuantize:
    """Ahead of the evaluator's QuantizeLinear among the bases of a class."""

    def _run(self, *operands: Any, **attrs: Any) -> tuple[Any]:
        (result,) = super()._run(*operands, **attrs)  # type: ignore[misc]
        x, scale = operands[:2]
        if not x.size:
            return (result,)
        limit = 65504.0 if x.dtype == np.float16 else 2.0**20  # beyond all results, and held by the type of x / scale
        sizes = np.abs(widen(x))
        largest = np.fmax.reduce(sizes, axis=None, initial=0.0)  # of what is not NaN
        if result.dtype.name not in _BOUNDS or not largest > limit * np.min(np.abs(scale)):
            return (result,)
        low, high = _BOUNDS[result.dtype.name]
        steps = np.asarray(x, np.float64) / _broadcast_scale(
            scale, x.shape, attrs.get("axis", 1), attrs.get("block_size")
        )
        saturated = np.where(steps > limit, high, np.where(steps < -limit, low, result.astype(np.int32)))
        return (saturated.astype(result.dtype),)


def _broadcast_scale(scale: Any, shape: Sequence[int], axis: int, block_size: int | None) -> Any:
    """Scales as they meet an operand of this shape: one for all, one a place along an axis, or one a block."""
    if scale.size == 1:
        return scale.reshape(())
    if not block_size:
        return scale.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])
    return np.repeat(scale, block_size, axis).take(np.arange(shape[axis]), axis)


def _gelu(call: OnnxCall, x: Any) -> Any:
    wide = x.astype(np.float64)
    if call.attrs.get("approximate", "none") == "tanh":
        curve = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    else:
        curve = _erf(wide * np.sqrt(0.5))
    return np.asarray(0.5 * wide * (1 + curve)).astype(x.dtype)


def _dynamic_quantize(call: OnnxCall, x: Any) -> tuple[Any, Any, Any]:
    """Bytes over the range of the numbers and 0. Zeros alone have a scale of 1, as in ONNX Runtime."""
    low, high = np.float32(x.min(initial=0)), np.float32(x.max(initial=0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


ELEMENTS: Mapping[str, Correction] = {
    "CastLike": lambda _, x, like: x.astype(like.dtype),
    "Compress": _compress,
    "Det": _det,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Erf": lambda _, x: np.asarray(_erf(x.astype(np.float64))).astype(x.dtype),
    "Flatten": _flatten,
    "GatherElements": _gather_elements,
    "Gelu": _gelu,
    "GatherND": _gather_nd,
    "MatMulInteger": _integer_product,
    "Mean": _mean,
    "OneHot": _one_hot,
    "Optional": lambda _, x=None: x,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _pow,
    "QLinearConv": _linear_convolution,
    "Scatter": _scatter,
    "Shrink": _shrink,
    "Softsign": lambda _, x: np.asarray(x / (1 + np.abs(x)), x.dtype),
    "Squeeze": _squeeze,
    "Unique": _unique,
    "Unsqueeze": _unsqueeze,
}

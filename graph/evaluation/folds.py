"""Corrections of folds over axes, products of matrices and normalisations: see `corrections`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ops

from ..ir import Array
from .corrections import Correction, OnnxCall, computed_wide, widen

_Fold = Callable[..., Any]
"""Folds an array; keywords `axis` and `keepdims` as numpy has them."""


def _bound(dtype: Any, *, low: bool) -> Any:
    """The end of what a type holds: the largest of no numbers, or the least of them."""
    match dtype.kind:
        case "b":
            return not low
        case "i" | "u":
            return np.iinfo(dtype).min if low else np.iinfo(dtype).max
        case _:
            return -np.inf if low else np.inf


def _mean(x: Any, **over: Any) -> Any:
    return np.sum(x, **over) / np.sum(np.ones_like(x), **over)


def _log_sum_exp(x: Any, *, axis: Any, keepdims: bool) -> Any:
    """Relative to the largest, so that powers of large numbers don't overflow, unless that is infinite itself."""
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    level = np.where(np.isfinite(top), top, 0)
    logs = np.log(np.sum(np.exp(x - level), axis=axis, keepdims=True)) + level
    return logs if keepdims else np.squeeze(logs, axis)


_EXACT: Mapping[str, _Fold] = {
    "ReduceL1": lambda x, **over: np.sum(np.abs(x), **over),
    "ReduceMax": lambda x, **over: np.max(x, initial=_bound(x.dtype, low=True), **over),
    "ReduceMin": lambda x, **over: np.min(x, initial=_bound(x.dtype, low=False), **over),
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **over: np.sum(np.square(x), **over),
}
"""Reductions that give integers for integers."""

_ROUNDED: Mapping[str, _Fold] = {
    "ReduceL2": lambda x, **over: np.sqrt(np.sum(np.square(x), **over)),
    "ReduceLogSum": lambda x, **over: np.log(np.sum(x, **over)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": _mean,
}


def _reduction(call: OnnxCall, x: Any, axes: Any = None) -> Array:
    """Any of _EXACT and _ROUNDED, over any number of elements, zero and scalars included."""
    axes_value = call.attrs.get("axes") if axes is None else axes
    if axes_value is None or len(axes_value) == 0:
        fold_axes = () if call.attrs.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    else:
        fold_axes = tuple(int(axis) for axis in axes_value)
    over = {"axis": fold_axes, "keepdims": bool(call.attrs.get("keepdims", 1))}
    if call.op in _EXACT and x.dtype.kind in "iub":
        return np.asarray(_EXACT[call.op](x, **over)).astype(x.dtype)
    wide = np.asarray(x, np.float64 if x.dtype.kind in "iub" else np.result_type(x.dtype, np.float32))
    return np.asarray({**_EXACT, **_ROUNDED}[call.op](wide, **over)).astype(x.dtype)


def _gemm(call: OnnxCall, a: Any, b: Any, c: Any = None) -> Array:
    """alpha * A B + beta * C; integers are not multiplied by a 1 that is a float."""
    alpha, beta = call.attrs.get("alpha", 1.0), call.attrs.get("beta", 1.0)
    left, right = (x.T if call.attrs.get(name, 0) else x for x, name in ((a, "transA"), (b, "transB")))
    total = left @ right
    if alpha != 1:
        total = total * alpha
    if c is not None and beta != 0:
        total = total + (c if beta == 1 else c * beta)
    return np.asarray(total).astype(a.dtype)


@computed_wide
def _local_response(call: OnnxCall, x: Any) -> Any:
    """Each element over a power of the mean square of its neighbours along the channels."""
    size, defaults = call.attrs["size"], {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    # By hand, as numpy would round their quotient to float32.
    alpha, beta, bias = (float(call.attrs.get(name, value)) for name, value in defaults.items())
    squares = np.pad(np.square(x), [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
    return x / (bias + alpha / size * total) ** beta


@computed_wide
def _softmax(call: OnnxCall, x: Any) -> Any:
    """Softmax, LogSoftmax and Hardmax, over one axis; before opset 13 over all axes from that one on."""
    if not x.size:
        return x
    old = call.version < 13
    first = call.attrs.get("axis", 1 if old else -1) % max(x.ndim, 1)
    axes = tuple(range(first, x.ndim)) if old else (first,)
    ends = range(-len(axes), 0)
    moved = np.moveaxis(x, axes, ends)
    rows = moved.reshape(*moved.shape[: x.ndim - len(axes)], -1)
    shifted = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
    match call.op:
        case "Softmax":
            powers = np.exp(shifted)
            values = powers / powers.sum(axis=-1, keepdims=True)
        case "LogSoftmax":
            values = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        case _:
            values = np.arange(rows.shape[-1]) == rows.argmax(axis=-1)[..., None]
    return np.moveaxis(values.reshape(moved.shape), ends, axes)


_likelihood_loss = ops.load_op("", "NegativeLogLikelihoodLoss").eval


def _cross_entropy_loss(call: OnnxCall, x: Any, target: Any, weight: Any = None) -> tuple[Any, ...]:
    """The likelihood loss of logarithms of a softmax, which are never those of a 0 that a power was rounded to."""
    wide = widen(x)
    shifted = wide - wide.max(axis=1, keepdims=True)
    logarithms = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(x.dtype)
    operands = [logarithms, target] + ([] if weight is None else [weight])
    return (np.asarray(_likelihood_loss(*operands, **call.attrs)), logarithms)[: call.output_count]


# Normalisation by moments, known or of the operand


@computed_wide
def _lp_normalization(call: OnnxCall, x: Any) -> Any:
    """Rows over their norm; rows of zeros stay."""
    over = {"axis": call.attrs.get("axis", -1), "keepdims": True}
    norm = np.sum(np.abs(x), **over) if call.attrs.get("p", 2) == 1 else np.sqrt(np.sum(np.square(np.abs(x)), **over))
    return x / np.where(norm == 0, 1, norm)


def _layer_normalization(call: OnnxCall, x: Any, gain: Any, bias: Any = None) -> tuple[Array, ...]:
    """Rows moved to mean 0 and variance 1, scaled and shifted; the moments have the type that `stash_type` says."""
    wide = widen(x)
    over = {"axis": tuple(range(call.attrs.get("axis", -1) % x.ndim, x.ndim)), "keepdims": True}
    mean = _mean(wide, **over)
    scale = 1 / np.sqrt(_mean(np.square(wide - mean), **over) + call.attrs.get("epsilon", 1e-5))
    result = (wide - mean) * scale * gain
    if bias is not None:
        result = result + bias
    stash = helper.tensor_dtype_to_np_dtype(call.attrs.get("stash_type", TensorProto.FLOAT))
    return (result.astype(x.dtype), mean.astype(stash), scale.astype(stash))[: call.output_count]


@computed_wide
def _mean_variance_normalization(call: OnnxCall, x: Any) -> Any:
    """Moved to mean 0 and variance 1 along some axes."""
    axes = tuple(call.attrs.get("axes", (0, 2, 3)))
    centred = x - x.mean(axis=axes, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=axes, keepdims=True))
    return centred / (spread + np.asarray(1e-9, x.dtype))


@computed_wide
def _instance_normalization(call: OnnxCall, x: Any, scale: Any, bias: Any) -> Any:
    """Each channel of each sample moved to mean 0 and variance 1, then scaled and shifted."""
    if not x.size:
        return x
    normal = _normalise(x.reshape(*x.shape[:2], -1), call.attrs.get("epsilon", 1e-5)).reshape(x.shape)
    return normal * _channel_parameters(scale, x) + _channel_parameters(bias, x)


def _group_normalization(call: OnnxCall, x: Any, scale: Any, bias: Any) -> Array:
    """Groups of channels moved to mean 0 and variance 1; scaled and shifted by channel, or by group before opset 21."""
    if not x.size:
        return np.asarray(x)
    attrs = {**({"stash_type": TensorProto.FLOAT} if call.version >= 21 else {}), **call.attrs}
    rows = x.astype(moment_dtype(attrs, x.dtype.name)).reshape(x.shape[0], attrs["num_groups"], -1)
    normal = widen(_normalise(rows, attrs.get("epsilon", 1e-5)).reshape(x.shape).astype(x.dtype))
    return np.asarray(normal * _channel_parameters(scale, x) + _channel_parameters(bias, x)).astype(x.dtype)


def moment_dtype(attrs: Mapping[str, Any], dtype: str) -> str:
    """The type that means and variances of a norm are computed in: float32, or float64 where the node says so.

    Older nodes have no such attribute, and keep float64.
    """
    default = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    return "float64" if attrs.get("stash_type", default) == TensorProto.DOUBLE else "float32"


def _normalise(rows: Any, epsilon: float) -> Any:
    """Rows moved to mean 0 and variance 1, in two passes."""
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.asarray(epsilon, rows.dtype))


def _channel_parameters(values: Any, x: Any) -> Any:
    """Parameters of the channels of `x`, or of groups of as many channels each."""
    return np.repeat(widen(values), x.shape[1] // len(values)).reshape(-1, *(1,) * (x.ndim - 2))


class BatchNormInference:
    """Ahead of the evaluator's BatchNormalization among the bases of a class: with one output nothing is learned."""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **attrs: Any) -> Any:
        if len(self.onnx_node.output) > 1 or attrs.get("training_mode"):  # type: ignore[attr-defined]
            return super()._run(x, scale, bias, mean, variance, **attrs)  # type: ignore[misc]
        wide = np.result_type(x.dtype, np.float32)
        places = (-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (-1,)
        gain, shift, centre, spread = (
            np.asarray(values, wide).reshape(places if values.ndim == 1 else values.shape)
            for values in (scale, bias, mean, variance)
        )
        root = np.sqrt(spread + np.asarray(attrs.get("epsilon") or 0.0, wide))
        return (np.asarray(gain * (x - centre) / root + shift).astype(x.dtype),)


FOLDS: Mapping[str, Correction] = {
    **dict.fromkeys((*_EXACT, *_ROUNDED), _reduction),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _softmax),
    "Gemm": _gemm,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "SoftmaxCrossEntropyLoss": _cross_entropy_loss,
}

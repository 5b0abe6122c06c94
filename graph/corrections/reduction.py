"""Folds over axes, and normalisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ops

from ..ir import Array
from .corrected import Corrected, widened

_Fold = Callable[..., Any]
"""Folds an array; keywords `axis` and `keepdims` as numpy has them."""


def _largest(x: Any, **over: Any) -> Any:
    return np.max(x, initial=_bound(x.dtype, low=True), **over)


def _least(x: Any, **over: Any) -> Any:
    return np.min(x, initial=_bound(x.dtype, low=False), **over)


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
    "ReduceMax": _largest,
    "ReduceMin": _least,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **over: np.sum(np.square(x), **over),
}
"""What stays among the integers if it begins there."""

_ROUNDED: Mapping[str, _Fold] = {
    "ReduceL2": lambda x, **over: np.sqrt(np.sum(np.square(x), **over)),
    "ReduceLogSum": lambda x, **over: np.log(np.sum(x, **over)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": _mean,
}

REDUCTIONS = (*_EXACT, *_ROUNDED)
"""The ops that fold."""


class Reduction(Corrected):
    """Any of REDUCTIONS, over any number of elements: also over none, and over the one of a scalar."""

    def _run(self, x: Any, axes: Any = None, **_: Any) -> tuple[Array]:
        attrs = self._attrs()
        given = attrs.get("axes") if axes is None else axes
        if given is None or len(given) == 0:
            chosen = () if attrs.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
        else:
            chosen = tuple(int(axis) for axis in given)
        over = {"axis": chosen, "keepdims": bool(attrs.get("keepdims", 1))}
        op = self.onnx_node.op_type
        if op in _EXACT and x.dtype.kind in "iub":
            return (np.asarray(_EXACT[op](x, **over)).astype(x.dtype),)
        wide = np.asarray(x, np.float64 if x.dtype.kind in "iub" else np.result_type(x.dtype, np.float32))
        return (np.asarray({**_EXACT, **_ROUNDED}[op](wide, **over)).astype(x.dtype),)


class LRN(Corrected):
    """Each element over a power of the mean square of its neighbours along the channels."""

    def _run(self, x: Any, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before, after = (size - 1) // 2, size // 2
        wide = widened(x)
        squares = np.pad(np.square(wide), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        return (np.asarray(wide / (bias + alpha / size * total) ** beta).astype(x.dtype),)


SOFTMAXES = ("Hardmax", "LogSoftmax", "Softmax")
"""The ops that compare the elements of a row."""


class Softmax(Corrected):
    """Any of SOFTMAXES: over one axis; before opset 13 over all from there on."""

    def _run(self, x: Any, axis: int | None = None) -> tuple[Array]:
        if not x.size:
            return (x,)
        old = self.run_params["opsets"][""] < 13
        first = ((1 if old else -1) if axis is None else axis) % max(x.ndim, 1)
        axes = tuple(range(first, x.ndim)) if old else (first,)
        rows = np.moveaxis(widened(x), axes, range(-len(axes), 0))
        values = self._rows(rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)).reshape(rows.shape)
        return (np.asarray(np.moveaxis(values, range(-len(axes), 0), axes)).astype(x.dtype),)

    def _rows(self, rows: Any) -> Any:
        shifted = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
        match self.onnx_node.op_type:
            case "Softmax":
                powers = np.exp(shifted)
                return powers / powers.sum(axis=-1, keepdims=True)
            case "LogSoftmax":
                return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
            case _:
                return np.arange(rows.shape[-1]) == rows.argmax(axis=-1)[..., None]


class LpNormalization(Corrected):
    """Rows over their norm; rows of zeros stay."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        attrs = self._attrs()
        wide = np.abs(widened(x))
        over = {"axis": attrs.get("axis", -1), "keepdims": True}
        norm = np.sum(wide, **over) if attrs.get("p", 2) == 1 else np.sqrt(np.sum(np.square(wide), **over))
        return (np.asarray(x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class LayerNormalization(Corrected):
    """Rows moved to mean 0 and variance 1, scaled and shifted; the moments have the type that `stash_type` says."""

    def _run(self, x: Any, gain: Any, bias: Any = None, **_: Any) -> tuple[Array, ...]:
        attrs = self._attrs()
        wide = widened(x)
        over = {"axis": tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim)), "keepdims": True}
        mean = _mean(wide, **over)
        scale = 1 / np.sqrt(_mean(np.square(wide - mean), **over) + attrs.get("epsilon", 1e-5))
        result = (wide - mean) * scale * gain
        if bias is not None:
            result = result + bias
        stash = helper.tensor_dtype_to_np_dtype(attrs.get("stash_type", TensorProto.FLOAT))
        outputs = (result.astype(x.dtype), mean.astype(stash), scale.astype(stash))
        return outputs[: len(self.onnx_node.output)]


_likelihood_loss = ops.load_op("", "NegativeLogLikelihoodLoss").eval


class SoftmaxCrossEntropyLoss(Corrected):
    """The likelihood loss of logarithms of a softmax, which are never those of a 0 that a power was rounded to."""

    def _run(self, x: Any, target: Any, weight: Any = None, **_: Any) -> tuple[Any, ...]:
        wide = widened(x)
        shifted = wide - wide.max(axis=1, keepdims=True)
        logarithms = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(x.dtype)
        operands = [logarithms, target] + ([] if weight is None else [weight])
        loss = np.asarray(_likelihood_loss(*operands, **self._attrs()))
        return (loss, logarithms) if len(self.onnx_node.output) == 2 else (loss,)

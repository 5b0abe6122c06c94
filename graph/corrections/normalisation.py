"""Normalisation by moments, known or of the operand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from ..ir import Array
from .corrected import Corrected, widened


class MeanVarianceNormalization(Corrected):
    """Moved to mean 0 and variance 1 along some axes."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        axes = tuple(self._attrs().get("axes", (0, 2, 3)))
        wide = widened(x)
        centred = wide - wide.mean(axis=axes, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=axes, keepdims=True))
        return (np.asarray(centred / (spread + np.asarray(1e-9, wide.dtype))).astype(x.dtype),)


class InstanceNormalization(Corrected):
    """Each channel of each sample moved to mean 0 and variance 1, then scaled and shifted."""

    def _run(self, x: Any, scale: Any, bias: Any, **_: Any) -> tuple[Array]:
        if not x.size:
            return (x,)
        rows = widened(x).reshape(*x.shape[:2], -1)
        normal = _whitened(rows, self._attrs().get("epsilon", 1e-5)).reshape(x.shape)
        return (np.asarray(normal * _of_channels(scale, x) + _of_channels(bias, x)).astype(x.dtype),)


class GroupNormalization(Corrected):
    """Groups of channels moved to mean 0 and variance 1; scaled and shifted by channel, or by group before opset 21."""

    def _run(self, x: Any, scale: Any, bias: Any, **_: Any) -> tuple[Array]:
        if not x.size:
            return (x,)
        attrs = self._attrs()
        if self.run_params["opsets"][""] >= 21:
            attrs.setdefault("stash_type", TensorProto.FLOAT)
        rows = x.astype(dtype_of_moments(attrs, x.dtype.name)).reshape(x.shape[0], attrs["num_groups"], -1)
        normal = widened(_whitened(rows, attrs.get("epsilon", 1e-5)).reshape(x.shape).astype(x.dtype))
        return (np.asarray(normal * _of_channels(scale, x) + _of_channels(bias, x)).astype(x.dtype),)


def dtype_of_moments(attrs: Mapping[str, Any], dtype: str) -> str:
    """What means and variances of a norm are computed in: single precision, or double where the node says so.

    Older nodes say nothing, which leaves doubles what they are.
    """
    default = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    return "float64" if attrs.get("stash_type", default) == TensorProto.DOUBLE else "float32"


def _whitened(rows: Any, epsilon: float) -> Any:
    """Rows moved to mean 0 and variance 1, in two passes."""
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.asarray(epsilon, rows.dtype))


def _of_channels(values: Any, x: Any) -> Any:
    """Parameters of the channels of `x`, or of groups of as many channels each."""
    return np.repeat(widened(values), x.shape[1] // len(values)).reshape(-1, *(1,) * (x.ndim - 2))


class Inference:
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

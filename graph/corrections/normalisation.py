"""Normalisation by moments, known or of the operand."""

from __future__ import annotations

from typing import Any

import numpy as np

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

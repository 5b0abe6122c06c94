"""Quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference import ops

from ..ir import Array
from .corrected import Corrected, widened

_convolution = ops.load_op("", "Conv").eval


class QLinearConv(Corrected):
    """A convolution of bytes: sums are exact, scaled and rounded once."""

    def _run(
        self, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any,
        bias: Any = None, **_: Any,
    ) -> tuple[Array]:  # fmt: skip
        def along(values: Any, axis: int) -> Any:
            values = np.asarray(values)
            return values.reshape([-1 if k == axis else 1 for k in range(w.ndim)])

        left = x.astype(np.float64) - x_zero.astype(np.float64)
        right = w.astype(np.float64) - along(w_zero, 0).astype(np.float64)
        total = _convolution(left, right, **self._attrs())
        if bias is not None:
            total = total + along(bias, 1)
        steps = np.rint(total.astype(np.float32) * (x_scale * along(w_scale, 1) / scale)) + zero.astype(np.float32)
        low, high = _BOUNDS[zero.dtype.name]
        return (np.clip(steps, low, high).astype(zero.dtype),)


class Saturating:
    """Ahead of the evaluator's QuantizeLinear among the bases of a class."""

    def _run(self, *operands: Any, **attrs: Any) -> tuple[Any]:
        (result,) = super()._run(*operands, **attrs)  # type: ignore[misc]
        x, scale = operands[:2]
        if not x.size:
            return (result,)
        limit = 65504.0 if x.dtype == np.float16 else 2.0**20  # beyond all results, and held by the type of x / scale
        sizes = np.abs(widened(x))
        largest = np.fmax.reduce(sizes, axis=None, initial=0.0)  # of what is not NaN
        if result.dtype.name not in _BOUNDS or not largest > limit * np.min(np.abs(scale)):
            return (result,)
        low, high = _BOUNDS[result.dtype.name]
        steps = np.asarray(x, np.float64) / _spread(scale, x.shape, attrs.get("axis", 1), attrs.get("block_size"))
        saturated = np.where(steps > limit, high, np.where(steps < -limit, low, result.astype(np.int32)))
        return (saturated.astype(result.dtype),)


_BOUNDS = {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (2, 4, 8, 16)} | {
    f"uint{bits}": (0, (1 << bits) - 1) for bits in (2, 4, 8, 16)
}
"""The least and the most of what is quantised to, by the name of the type. Floats saturate by themselves."""


def _spread(scale: Any, shape: Sequence[int], axis: int, block_size: int | None) -> Any:
    """Scales as they meet an operand of this shape: one for all, one a place along an axis, or one a block."""
    if scale.size == 1:
        return scale.reshape(())
    if not block_size:
        return scale.reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])
    return np.repeat(scale, block_size, axis).take(np.arange(shape[axis]), axis)

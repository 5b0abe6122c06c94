"""Quantised products as ours compute them: of dequantised floats, summed in single precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewright.graph.evaluation import fallback
from tunewright.graph.ir import Array, Node

from .values import epsilon

PRODUCTS = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}
"""Quantised ops and their ops of floats."""


def product_of_floats(node: Node, arrays: Sequence[Any], rng: np.random.Generator) -> Array:
    """The result of a quantised product with sums moved at random, as by another order of their terms.

    Raises EvaluationError.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, *bias = arrays
    is_conv = node.op == "QLinearConv"
    left = _floats(a, a_scale, a_zero, (-1, 1))
    right = _floats(b, b_scale, b_zero, (-1, *(1,) * (b.ndim - 1)) if is_conv else (-1,))
    plain = Node(PRODUCTS[node.op], ("a", "b"), ("y",), node.attrs, version=13)
    total, size = (fallback.evaluate(plain, operands)[0] for operands in ([left, right], [abs(left), abs(right)]))
    if bias and bias[0] is not None:
        places = (-1, *(1,) * (total.ndim - 2))
        total = total + (bias[0] * np.asarray(a_scale * b_scale, np.float32).reshape(-1)).reshape(places)
    perturbed = total + rng.uniform(-1, 1, total.shape) * epsilon("float32") * size
    limits = np.iinfo(y_zero.dtype)
    steps = np.rint(np.asarray(perturbed / y_scale, np.float32)) + y_zero.astype(np.float64)
    return np.asarray(np.clip(steps, limits.min, limits.max)).astype(y_zero.dtype)


def sum_in_floats(node: Node, arrays: Sequence[Any], rng: np.random.Generator) -> Array:
    """A product of bytes as float64, with its exact sums moved at random, as those of scaled terms are."""
    a, b, *zeros = arrays
    operands = [np.asarray(array, np.float64) for array in (a, b)]
    for position, zero in enumerate(zeros):
        if zero is not None:
            is_row = position == 0 and zero.ndim == 1 and zero.size > 1
            operands[position] = operands[position] - (zero[:, None] if is_row else zero)
    total, size = operands[0] @ operands[1], abs(operands[0]) @ abs(operands[1])
    return np.asarray(total + rng.uniform(-1, 1, total.shape) * epsilon("float32") * size)


def _floats(array: Any, scale: Any, zero: Any, places: tuple[int, ...]) -> Any:
    """Dequantised values; scales and zero points with several elements are reshaped to `places`."""
    scale, zero = (value.reshape(places) if value.size > 1 else value.reshape(()) for value in (scale, zero))
    return (array.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)

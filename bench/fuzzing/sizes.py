"""Sizes of operands: whether what is computed of them may leave the range of its type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewright.graph.ir import Array, Node

from .values import as_float64, is_float_array, limits


def largest_product(node: Node, arrays: Sequence[Any]) -> float:
    """The approximate largest sum of products inside of an op of SQUARING."""
    match node.op:
        case "BatchNormalization":  # before it is divided by the deviation, or after
            root = np.sqrt(np.abs(as_float64(arrays[4])) + node.attrs.get("epsilon", 1e-5)).min(initial=1.0)
            centred, scale = largest(arrays[:1]) + largest(arrays[3:4]), largest(arrays[1:2])
            pairs = [(centred, scale), (centred, scale / root), (1.0, scale / root)]
        case "GRU" | "LSTM" | "RNN":
            states = [a for a in arrays[5:7] if a is not None]
            pairs = [(largest(arrays[:1]), largest(arrays[1:2])), (max(largest(states), 1.0), largest(arrays[2:3]))]
        case "Attention":
            pairs = [(largest(arrays[:1]), largest(arrays[1:2]))]
        case _:
            pairs = [(largest(arrays[:1]), largest(arrays[:1]))]
    with np.errstate(over="ignore"):
        products = [float(np.float64(a) * np.float64(b)) for a, b in pairs]
    return max(products) * int(arrays[0].size)


def largest(arrays: Sequence[Any]) -> float:
    """The largest size of a finite element; 0 where there is none."""
    with np.errstate(all="ignore"):
        sizes = [np.abs(as_float64(array)).ravel() for array in arrays if is_float_array(array)]
        return max((float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes), default=0.0)


def may_overflow(arrays: Sequence[Array]) -> bool:
    """Whether sums of squares and products of the arrays may leave the range of their type."""
    name = "float64" if any(array.dtype.name == "float64" for array in arrays) else "float32"
    largest, normal, _ = limits(name)
    with np.errstate(all="ignore"):
        sizes = np.concatenate([np.zeros(0), *(np.abs(as_float64(array)).ravel() for array in arrays)])
        finite = sizes[np.isfinite(sizes) & (sizes > 0)]
        if not finite.size:
            return False
        return bool(finite.max() ** 2 * finite.size > largest / 16 or finite.min() ** 2 < normal)

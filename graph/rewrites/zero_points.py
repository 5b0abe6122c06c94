"""Zero points of products of bytes: known bytes are counted from theirs, and of others the sums are corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.ir import Node

from .edit import Edit, Result, each


@dataclass(frozen=True, slots=True)
class ZeroPoints:
    """The operands of a product of bytes, each with its zero points as they broadcast to it; "" where they are 0."""

    left: tuple[str, str]
    right: tuple[str, str]

    @staticmethod
    def of(edit: Edit, node: Node) -> ZeroPoints | None:
        """The operands of a node. None where a shape is not known, or an operand is a vector."""
        left, right, *zeros = (*node.inputs, "", "")[:4]
        ranks = edit.rank(left), edit.rank(right)
        if min(ranks) < 2 or any(name and edit.shape(name) is None for name in zeros):
            return None
        below = ranks[1] - 1 if node.op == "ConvInteger" else 0  # axes behind that of a weight's zero points
        return ZeroPoints(
            (left, _place_zero_points(edit, zeros[0], 1)), (right, _place_zero_points(edit, zeros[1], below))
        )


def _place_zero_points(edit: Edit, zero: str, below: int) -> str:
    """Zero points along an axis that so many others follow."""
    known = edit.array(zero) if zero else None
    if not zero or (known is not None and not known.any()):
        return ""
    shape = edit.shape(zero) or ()
    if prod(shape) == 1:
        return edit.emit("Reshape", zero, shape=()) if shape else zero
    return edit.emit("Reshape", zero, shape=(*shape, *(1,) * below)) if below and len(shape) == 1 else zero


@each("ConvInteger", "MatMulInteger")
def zero_points(edit: Edit, node: Node) -> Result:
    """Products of bytes without zero points: known bytes are counted from theirs, and of others the sums are corrected.

    Before: `y = MatMulInteger(p, q, m)`. After: `y = Sub(MatMulInteger(p, q), Mul(m, ReduceSum(q) axes=(0,)))`, where
    all of the second operand is known ahead of time, as a rule.
    """
    if len(node.inputs) < 3:
        return None
    zeros = ZeroPoints.of(edit, node)
    if zeros is None:
        return None
    (left, before), (right, behind) = _absorb_zero_points(edit, *zeros.left), _absorb_zero_points(edit, *zeros.right)
    attrs = dict(node.attrs)
    if node.op == "ConvInteger":
        if (before and prod(edit.shape(before) or ()) != 1) or (behind and not _has_window_sums(edit, node)):
            return None
        if before and any(attrs["pads"]):
            left = _pad(edit, left, before, attrs["pads"])
            attrs["pads"] = (0,) * len(attrs["pads"])
    total = edit.emit(node.op, left, right, **attrs)
    if not before and not behind:
        return total
    return edit.emit("Sub", total, _surplus(edit, replace(node, attrs=attrs), (left, before), (right, behind)))


def _absorb_zero_points(edit: Edit, values: str, zero: str) -> tuple[str, str]:
    """Subtract zero points from known numbers, if the results are bytes, and return the remaining zero points.

    The decision depends on types alone, so that tasks don't depend on the values of weights.
    """
    array, point = edit.array(values), edit.array(zero) if zero else None
    if array is None or point is None:
        return values, zero
    points, limits = np.asarray(point, np.int32), np.iinfo(array.dtype.name)
    for dtype in (np.int8, np.uint8):
        if limits.min - points.max() >= np.iinfo(dtype).min and limits.max - points.min() <= np.iinfo(dtype).max:
            return edit.constant((np.asarray(array, np.int32) - points).astype(dtype)), ""
    return values, zero


def _pad(edit: Edit, values: str, border: str, pads: Sequence[int]) -> str:
    """Bytes with a border that need not be known."""
    half, known = len(pads) // 2, edit.array(border)
    around = (0, 0, *pads[:half], 0, 0, *pads[half:])
    value = 0 if known is None else int(known.item())
    padded = edit.emit("Pad", values, pads=around, mode="constant", value=value)
    if known is not None:
        return padded
    extents = (edit.shape(values) or ())[2:]
    sides = zip(extents, pads[:half], pads[half:], strict=True)
    inside = np.pad(np.ones((1, 1, *extents), np.bool_), ((0, 0), (0, 0), *((low, high) for _, low, high in sides)))
    return edit.emit("Where", edit.constant(inside), padded, edit.emit("Reshape", border, shape=()))


MOST_EXACT = 1 << 24
"""Integers up to this one are exact as floats."""


def _has_window_sums(edit: Edit, node: Node) -> bool:
    """Whether the sums of the bytes in the windows of a convolution can be taken as floats."""
    shape, outputs = edit.shape(node.inputs[1]), edit.shape(node.inputs[0])
    if shape is None or outputs is None or prod(shape[1:]) * 255 >= MOST_EXACT:
        return False
    return node.attrs["group"] == 1 or (node.attrs["group"] == shape[0] and shape[1] == 1)


def _window_sums(edit: Edit, node: Node, values: str) -> str:
    """The sum of the bytes in each window of a convolution, over all channels or those of each group."""
    group, kernel = node.attrs["group"], (edit.shape(node.inputs[1]) or ())[2:]
    sums = _sum_axes(edit, values, (1,), keepdims=1) if group == 1 else values
    ones = edit.constant(np.ones((group, 1, *kernel), np.float32))
    return edit.cast(edit.emit("Conv", edit.cast(sums, DType.F32.value), ones, **node.attrs), DType.I32.value)


def _surplus(edit: Edit, node: Node, left: tuple[str, str], right: tuple[str, str]) -> str:
    """The correction of a product of bytes with zero points: m sum(q) + n sum(p) - m n times the terms of a sum."""
    (p, m), (q, n) = left, right
    is_conv, rank, shape = node.op == "ConvInteger", edit.rank(q), edit.shape(q) or ()
    if n and is_conv and edit.shape(n):
        n = for_channels(edit, n, rank)
    terms: list[str] = []
    if m:
        if is_conv:
            sums = for_channels(edit, _sum_axes(edit, q, tuple(range(1, rank)), keepdims=0), rank)
        else:
            sums = _sum_axes(edit, q, (rank - 2,), keepdims=1)
        terms.append(edit.emit("Mul", _wide(edit, m), sums))
    if n:
        sums = _window_sums(edit, node, p) if is_conv else _sum_axes(edit, p, (edit.rank(p) - 1,), keepdims=1)
        terms.append(edit.emit("Mul", sums, _wide(edit, n)))
    if not (m and n):
        return terms[0]
    depth = edit.constant(np.int32(prod(shape[1:]) if is_conv else (edit.shape(p) or (0,))[-1]))
    twice = edit.emit("Mul", edit.emit("Mul", _wide(edit, m), depth), _wide(edit, n))
    return edit.emit("Sub", edit.emit("Add", *terms), twice)


def _wide(edit: Edit, name: str) -> str:
    return edit.cast(name, DType.I32.value)


def _sum_axes(edit: Edit, name: str, axes: tuple[int, ...], keepdims: int) -> str:
    return edit.emit("ReduceSum", _wide(edit, name), axes=axes, keepdims=keepdims)


def for_channels(edit: Edit, name: str, rank: int) -> str:
    """Reshape one number per channel so that it broadcasts to the result of a convolution of that rank."""
    return edit.emit("Reshape", name, shape=(prod(edit.shape(name) or ()), *(1,) * (rank - 2)))

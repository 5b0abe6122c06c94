"""Quantised models: bytes that stand for floats, by scales and zero points, and products of them.

Exporters write them down in three ways: floats that are quantised and dequantised again before a product, ops that do
that inside (`QLinearConv`), and products of bytes whose sums are cast to floats. Machines that multiply bytes get the
last (`integer_products`), all others products of floats (`float_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tunewright.codegen.dtype import BYTES, DType
from tunewright.graph.ir import Graph, Node
from tunewright.graph.onnx_form import element_type

from .edit import Edit, apply
from .linear import matrix_products

FLOAT32 = DType.F32.value

INTEGER_OPS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}
"""Products of floats, and the same of bytes."""

FLOAT_OPS = {integer: name for name, integer in INTEGER_OPS.items()}


# Ops that take bytes and give bytes


def decomposed(graph: Graph) -> Graph:
    """Ops on quantised numbers as those on floats, with what makes floats of bytes before and bytes of floats behind.

    Before: `y = QLinearMatMul(a, s, m, b, t, n, u, o)`.
    After: `y = QuantizeLinear(MatMul(DequantizeLinear(a, s, m), DequantizeLinear(b, t, n)), u, o)`.
    Before: `y, s, z = DynamicQuantizeLinear(x)`.
    After: `s = Div(Sub(ReduceMax(x), ReduceMin(x)), 255)` and so on, and `y = QuantizeLinear(x, s, z)`.
    """
    return apply(graph, _decomposed)


def _decomposed(edit: Edit, node: Node) -> bool:
    rule = _DECOMPOSED.get(node.op) if not node.domain else None
    return rule is not None and rule(edit, node)


def _linear_product(edit: Edit, node: Node) -> bool:
    a, b, result = node.inputs[:3], node.inputs[3:6], node.inputs[6:]
    if min(edit.rank(a[0]), edit.rank(b[0])) < 2 or not _are_plain(edit, *a[1:], *b[1:], *result):
        return False
    product = edit.emit(
        "MatMul", _floats(edit, *a, axis=edit.rank(a[0]) - 2), _floats(edit, *b, axis=edit.rank(b[0]) - 1)
    )
    edit.emit("QuantizeLinear", product, *(_scalar(edit, name) for name in result), to=node.outputs[0])
    return True


def _linear_convolution(edit: Edit, node: Node) -> bool:
    x, w, result, bias = node.inputs[:3], node.inputs[3:6], node.inputs[6:8], node.inputs[8:]
    if not _are_plain(edit, *x[1:], *w[1:], *result):
        return False
    operands = [_floats(edit, *x, axis=1), _floats(edit, *w, axis=0)]
    if any(bias):
        scale = edit.emit("Mul", _scalar(edit, x[1]), w[1])
        operands.append(edit.emit("Mul", edit.cast(bias[0], FLOAT32), scale))
    made = edit.emit("Conv", *operands, **node.attrs)
    edit.emit("QuantizeLinear", made, *(_scalar(edit, name) for name in result), to=node.outputs[0])
    return True


def _are_plain(edit: Edit, *parameters: str) -> bool:
    """Whether scales and zero points are scalars or vectors."""
    return all(edit.rank(name) in (0, 1) for name in parameters)


def _floats(edit: Edit, x: str, scale: str, zero: str, *, axis: int) -> str:
    return edit.emit("DequantizeLinear", x, _scalar(edit, scale), _scalar(edit, zero), axis=axis)


def _scalar(edit: Edit, name: str) -> str:
    """A vector of one element as that element; others as they are."""
    return edit.emit("Reshape", name, shape=()) if name and edit.shape(name) == (1,) else name


def _dynamic(edit: Edit, node: Node) -> bool:
    (x,), (y, scale, zero) = node.inputs, node.outputs
    if edit.rank(x) < 1:
        return False
    none = edit.like(x, 0)
    every: dict[str, Any] = {"axes": tuple(range(edit.rank(x))), "keepdims": 0}
    low = edit.emit("Min", edit.emit("ReduceMin", x, **every), none)
    high = edit.emit("Max", edit.emit("ReduceMax", x, **every), none)
    span = edit.emit("Sub", high, low)
    span = edit.emit("Where", edit.emit("Equal", span, none), edit.like(x, 1), span)  # of zeros alone any will do
    edit.emit("Div", span, edit.like(x, 255), to=scale)
    edit.emit("QuantizeLinear", edit.emit("Neg", low), scale, edit.constant(np.uint8(0)), to=zero)
    edit.emit("QuantizeLinear", x, scale, zero, to=y)
    return True


_DECOMPOSED: Mapping[str, Callable[[Edit, Node], bool]] = {
    "DynamicQuantizeLinear": _dynamic,
    "QLinearConv": _linear_convolution,
    "QLinearMatMul": _linear_product,
}


# Products of bytes instead of floats


def integer_products(graph: Graph) -> Graph:
    """Products of what was dequantised as products of the bytes, whose sums are exact, and scaled afterwards.

    Before: `a = DequantizeLinear(p, s, m); b = DequantizeLinear(q, t, n); y = MatMul(a, b)`.
    After: `c = MatMulInteger(p, q, m, n); y = Mul(Cast(c), Mul(s, t))`. The same with convolutions.
    """
    if not any(node.op == "DequantizeLinear" for node in graph.nodes):
        return graph
    return apply(matrix_products(graph), _integer_product)


@dataclass(frozen=True, slots=True)
class _Quantised:
    """What floats were dequantised from."""

    values: str
    scale: str
    zero: str  # "": 0
    axis: int | None  # along which scales differ

    @staticmethod
    def of(edit: Edit, name: str) -> _Quantised | None:
        """That of a tensor, perhaps with its axes in another order; None if it was not bytes before."""
        moved = edit.made_by(name, "Transpose")
        node = edit.made_by(moved.inputs[0] if moved else name, "DequantizeLinear")
        if node is None or edit.rank(name) < 0:
            return None
        values, scale, zero = (*node.inputs, "")[:3]
        if DType.of(edit.types[values].dtype) not in BYTES or node.attrs.get("block_size", 0):
            return None
        axis = None if prod(edit.shape(scale) or ()) == 1 else node.attrs.get("axis", 1) % edit.rank(name)
        if moved:
            values = edit.emit("Transpose", values, perm=moved.attrs["perm"])
            axis = axis if axis is None else moved.attrs["perm"].index(axis)
        return _Quantised(values, _scalar(edit, scale), _scalar(edit, zero), axis)


def _integer_product(edit: Edit, node: Node) -> bool:
    if node.op not in INTEGER_OPS or node.domain or edit.types[node.outputs[0]].dtype != FLOAT32:
        return False
    left, right = (_Quantised.of(edit, name) for name in node.inputs[:2])
    if left is None or right is None or left.axis is not None:
        return False
    rank = edit.rank(right.values)
    is_conv = node.op == "Conv"
    if right.axis is not None and (right.axis != 0 if is_conv else rank != 2 or right.axis != 1):
        return False
    if rank < 2 or edit.rank(left.values) < 2:
        return False
    operands = _trimmed(left.values, right.values, left.zero, right.zero)
    total = edit.emit(INTEGER_OPS[node.op], *operands, **node.attrs)
    scale = edit.emit("Mul", left.scale, right.scale)
    if is_conv and right.axis is not None:
        scale = _for_channels(edit, scale, rank)
    factors = edit.cast(total, FLOAT32), scale
    if len(node.inputs) > 2 and node.inputs[2]:
        edit.emit("Add", edit.emit("Mul", *factors), _for_channels(edit, node.inputs[2], rank), to=node.outputs[0])
    else:
        edit.emit("Mul", *factors, to=node.outputs[0])
    return True


def _trimmed(*names: str) -> tuple[str, ...]:
    """Operands without absent ones at the end."""
    while names and not names[-1]:
        names = names[:-1]
    return names


def _for_channels(edit: Edit, name: str, rank: int) -> str:
    """One number a channel, as it broadcasts to the result of a convolution of that rank."""
    return edit.emit("Reshape", name, shape=(prod(edit.shape(name) or ()), *(1,) * (rank - 2)))


# Products of floats instead of bytes


def float_products(graph: Graph) -> Graph:
    """Products of bytes that are cast to floats as products of floats.

    Before: `c = MatMulInteger(p, q, m); y = Cast(c) to=float`. After: `y = MatMul(Sub(Cast(p), Cast(m)), Cast(q))`.
    """
    return apply(graph, _float_product)


def kept_zero_points(graph: Graph) -> Graph:
    """What `float_products` does, for convolutions whose weights have zero points that `zero_points` leaves.

    Before: `c = ConvInteger(p, q, m, n); y = Cast(c) to=float`. After: `y = Conv(Sub(Cast(p), Cast(m)), w)`.
    """

    def rule(edit: Edit, node: Node) -> bool:
        inner = edit.made_by(node.inputs[0], "ConvInteger") if node.op == "Cast" else None
        return inner is not None and len(inner.inputs) > 2 and _float_product(edit, node)

    return apply(graph, rule)


def _float_product(edit: Edit, node: Node) -> bool:
    if node.op != "Cast" or node.domain or node.attrs["to"] != element_type(FLOAT32):
        return False
    inner = edit.made_by(node.inputs[0], *FLOAT_OPS)
    if inner is None or not edit.single(node.inputs[0]):
        return False
    product = _Zeros.of(edit, inner)
    if product is None:
        return False
    operands = [_centred(edit, *one) for one in (product.left, product.right)]
    edit.emit(FLOAT_OPS[inner.op], *operands, to=node.outputs[0], **inner.attrs)
    return True


def _centred(edit: Edit, values: str, zero: str) -> str:
    """How far numbers are from their zero points, as floats."""
    found = edit.cast(values, FLOAT32)
    return edit.emit("Sub", found, edit.cast(zero, FLOAT32)) if zero else found


# Zero points


@dataclass(frozen=True, slots=True)
class _Zeros:
    """The operands of a product of bytes, each with its zero points as they broadcast to it; "" where they are 0."""

    left: tuple[str, str]
    right: tuple[str, str]

    @staticmethod
    def of(edit: Edit, node: Node) -> _Zeros | None:
        """Those of a node. None where a shape is not known, or an operand is a vector."""
        left, right, *zeros = (*node.inputs, "", "")[:4]
        ranks = edit.rank(left), edit.rank(right)
        if min(ranks) < 2 or any(name and edit.shape(name) is None for name in zeros):
            return None
        below = ranks[1] - 1 if node.op == "ConvInteger" else 0  # axes behind that of a weight's zero points
        return _Zeros((left, _placed(edit, zeros[0], 1)), (right, _placed(edit, zeros[1], below)))


def _placed(edit: Edit, zero: str, below: int) -> str:
    """Zero points along an axis that so many others follow."""
    known = edit.array(zero) if zero else None
    if not zero or (known is not None and not known.any()):
        return ""
    shape = edit.shape(zero) or ()
    if prod(shape) == 1:
        return edit.emit("Reshape", zero, shape=()) if shape else zero
    return edit.emit("Reshape", zero, shape=(*shape, *(1,) * below)) if below and len(shape) == 1 else zero


def zero_points(graph: Graph) -> Graph:
    """Products of bytes without zero points: known bytes are counted from theirs, and of others the sums are corrected.

    Before: `y = MatMulInteger(p, q, m)`. After: `y = Sub(MatMulInteger(p, q), Mul(m, ReduceSum(q) axes=(0,)))`, where
    all of the second operand is known ahead of time, as a rule.
    """
    return apply(graph, _zero_point)


def _zero_point(edit: Edit, node: Node) -> bool:
    if node.op not in FLOAT_OPS or node.domain or len(node.inputs) < 3:
        return False
    zeros = _Zeros.of(edit, node)
    if zeros is None:
        return False
    (left, before), (right, behind) = _counted(edit, *zeros.left), _counted(edit, *zeros.right)
    if node.op == "ConvInteger" and behind:
        return False
    attrs = dict(node.attrs)
    if node.op == "ConvInteger" and before and any(attrs["pads"]):
        border = edit.array(before)
        if border is None or border.size != 1:
            return False
        left, attrs["pads"] = _padded(edit, left, int(border.item()), attrs["pads"]), (0,) * len(attrs["pads"])
    if not before and not behind:
        edit.emit(node.op, left, right, to=node.outputs[0], **attrs)
        return True
    total = edit.emit(node.op, left, right, **attrs)
    edit.emit("Sub", total, _surplus(edit, node.op, (left, before), (right, behind)), to=node.outputs[0])
    return True


def _counted(edit: Edit, values: str, zero: str) -> tuple[str, str]:
    """Known numbers counted from their zero points, if any would be bytes then, and what is left of the zero points.

    So what a model comes down to does not depend on its weights.
    """
    array, point = edit.array(values), edit.array(zero) if zero else None
    if array is None or point is None:
        return values, zero
    points, given = np.asarray(point, np.int32), np.iinfo(array.dtype.name)
    for dtype in (np.int8, np.uint8):
        if given.min - points.max() >= np.iinfo(dtype).min and given.max - points.min() <= np.iinfo(dtype).max:
            return edit.constant((np.asarray(array, np.int32) - points).astype(dtype)), ""
    return values, zero


def _padded(edit: Edit, x: str, value: int, pads: tuple[int, ...]) -> str:
    """An image with its zero point around it."""
    half = len(pads) // 2
    return edit.emit("Pad", x, pads=(0, 0, *pads[:half], 0, 0, *pads[half:]), mode="constant", value=value)


def _surplus(edit: Edit, op: str, left: tuple[str, str], right: tuple[str, str]) -> str:
    """What is too much in a product of bytes with zero points: m sum(q) + n sum(p) - m n times the terms of a sum."""
    (p, m), (q, n) = left, right
    terms: list[str] = []
    if m:
        if op == "ConvInteger":
            rank = edit.rank(q)
            sums = _for_channels(edit, _summed(edit, q, tuple(range(1, rank)), keepdims=0), rank)
        else:
            sums = _summed(edit, q, (edit.rank(q) - 2,), keepdims=1)
        terms.append(edit.emit("Mul", _wide(edit, m), sums))
    if n:
        terms.append(edit.emit("Mul", _summed(edit, p, (edit.rank(p) - 1,), keepdims=1), _wide(edit, n)))
    if not (m and n):
        return terms[0]
    depth = edit.constant(np.int32((edit.shape(p) or (0,))[-1]))
    twice = edit.emit("Mul", edit.emit("Mul", _wide(edit, m), depth), _wide(edit, n))
    return edit.emit("Sub", edit.emit("Add", *terms), twice)


def _wide(edit: Edit, name: str) -> str:
    return edit.cast(name, DType.I32.value)


def _summed(edit: Edit, name: str, axes: tuple[int, ...], keepdims: int) -> str:
    return edit.emit("ReduceSum", _wide(edit, name), axes=axes, keepdims=keepdims)


# Known numbers


def dequantised(graph: Graph) -> Graph:
    """Known bytes as the floats that they stand for, where nobody multiplies them as bytes.

    Before: `w = DequantizeLinear(q, s); y = MatMul(x, w)`. After: `y = MatMul(x, w)` with a constant `w`.
    """
    return apply(graph, lambda edit, node: node.op == "DequantizeLinear" and not node.domain and edit.folded(node))

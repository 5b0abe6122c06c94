"""Quantised models: bytes that stand for floats, by scales and zero points, and products of them.

Exporters write them down in three ways: floats that are quantised and dequantised again before a product, ops that do
that inside (`QLinearConv`), and products of bytes whose sums are cast to floats. Machines that multiply bytes get the
last (`integer_products`), or of those that they multiply fast (`dot_products`), all others products of floats
(`float_products`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tunewright.codegen.expr.dtype import BYTES, WORD_BYTES, DType
from tunewright.graph.ir import Graph, Node

from ..evaluation.onnx_form import element_type
from .edit import Edit, Result, Rule, apply, by_op, each
from .weights import matrix_products
from .zero_points import ZeroPoints, for_channels

FLOAT32 = DType.F32.value

INTEGER_OPS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}
"""Products of floats, and the same of bytes."""

FLOAT_OPS = {integer: name for name, integer in INTEGER_OPS.items()}


# Ops that take bytes and give bytes


def quantised_ops(graph: Graph) -> Graph:
    """Replace ops on quantised numbers by ops on floats between DequantizeLinear and QuantizeLinear.

    Before: `y = QLinearMatMul(a, s, m, b, t, n, u, o)`.
    After: `y = QuantizeLinear(MatMul(DequantizeLinear(a, s, m), DequantizeLinear(b, t, n)), u, o)`.
    Before: `y, s, z = DynamicQuantizeLinear(x)`.
    After: `s = Div(Sub(ReduceMax(x), ReduceMin(x)), 255)` and so on, and `y = QuantizeLinear(x, s, z)`.
    """
    return apply(graph, by_op(_DECOMPOSITIONS))


def _linear_product(edit: Edit, node: Node) -> Result:
    a, b, result = node.inputs[:3], node.inputs[3:6], node.inputs[6:]
    if min(edit.rank(a[0]), edit.rank(b[0])) < 2 or not _are_plain(edit, *a[1:], *b[1:], *result):
        return None
    product = edit.emit(
        "MatMul", _floats(edit, *a, axis=edit.rank(a[0]) - 2), _floats(edit, *b, axis=edit.rank(b[0]) - 1)
    )
    return edit.emit("QuantizeLinear", product, *(_scalar(edit, name) for name in result))


def _linear_convolution(edit: Edit, node: Node) -> Result:
    x, w, result, bias = node.inputs[:3], node.inputs[3:6], node.inputs[6:8], node.inputs[8:]
    if not _are_plain(edit, *x[1:], *w[1:], *result):
        return None
    operands = [_floats(edit, *x, axis=1), _floats(edit, *w, axis=0)]
    if any(bias):
        scale = edit.emit("Mul", _scalar(edit, x[1]), w[1])
        operands.append(edit.emit("Mul", edit.cast(bias[0], FLOAT32), scale))
    convolution = edit.emit("Conv", *operands, **node.attrs)
    return edit.emit("QuantizeLinear", convolution, *(_scalar(edit, name) for name in result))


def _are_plain(edit: Edit, *parameters: str) -> bool:
    """Whether scales and zero points are scalars or vectors."""
    return all(edit.rank(name) in (0, 1) for name in parameters)


def _floats(edit: Edit, x: str, scale: str, zero: str, *, axis: int) -> str:
    return edit.emit("DequantizeLinear", x, _scalar(edit, scale), _scalar(edit, zero), axis=axis)


def _scalar(edit: Edit, name: str) -> str:
    """A vector of one element as that element; others as they are."""
    return edit.emit("Reshape", name, shape=()) if name and edit.shape(name) == (1,) else name


def _dynamic(edit: Edit, node: Node) -> Result:
    (x,) = node.inputs
    if edit.rank(x) < 1:
        return None
    none = edit.scalar_like(x, 0)
    every: dict[str, Any] = {"axes": tuple(range(edit.rank(x))), "keepdims": 0}
    low = edit.emit("Min", edit.emit("ReduceMin", x, **every), none)
    high = edit.emit("Max", edit.emit("ReduceMax", x, **every), none)
    span = edit.emit("Sub", high, low)
    steps = edit.scalar_like(x, 255)
    span = edit.emit("Where", edit.emit("Equal", span, none), steps, span)  # zeros alone: a scale of 1, as elsewhere
    scale = edit.emit("Div", span, steps)
    zero = edit.emit("QuantizeLinear", edit.emit("Neg", low), scale, edit.constant(np.uint8(0)))
    return edit.emit("QuantizeLinear", x, scale, zero), scale, zero


_DECOMPOSITIONS: Mapping[str, Rule] = {
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
    return rewrite_products(graph, _integer_product)


def dot_products(graph: Graph) -> Graph:
    """As `integer_products`, by known weights: those that are no dots (`_is_dot`) become floats again, but unscaled.

    Before: `a = DequantizeLinear(p, s, m); b = DequantizeLinear(q, t); y = MatMul(a, b)`, q known.
    After: `c = MatMulInteger(p, q, m); y = Mul(Cast(c), Mul(s, t))`.
    """
    return rewrite_products(graph, partial(_integer_product, dots=True))


def rewrite_products(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to convolutions and products, each `Gemm` as one, where a model has dequantised numbers."""
    if not any(node.op == "DequantizeLinear" for node in graph.nodes):
        return graph
    return apply(matrix_products(graph), by_op(dict.fromkeys(INTEGER_OPS, rule)))


@dataclass(frozen=True, slots=True)
class _QuantisedTensor:
    """The bytes, scale and zero point that floats were dequantised from."""

    values: str
    scale: str
    zero: str  # "": 0
    axis: int | None  # along which scales differ

    @staticmethod
    def of(edit: Edit, name: str) -> _QuantisedTensor | None:
        """The quantised tensor of floats, perhaps with its axes in another order; None if there is none."""
        transpose = edit.producer(name, "Transpose")
        node = edit.producer(transpose.inputs[0] if transpose else name, "DequantizeLinear")
        if node is None or edit.rank(name) < 0:
            return None
        values, scale, zero = (*node.inputs, "")[:3]
        if DType.of(edit.types[values].dtype) not in BYTES or node.attrs.get("block_size", 0):
            return None
        axis = None if prod(edit.shape(scale) or ()) == 1 else node.attrs.get("axis", 1) % edit.rank(name)
        if transpose:
            values = _transpose(edit, values, transpose.attrs["perm"])
            axis = axis if axis is None else transpose.attrs["perm"].index(axis)
        return _QuantisedTensor(values, _scalar(edit, scale), _scalar(edit, zero), axis)

    def is_by_columns_of(self, node: Node) -> bool:
        """Whether, as the second operand of a product, it has a scale for all or one for each column of the result."""
        return self.axis in (None, 0 if node.op == "Conv" else 1)


def _transpose(edit: Edit, values: str, perm: tuple[int, ...]) -> str:
    known = edit.array(values)
    return edit.emit("Transpose", values, perm=perm) if known is None else edit.constant(known.transpose(perm))


def _integer_product(edit: Edit, node: Node, dots: bool = False) -> Result:
    if edit.types[node.outputs[0]].dtype != FLOAT32:
        return None
    left, right = (_QuantisedTensor.of(edit, name) for name in node.inputs[:2])
    if left is None or right is None or left.axis is not None:
        return None
    rank = edit.rank(right.values)
    is_conv = node.op == "Conv"
    if not right.is_by_columns_of(node) or (right.axis is not None and not is_conv and rank != 2):
        return None
    if rank < 2 or edit.rank(left.values) < 2:
        return None
    zeros = (left.zero, right.zero)[: 2 if right.zero else 1 if left.zero else 0]
    integer = Node(INTEGER_OPS[node.op], (left.values, right.values, *zeros), node.outputs, node.attrs)
    whole = integer
    if dots and not _is_dot(edit, integer):
        if edit.array(right.values) is None or any(edit.array(zero) is None for zero in zeros if zero):
            return None
        whole = _whole_words(edit, integer) or integer
    total = edit.emit(whole.op, *whole.inputs, **node.attrs)
    scale = edit.emit("Mul", left.scale, right.scale)
    if is_conv and right.axis is not None:
        scale = for_channels(edit, scale, rank)
    result = edit.emit("Mul", edit.cast(total, FLOAT32), scale)
    if len(node.inputs) > 2 and node.inputs[2]:
        result = edit.emit("Add", result, for_channels(edit, node.inputs[2], rank))
    return result


LEAST_COLUMNS = 16
"""Columns of weights below which most lanes of a vector would be idle."""


def becomes_dot(edit: Edit, node: Node) -> bool:
    """Whether a product of floats by quantised weights becomes a dot once its other operand is quantised."""
    right = _QuantisedTensor.of(edit, node.inputs[1])
    if right is None or edit.array(right.values) is None or (right.zero and edit.array(right.zero) is None):
        return False
    return right.is_by_columns_of(node) and _has_words(edit, INTEGER_OPS[node.op], right.values, node.attrs)


def _is_dot(edit: Edit, node: Node) -> bool:
    """Whether a product of bytes is one of unsigned by known ones, with whole groups of four in its sums.

    Known ones that are unsigned become signed: see `signed_weights`.
    """
    left, right, zero, zero_behind = (*node.inputs, "", "")[:4]
    shape = edit.shape(right)
    if edit.array(right) is None or edit.types[left].dtype != DType.U8.value or shape is None or edit.rank(left) < 2:
        return False
    if (zero and prod(edit.shape(zero) or ()) != 1) or (zero_behind and edit.array(zero_behind) is None):
        return False
    return _has_words(edit, node.op, right, node.attrs)


def _has_words(edit: Edit, name: str, weights: str, attrs: Mapping[str, Any]) -> bool:
    """Whether a product of bytes has whole groups of four in its sums, and columns enough."""
    shape = edit.shape(weights) or ()
    if name == "MatMulInteger":
        return len(shape) == 2 and not shape[0] % WORD_BYTES and shape[1] >= LEAST_COLUMNS
    return attrs["group"] == 1 and not shape[1] % WORD_BYTES and shape[0] >= LEAST_COLUMNS


def _whole_words(edit: Edit, node: Node) -> Node | None:
    """A convolution with further channels, such as a fourth beside three colours, by which it becomes a dot.

    Their weights are zero points, so they count for nothing. None where it does not become one, or if more of them than
    of others would be multiplied.
    """
    left, right, *zeros = node.inputs
    weights, points = edit.array(right), edit.array(zeros[1]) if len(zeros) > 1 else np.zeros((), np.int8)
    if node.op != "ConvInteger" or node.attrs["group"] != 1 or weights is None or points is None:
        return None
    columns, channels, *kernel = weights.shape
    more = -channels % WORD_BYTES
    if more > channels or points.size not in (1, columns):
        return None
    points = points.reshape(-1, *(1,) * (weights.ndim - 1)).astype(weights.dtype)
    nothing = np.broadcast_to(points, (columns, more, *kernel))
    filled = edit.constant(np.concatenate([weights, nothing], axis=1))
    if not _is_dot(edit, replace(node, inputs=(left, filled, *zeros))):
        return None
    pads = (*(0,) * weights.ndim, 0, more, *(0,) * len(kernel))
    padded = edit.emit("Pad", left, pads=pads, mode="constant", value=0)
    return replace(node, inputs=(padded, filled, *zeros))


@each(*FLOAT_OPS)
def signed_weights(edit: Edit, node: Node) -> Result:
    """Known unsigned bytes less 128, as signed ones, where a processor multiplies such.

    Before: `y = MatMulInteger(p, q, m, n)`, p and q unsigned. After: `y = MatMulInteger(p, q - 128, m, n - 128)`.
    """
    if not _is_dot(edit, node) or edit.types[node.inputs[1]].dtype != DType.U8.value:
        return None
    left, right, zero, behind = (*node.inputs, "", "")[:4]
    points = edit.array(behind) if behind else np.uint8(0)
    weights, point = (
        edit.constant((np.asarray(known, np.int32) - 128).astype(np.int8)) for known in (edit.array(right), points)
    )
    return edit.emit(node.op, left, weights, zero or edit.constant(np.uint8(0)), point, **node.attrs)


# Products of floats instead of bytes


@each("Cast")
def biases(edit: Edit, node: Node) -> Result:
    """Add to the sums of a product of bytes as floats.

    Before: `c = Add(MatMulInteger(p, q), b); y = Cast(c) to=float`.
    After: `y = Add(Cast(MatMulInteger(p, q)), Cast(b))`.
    """
    total = edit.producer(node.inputs[0], "Add")
    if total is None or node.attrs["to"] != element_type(FLOAT32) or not edit.has_one_reader(node.inputs[0]):
        return None
    if not any(edit.producer(name, *FLOAT_OPS) for name in total.inputs):
        return None
    return edit.emit("Add", *(edit.cast(name, FLOAT32) for name in total.inputs))


def float_products(graph: Graph) -> Graph:
    """Products of bytes that are cast to floats as products of floats.

    Before: `c = MatMulInteger(p, q, m); y = Cast(c) to=float`. After: `y = MatMul(Sub(Cast(p), Cast(m)), Cast(q))`.
    """
    return apply(graph, by_op({"Cast": _float_product}))


@each("Cast")
def other_float_products(edit: Edit, node: Node) -> Result:
    """As `float_products`, of those that are no dots.

    Before: `c = MatMulInteger(p, q); y = Cast(c) to=float`, q not known. After: `y = MatMul(Cast(p), Cast(q))`.
    """
    inner = edit.producer(node.inputs[0], *FLOAT_OPS)
    return None if inner is None or _is_dot(edit, inner) else _float_product(edit, node)


@each("Cast")
def residual_zero_points(edit: Edit, node: Node) -> Result:
    """As `float_products`, for convolutions whose weights have zero points that `zero_points` leaves.

    Before: `c = ConvInteger(p, q, m, n); y = Cast(c) to=float`. After: `y = Conv(Sub(Cast(p), Cast(m)), w)`.
    """
    inner = edit.producer(node.inputs[0], "ConvInteger")
    return _float_product(edit, node) if inner and len(inner.inputs) > 2 else None


def _float_product(edit: Edit, node: Node) -> Result:
    if node.attrs["to"] != element_type(FLOAT32):
        return None
    inner = edit.producer(node.inputs[0], *FLOAT_OPS)
    if inner is None or not edit.has_one_reader(node.inputs[0]):
        return None
    product = ZeroPoints.of(edit, inner)
    if product is None:
        return None
    operands = [_centre(edit, *operand) for operand in (product.left, product.right)]
    return edit.emit(FLOAT_OPS[inner.op], *operands, **inner.attrs)


def _centre(edit: Edit, values: str, zero: str) -> str:
    """Numbers minus their zero points, as floats."""
    floats = edit.cast(values, FLOAT32)
    return edit.emit("Sub", floats, edit.cast(zero, FLOAT32)) if zero else floats


# Known numbers


@each("DequantizeLinear")
def constant_bytes(edit: Edit, node: Node) -> Result:
    """Replace known bytes by the floats that they stand for, where no product takes the bytes.

    Before: `w = DequantizeLinear(q, s); y = MatMul(x, w)`. After: `y = MatMul(x, w)` with a constant `w`.
    """
    return node.outputs if edit.fold(node) else None

"""Scales of quantised results in the scales of what they are computed from.

What was dequantised, or scaled after a product of bytes, is multiplied by a constant and, once it has been added to
others of its kind, divided by the constant that it is quantised by. One constant does both, and that divided leaves
the code: so layers that differ in their scales alone become the same task.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tunewright.codegen.expr.dtype import BYTES
from tunewright.codegen.expr.quantise import SCALES

from ..ir import Array, Node
from .edit import Edit, Result, each
from .quantisation import FLOAT32, FLOAT_OPS

_MOVING = """
Concat DepthToSpace Expand Flatten Gather Identity MaxPool Reshape Slice SpaceToDepth Split Squeeze Tile Transpose
Unsqueeze
"""
MOVING_OPS = frozenset(_MOVING.split())
"""Ops that give elements of their data, of bytes too: see `data_operands`."""

LEVEL_OPS = MOVING_OPS | {
    "Add", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LeakyRelu", "ReduceMean", "Relu", "Sub",
}  # fmt: skip
"""Ops that give a positive factor's multiple where all of their data is its multiple."""

BYTE_TYPES = frozenset(dtype.value for dtype in BYTES)
"""As types of tensors have them."""


def data_operands(node: Node) -> tuple[str, ...]:
    """The operands of a node of these ops that are data: its first ones."""
    return node.inputs if node.op in ("Add", "Concat", "Sub") else node.inputs[:1]


@each("QuantizeLinear")
def output_scales(edit: Edit, node: Node) -> Result:
    """Divide what is quantised by its scale ahead of time, in the constants that it was scaled by.

    Before: `y = QuantizeLinear(Add(Mul(Cast(c), s), b), u, o)`, c sums of products of bytes, s, b and u known.
    After: `y = QuantizeLinear(Add(Mul(Cast(c), s / u), b / u), 1, o)`.
    """
    x, scale, *zero = node.inputs
    known = edit.array(scale)
    if known is None or known.size != 1 or edit.types[x].dtype != FLOAT32 or node.attrs.get("block_size", 0):
        return None
    step = float(known.flat[0])
    if step == 1 or not SCALES[0] <= step <= SCALES[1]:
        return None
    steps = _divided(edit, x, step)
    if steps is None:
        return None
    one = edit.constant(np.ones_like(known))
    return Node("QuantizeLinear", (steps, one, *zero), node.outputs, node.attrs, version=node.version)


def _divided(edit: Edit, name: str, step: float) -> str | None:
    """A tensor divided by a number, where constants take the division; None where they can't."""
    known = edit.array(name)
    if known is not None:
        return _quotient(edit, known, step)
    node = edit.producers.get(name)
    if node is None or node.domain or len(node.outputs) != 1:
        return None
    if node.op == "DequantizeLinear":
        return _rescaled(edit, node, 1, step)
    if not edit.has_one_reader(name):
        return None
    if node.op == "Mul":
        sums, scale = node.inputs if node.inputs[1] in edit.constants else node.inputs[::-1]
        return _rescaled(edit, node, node.inputs.index(scale), step) if _is_scaled_sum(edit, sums) else None
    if node.op not in LEVEL_OPS:
        return None
    divided = [_divided(edit, operand, step) for operand in data_operands(node)]
    operands = tuple(operand for operand in divided if operand is not None)
    if len(operands) < len(divided) or all(operand in edit.constants for operand in operands):
        return None
    return _repeat(edit, node, (*operands, *node.inputs[len(divided) :]))


def _repeat(edit: Edit, node: Node, inputs: tuple[str, ...], dtype: str = FLOAT32) -> str:
    """The result of the node on other operands, whose elements are of this type."""
    result = edit.new_tensor(replace(edit.types[node.outputs[0]], dtype=dtype))
    edit.add(replace(node, inputs=inputs, outputs=(result,)))
    return result


def _is_scaled_sum(edit: Edit, name: str) -> bool:
    """Whether floats are sums of products of bytes."""
    cast = edit.producer(name, "Cast")
    return cast is not None and edit.producer(cast.inputs[0], *FLOAT_OPS) is not None


def _rescaled(edit: Edit, node: Node, place: int, step: float) -> str | None:
    """A node whose operand at a place, a known scale, is divided by a number."""
    known = edit.array(node.inputs[place])
    scale = None if known is None else _quotient(edit, known, step)
    if scale is None:
        return None
    return _repeat(edit, node, (*node.inputs[:place], scale, *node.inputs[place + 1 :]))


def _quotient(edit: Edit, array: Array, step: float) -> str | None:
    """A constant divided by a number. None where a quotient is infinite, or loses digits that the dividend had."""
    exact = np.asarray(array, np.float64) / step
    with np.errstate(over="ignore"):
        quotient = exact.astype(array.dtype)
    least = float(np.finfo(np.float32).smallest_normal)
    if not np.all(np.isfinite(quotient)) or np.any((np.abs(exact) < least) & (np.abs(array) >= least)):
        return None
    return edit.constant(quotient)


@each("QuantizeLinear")
def moved_bytes(edit: Edit, node: Node) -> Result:
    """Move bytes as they are, where they would be quantised again as they were.

    Before: `y = QuantizeLinear(MaxPool(DequantizeLinear(p, s, m)), s, m)`. After: `y = MaxPool(p)`.
    """
    return _undequantised(edit, node.inputs[0], node)


def _undequantised(edit: Edit, name: str, node: Node) -> str | None:
    """The bytes that a tensor's floats stand for, where they are those that `node` quantises them to; else None."""
    inner = edit.producers.get(name)
    if inner is None or inner.domain or len(inner.outputs) != 1:
        return None
    if inner.op == "DequantizeLinear":
        return inner.inputs[0] if _has_same_steps(edit, inner, node) else None
    if inner.op not in MOVING_OPS or not edit.has_one_reader(name):
        return None
    found = [_undequantised(edit, operand, node) for operand in data_operands(inner)]
    operands = tuple(operand for operand in found if operand is not None)
    if len(operands) < len(found):
        return None
    return _repeat(edit, inner, (*operands, *inner.inputs[len(found) :]), edit.types[node.outputs[0]].dtype)


def _has_same_steps(edit: Edit, left: Node, right: Node) -> bool:
    """Whether two nodes of bytes have one positive scale for all, the same, and the same zero point."""
    (scale, zero), (other, other_zero) = ((*node.inputs[1:], "")[:2] for node in (left, right))
    known, other_known = edit.array(scale), edit.array(other)
    if known is None or other_known is None or known.size != 1 or other_known.size != 1:
        return False
    dtypes = {edit.types[name].dtype for name in (left.inputs[0], right.outputs[0])}
    if len(dtypes) > 1 or not dtypes <= BYTE_TYPES or not 0 < known.item() == other_known.item() < np.inf:
        return False
    point, other_point = (edit.array(name) if name else np.zeros((), np.uint8) for name in (zero, other_zero))
    return point is not None and other_point is not None and np.array_equal(point.ravel(), other_point.ravel())

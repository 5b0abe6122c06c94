"""Products by known weights in bfloat16, where a user lets operands be rounded: see `numerics.Precision`."""

from __future__ import annotations

from tunewright.codegen.expr.dtype import PAIR, DType
from tunewright.graph.ir import Array, Node

from ..evaluation.onnx_form import NORMAL_VERSION, is_channels_last
from ..narrow_types import bf16
from .edit import Edit, Result, each
from .quantisation import LEAST_COLUMNS

NARROW_OPS = {"Conv": "ConvNarrow", "MatMul": "MatMulNarrow"}
"""Products of floats, and the same of narrow ones whose sums are float32."""


@each(*NARROW_OPS)
def bf16_products(edit: Edit, node: Node) -> Result:
    """Products of float32 by known weights round both operands to bfloat16, but where x is bytes. Sums stay float32.

    Before: `y = MatMul(x, w)`. After: `y = MatMulNarrow(Cast(x), v)`, Cast(x) and v bfloat16, y float32.
    """
    x, weight, *bias = node.inputs
    known = edit.array(weight)
    if known is None or edit.array(x) is not None or {edit.types[x].dtype, known.dtype.name} != {DType.F32.value}:
        return None
    if edit.rank(x) < 2 or not _is_of_pairs(node, known) or _are_bytes(edit, x):
        return None
    rounded = bf16(known)
    if rounded is None:
        return None
    operands = _as_bf16(edit, x), edit.constant(rounded), *bias
    return Node(NARROW_OPS[node.op], operands, node.outputs, node.attrs, version=NORMAL_VERSION)


def _as_bf16(edit: Edit, x: str) -> str:
    """A tensor in bfloat16: what it was cast from, where that is such."""
    cast = edit.producer(x, "Cast")
    is_such = cast is not None and edit.types[cast.inputs[0]].dtype == DType.BF16.value
    return cast.inputs[0] if cast and is_such else edit.cast(x, DType.BF16.value)


def _are_bytes(edit: Edit, x: str) -> bool:
    """Whether a tensor is bytes as such, perhaps less their zero point: products of these are exact."""
    shift = edit.producer(x, "Add")
    if shift and edit.array(shift.inputs[1]) is None:
        return False
    cast = edit.producer(shift.inputs[0] if shift else x, "Cast")
    return cast is not None and edit.types[cast.inputs[0]].dtype in (DType.I8.value, DType.U8.value)


def _is_of_pairs(node: Node, weight: Array) -> bool:
    """Whether sums are of whole pairs, and there are columns enough."""
    if node.op == "MatMul":
        return weight.ndim == 2 and weight.shape[0] % PAIR == 0 and weight.shape[1] >= LEAST_COLUMNS
    *_, depth, columns = weight.shape
    return is_channels_last(node) and node.attrs["group"] == 1 and depth % PAIR == 0 and columns >= LEAST_COLUMNS

"""Activations rounded to bytes where they meet quantised weights, if a user lets them: see `numerics.Precision`."""

from __future__ import annotations

from tunewright.codegen.expr.dtype import BYTES, DType

from ..evaluation.onnx_form import NORMAL_VERSION
from ..ir import Node, TensorType
from .edit import Edit, Result, each
from .weight_blocks import WORDS, WeightBlocks


@each("Conv", "MatMul")
def byte_activations(edit: Edit, node: Node) -> Result:
    """What a product multiplies by quantised weights is quantised as well: by block where they are, else by tensor.

    Before: `y = MatMul(x, DequantizeLinear(q, s))`, q known.
    After: `p, t, m = DynamicQuantizeLinear(x); y = MatMul(DequantizeLinear(p, t, m), DequantizeLinear(q, s))`.
    Before: `y = MatMul(x, w)`, w of blocks. After: `y = MatMul(RoundBlocks(x), w)`.
    """
    x, weight, *others = node.inputs
    if edit.types[x].dtype != DType.F32.value or edit.array(x) is not None or edit.rank(x) < 2:
        return None
    if edit.producer(x, "DequantizeLinear", "RoundBlocks"):
        return None
    if _is_quantised(edit, weight):
        rounded = _quantise(edit, x)
    else:
        rounded = _round_blocks(edit, x, weight) if node.op == "MatMul" else ""
    return edit.emit(node.op, rounded, weight, *others, **node.attrs) if rounded else None


def _round_blocks(edit: Edit, x: str, weight: str) -> str:
    """The activations rounded in the blocks of the weight; "" where it has none, or these are not of whole words."""
    blocks = WeightBlocks.of(edit, weight)
    if blocks is None or blocks.numbers.shape[-1] % WORDS:
        return ""
    return edit.emit("RoundBlocks", x, size=blocks.numbers.shape[-1])


def _is_quantised(edit: Edit, weight: str) -> bool:
    """Whether a weight is known bytes with a scale for all or for each column, perhaps in another order of axes."""
    transpose = edit.producer(weight, "Transpose")
    node = edit.producer(transpose.inputs[0] if transpose else weight, "DequantizeLinear")
    if node is None or node.attrs.get("block_size", 0):
        return False
    known = edit.array(node.inputs[0])
    return known is not None and DType.of(known.dtype.name) in BYTES


def _quantise(edit: Edit, x: str) -> str:
    kinds = TensorType("uint8", edit.shape(x)), TensorType(DType.F32.value, ()), TensorType("uint8", ())
    results = tuple(map(edit.new_tensor, kinds))
    edit.add(Node("DynamicQuantizeLinear", (x,), results, version=NORMAL_VERSION))
    return edit.emit("DequantizeLinear", *results)

"""Activations rounded to bytes where they meet quantised weights, if a user lets them: see `numerics.Precision`."""

from __future__ import annotations

from tunewright.codegen.expr.dtype import DType

from ..contrib.blocks import WORD_NUMBERS
from ..evaluation.onnx_form import NORMAL_VERSION
from ..ir import Graph, Node, TensorType
from .block_matmul import is_packed
from .edit import Edit, Result
from .quantisation import becomes_dot, rewrite_products
from .weight_blocks import WeightBlocks


def byte_activations(graph: Graph) -> Graph:
    """What a product multiplies by quantised weights is quantised as well: by block where they are, else by tensor.

    Before: `y = MatMul(x, DequantizeLinear(q, s))`, q known.
    After: `p, t, m = DynamicQuantizeLinear(x); y = MatMul(DequantizeLinear(p, t, m), DequantizeLinear(q, s))`.
    Before: `y = MatMul(x, w)`, w of blocks. After: `y = MatMul(RoundBlocks(x), w)`.
    """
    return rewrite_products(graph, _byte_activation)


def _byte_activation(edit: Edit, node: Node) -> Result:
    x, weight, *others = node.inputs
    if edit.types[x].dtype != DType.F32.value or edit.array(x) is not None or edit.rank(x) < 2:
        return None
    if edit.producer(x, "DequantizeLinear", "RoundBlocks"):
        return None
    if becomes_dot(edit, node):
        rounded = _quantise(edit, x)
    else:
        rounded = _round_blocks(edit, x, weight) if node.op == "MatMul" else ""
    return edit.emit(node.op, rounded, weight, *others, **node.attrs) if rounded else None


def _round_blocks(edit: Edit, x: str, weight: str) -> str:
    """The activations rounded in the blocks of a weight that is packed; "" where these are not of whole words."""
    blocks = WeightBlocks.of(edit, weight)
    if blocks is None or not is_packed(blocks) or blocks.size % WORD_NUMBERS:
        return ""
    return edit.emit("RoundBlocks", x, size=blocks.size)


def _quantise(edit: Edit, x: str) -> str:
    kinds = TensorType("uint8", edit.shape(x)), TensorType(DType.F32.value, ()), TensorType("uint8", ())
    results = tuple(map(edit.new_tensor, kinds))
    edit.add(Node("DynamicQuantizeLinear", (x,), results, version=NORMAL_VERSION))
    return edit.emit("DequantizeLinear", *results)

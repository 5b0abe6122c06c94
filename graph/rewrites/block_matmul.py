"""Products with weights of four or eight bits, of which every block has a scale."""

from __future__ import annotations

from functools import partial
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.ir import Array, Graph, Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION
from .edit import Edit, Result, each
from .quantisation import LEAST_COLUMNS, rewrite_products
from .weight_blocks import MOST_SIZE, WeightBlocks

MOST_ROWS = 16
"""Rows beyond which arithmetic takes longer than reading weights, and products of floats are less of it."""


def block_matmuls(graph: Graph) -> Graph:
    """A product of few rows with known weights of four or eight bits reads these as they are.

    Before: `w = Transpose(Reshape(DequantizeLinear(q, s, z) axis=0, (N, K))); y = MatMul(x, w)`, where each row of q
    is a block of K. After: `y = BlockMatMul(x, q, s, z)` with q [N, blocks, size], s and z [N, blocks], without z where
    all zero points are one, as where a model has none.
    """
    return rewrite_products(graph, partial(_block_matmul, is_rounded=False))


@each("MatMul")
def byte_block_matmuls(edit: Edit, node: Node) -> Result:
    """As `block_matmuls`, of rounded activations, on processors that multiply bytes: of as many rows as there are.

    Before: `y = MatMul(RoundBlocks(x), w)`. After: `b, t = BlockQuantize(x); y = BlockMatMul(b, q, s, z, t)`.
    """
    return _block_matmul(edit, node, is_rounded=True) if edit.producer(node.inputs[0], "RoundBlocks") else None


def _block_matmul(edit: Edit, node: Node, *, is_rounded: bool) -> Result:
    if node.op != "MatMul":
        return None
    x, weight = node.inputs
    shape, kind = edit.shape(x), edit.types[node.outputs[0]]
    blocks = WeightBlocks.of(edit, weight)
    if blocks is None or not shape or kind.dtype != DType.F32.value:
        return None
    if not is_rounded and prod(shape[:-1]) > MOST_ROWS:
        return None
    if not edit.may_round(node.outputs[0]):
        return None
    if not is_packed(blocks):
        return None
    output = edit.new_tensor(TensorType(kind.dtype, kind.shape))
    values, x_scales = x, ""
    if is_rounded:
        rounding = edit.producer(x, "RoundBlocks")
        assert rounding is not None
        values, x_scales = _rounded(edit, rounding)
    zero, attrs = _zero_point(edit, blocks.zeros)
    optional = (zero, x_scales) if x_scales else (zero,) if zero else ()
    operands = (values, edit.constant(blocks.numbers), edit.constant(blocks.scales), *optional)
    attrs["bits"] = blocks.bits
    edit.add(Node("BlockMatMul", operands, (output,), attrs, version=NORMAL_VERSION))
    return output


def is_packed(blocks: WeightBlocks) -> bool:
    """Whether there are kernels for a weight of such blocks: of several, neither odd nor large, of columns enough."""
    columns, count, size = blocks.numbers.shape
    return columns >= LEAST_COLUMNS and count > 1 and not size % 2 and size <= MOST_SIZE


def _zero_point(edit: Edit, zeros: Array) -> tuple[str, dict[str, int]]:
    """Zero points as a tensor, or as an attribute where all are one number, but for 0: nothing is taken away then."""
    if zeros.min() == zeros.max() > 0:
        return "", {"zero": int(zeros.flat[0])}
    return edit.constant(zeros), {}


def _rounded(edit: Edit, node: Node) -> tuple[str, str]:
    """Activations as signed bytes, and the scale of each block."""
    (x,), size = node.inputs, node.attrs["size"]
    shape = edit.shape(x) or ()
    numbers = edit.new_tensor(TensorType("int8", shape))
    scales = edit.new_tensor(TensorType("float32", (*shape[:-1], shape[-1] // size)))
    edit.add(Node("BlockQuantize", (x,), (numbers, scales), {"size": size}, version=NORMAL_VERSION))
    return numbers, scales


@each("RoundBlocks")
def rounded_activations(edit: Edit, node: Node) -> Result:
    """Activations are rounded to bytes in blocks, and are floats all the same.

    Before: `y = RoundBlocks(x)`. After: `b, t = BlockQuantize(x); y = Reshape(Reshape(Cast(b)) * Reshape(t))`.
    """
    shape, size = edit.shape(node.inputs[0]), node.attrs["size"]
    if shape is None:
        return None
    numbers, scales = _rounded(edit, node)
    blocks = (*shape[:-1], shape[-1] // size)
    wide = edit.emit("Reshape", edit.cast(numbers, "float32"), shape=(*blocks, size))
    return edit.emit("Reshape", edit.emit("Mul", wide, edit.emit("Reshape", scales, shape=(*blocks, 1))), shape=shape)


@each("RoundBlocks")
def exact_activations(edit: Edit, node: Node) -> Result:
    """On a GPU activations are not rounded.

    Before: `y = RoundBlocks(x)`. After: x.
    """
    return node.inputs[0]

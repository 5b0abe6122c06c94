"""Products with weights of four or eight bits, of which every block has a scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tunewright.codegen.expr.dtype import NARROW, DType
from tunewright.graph.ir import Array, Graph, Node, TensorType

from ..block_product import MOST_GPU_ROWS, MOST_ROWS
from ..contrib.blocks import WORD_NUMBERS
from ..evaluation.onnx_form import NORMAL_VERSION
from ..narrow_types import narrow_type
from .edit import Edit, Result, each
from .quantisation import LEAST_COLUMNS, rewrite_products
from .weight_blocks import MOST_SIZE, WeightBlocks

GPU_TYPES = frozenset(dtype.value for dtype in (DType.F32, *NARROW))
"""Types of activations that GPUs multiply by such weights."""


def block_matmuls(graph: Graph) -> Graph:
    """A product of few rows with known weights of four or eight bits reads these as they are.

    Before: `w = Transpose(Reshape(DequantizeLinear(q, s, z) axis=0, (N, K))); y = MatMul(x, w)`, where each row of q
    is a block of K. After: `y = BlockMatMul(x, q, s, z)` with q [N, blocks, size], s and z [N, blocks], without z where
    all zero points are one, as where a model has none.
    """
    return rewrite_products(graph, partial(_block_matmul, is_rounded=False))


def gpu_block_matmuls(graph: Graph) -> Graph:
    """As `block_matmuls`, on GPUs: in narrow floats too, and with narrow scales where these have the same values.

    Before: `y = MatMul(x, w)`, x and w float16. After: `y = BlockMatMul(x, q, s, z)`, x and s float16.
    """
    return rewrite_products(graph, _gpu_block_matmul)


@each("MatMul")
def byte_block_matmuls(edit: Edit, node: Node) -> Result:
    """As `block_matmuls`, of rounded activations, on processors that multiply bytes: of as many rows as there are.

    Before: `y = MatMul(RoundBlocks(x), w)`. After: `b, t = BlockQuantize(x); y = BlockMatMul(b, q, s, z, t)`.
    """
    return _block_matmul(edit, node, is_rounded=True) if edit.producer(node.inputs[0], "RoundBlocks") else None


def _block_matmul(edit: Edit, node: Node, *, is_rounded: bool) -> Result:
    if node.op != "MatMul" or edit.types[node.outputs[0]].dtype != DType.F32.value:
        return None
    blocks = _packed_blocks(edit, node, None if is_rounded else MOST_ROWS)
    if blocks is None:
        return None
    values, x_scales = node.inputs[0], ""
    if is_rounded:
        rounding = edit.producer(values, "RoundBlocks")
        assert rounding is not None
        values, x_scales = _rounded(edit, rounding)
    return _product(edit, node, blocks, values, x_scales)


def _gpu_block_matmul(edit: Edit, node: Node) -> Result:
    if node.op != "MatMul" or edit.types[node.outputs[0]].dtype not in GPU_TYPES:
        return None
    blocks = _packed_blocks(edit, node, MOST_GPU_ROWS)
    if blocks is None or blocks.size % WORD_NUMBERS:
        return None
    dtype = narrow_type(blocks.scales)
    blocks = blocks if dtype is None else replace(blocks, scales=blocks.scales.astype(dtype))
    return _product(edit, node, blocks, node.inputs[0])


def _packed_blocks(edit: Edit, node: Node, most_rows: int | None) -> WeightBlocks | None:
    """The weight of a product of so many rows at most, if there are kernels that read it as it is."""
    x, weight = node.inputs
    shape = edit.shape(x)
    if not shape or 0 in shape or (most_rows is not None and prod(shape[:-1]) > most_rows):
        return None
    blocks = WeightBlocks.of(edit, weight)
    return blocks if blocks is not None and edit.may_round(node.outputs[0]) and is_packed(blocks) else None


def _product(edit: Edit, node: Node, blocks: WeightBlocks, values: str, x_scales: str = "") -> str:
    """The result of a node, by weights as they are and activations, rounded where these have scales."""
    output, (zero, attrs) = edit.new_tensor(edit.types[node.outputs[0]]), _zero_point(edit, blocks.zeros)
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

"""Products of few rows with weights of four or eight bits, of which every block has a scale."""

from __future__ import annotations

from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.ir import Array, Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION
from .edit import Edit, Result, each

MOST_ROWS = 16
"""Rows beyond which the weights' way from memory is short beside the arithmetic, which is less for floats."""

LEAST_COLUMNS = 16
"""Columns below which most lanes of a vector would be idle."""

MOST_SIZE = 256
"""Numbers of a block beyond which it is no block of MatMulNBits."""


@each("MatMul")
def block_matmuls(edit: Edit, node: Node) -> Result:
    """A product of few rows with known weights of four or eight bits reads these as they are.

    Before: `w = Transpose(Reshape(DequantizeLinear(q, s, z) axis=0, (N, K))); y = MatMul(x, w)`, where each row of q
    is a block of K. After: `y = BlockMatMul(x, q, s, z)` with q [N, blocks, size], s and z [N, blocks], without z where
    all zero points are one, as where a model has none.
    """
    return _block_matmul(edit, node, is_rounded=False)


@each("MatMul")
def byte_block_matmuls(edit: Edit, node: Node) -> Result:
    """As `block_matmuls`, of rounded activations, on processors that multiply bytes.

    Before: `y = MatMul(RoundBlocks(x), w)`. After: `b, t = BlockQuantize(x); y = BlockMatMul(b, q, s, z, t)`.
    """
    return _block_matmul(edit, node, is_rounded=True) if edit.producer(node.inputs[0], "RoundBlocks") else None


def _block_matmul(edit: Edit, node: Node, *, is_rounded: bool) -> str | None:
    x, weight = node.inputs
    shape, kind = edit.shape(x), edit.types[node.outputs[0]]
    blocks = weight_blocks(edit, weight)
    if blocks is None or not shape or kind.dtype != DType.F32.value or prod(shape[:-1]) > MOST_ROWS:
        return None
    if not edit.may_round(node.outputs[0]):
        return None
    numbers, scales, zeros = blocks
    columns, count, size = numbers.shape
    if columns < LEAST_COLUMNS or count < 2 or size % 2 or size > MOST_SIZE:
        return None
    output = edit.new_tensor(TensorType(kind.dtype, kind.shape))
    values, x_scales = x, ""
    if is_rounded:
        rounding = edit.producer(x, "RoundBlocks")
        assert rounding is not None
        values, x_scales = _rounded(edit, rounding)
    zero, attrs = _zero_point(edit, zeros)
    optional = (zero, x_scales) if x_scales else (zero,) if zero else ()
    operands = (values, edit.constant(numbers), edit.constant(scales), *optional)
    attrs["bits"] = 4 if numbers.max() < 1 << 4 else 8
    edit.add(Node("BlockMatMul", operands, (output,), attrs, version=NORMAL_VERSION))
    return output


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


def weight_blocks(edit: Edit, weight: str) -> tuple[Array, Array, Array] | None:
    """Numbers [N, blocks, size], scales and zero points [N, blocks] of a transposed weight; None if it is none."""
    transpose = edit.producer(weight, "Transpose")
    reshape = transpose and edit.producer(transpose.inputs[0], "Reshape")
    node = reshape and edit.producer(reshape.inputs[0], "DequantizeLinear")
    if transpose is None or reshape is None or node is None or len(edit.shape(weight) or ()) != 2:
        return None
    if len(node.inputs) != 3 or node.attrs.get("block_size") or node.attrs.get("axis") != 0:
        return None
    numbers, scales, zeros = (edit.array(name) for name in node.inputs)
    if numbers is None or scales is None or zeros is None:
        return None
    if scales.dtype != np.float32 or numbers.dtype != np.uint8:
        return None
    depth, columns = edit.shape(weight) or (0, 0)
    if numbers.ndim != 2 or scales.shape != (len(numbers),) or depth % numbers.shape[1]:
        return None
    blocks = depth // numbers.shape[1]
    return (
        numbers.reshape(columns, blocks, -1),
        scales.reshape(columns, blocks),
        zeros.reshape(columns, blocks),
    )

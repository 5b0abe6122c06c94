"""Known weights of few bits, of which every block along the reduction has a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tunewright.graph.ir import Array, Node

from ..narrow_types import NARROW
from .edit import Edit

MOST_SIZE = 256
"""Numbers of a block beyond which it is no block of MatMulNBits."""

NIBBLE = 1 << 4
"""How many numbers there are of four bits."""


@dataclass(frozen=True, slots=True)
class WeightBlocks:
    """The second operand of a product, [depth, columns], as unsigned numbers less zero points, times scales."""

    numbers: Array  # [columns, blocks, size], uint8
    scales: Array  # [columns, blocks], floats of any type that is computed in float32
    zeros: Array  # [columns, blocks], uint8

    @staticmethod
    def of(edit: Edit, weight: str) -> WeightBlocks | None:
        """Those of a weight that is dequantised in blocks: of rows, as MatMulNBits is imported, or along the reduction.

        Signed numbers of four bits are counted from 8 less. Of eight they stay floats: so large a zero point costs
        places of the sum, and is not the model's.
        """
        if len(edit.shape(weight) or ()) != 2:
            return None
        transpose = edit.producer(weight, "Transpose")
        source = transpose.inputs[0] if transpose else weight
        reshape = edit.producer(source, "Reshape") if transpose else None
        node = edit.producer(reshape.inputs[0] if reshape else source, "DequantizeLinear")
        known = None if node is None else _known(edit, node)
        if node is None or known is None:
            return None
        if reshape:
            return _of_rows(node, known, edit.shape(weight) or ())
        return _along_axis(node, known, is_transposed=transpose is not None)

    @property
    def size(self) -> int:
        """Numbers of a block."""
        return int(self.numbers.shape[2])

    @property
    def bits(self) -> int:
        """Those that the numbers need: 4 or 8."""
        return 4 if self.numbers.max() < NIBBLE else 8


def _known(edit: Edit, node: Node) -> tuple[Array, Array, Array] | None:
    """Numbers, scales and zero points of a node, all known, and unsigned; None where they can't be."""
    numbers, scales = (edit.array(name) for name in node.inputs[:2])
    if numbers is None or scales is None or scales.dtype not in (np.float32, *NARROW) or not numbers.size:
        return None
    zeros = edit.array(node.inputs[2]) if node.input(2) else np.zeros(scales.shape, numbers.dtype)
    if zeros is None or zeros.shape != scales.shape:
        return None
    if numbers.dtype == np.uint8:
        return numbers, scales, zeros
    least, most = min(numbers.min(), zeros.min()), max(numbers.max(), zeros.max())
    half = NIBBLE // 2
    if numbers.dtype != np.int8 or least < -half or most >= half:
        return None
    first, second = ((array.astype(np.int16) + half).astype(np.uint8) for array in (numbers, zeros))
    return first, scales, second


def _of_rows(node: Node, known: tuple[Array, Array, Array], shape: tuple[int, ...]) -> WeightBlocks | None:
    """Each row of the numbers is a block of a column."""
    numbers, scales, zeros = known
    depth, columns = shape
    if node.attrs.get("block_size") or node.attrs.get("axis") != 0 or numbers.ndim != 2:
        return None
    if scales.shape != (len(numbers),) or depth % numbers.shape[1]:
        return None
    blocks = depth // numbers.shape[1]
    return WeightBlocks(
        numbers.reshape(columns, blocks, -1), scales.reshape(columns, blocks), zeros.reshape(columns, blocks)
    )


def _along_axis(node: Node, known: tuple[Array, Array, Array], *, is_transposed: bool) -> WeightBlocks | None:
    """Scales of blocks along the reduction."""
    numbers, scales, zeros = known
    size, is_along = node.attrs.get("block_size", 0), node.attrs.get("axis", 1) % 2 == int(is_transposed)
    if numbers.ndim != 2 or not size or not is_along:
        return None
    if not is_transposed:
        numbers, scales, zeros = numbers.T, scales.T, zeros.T
    columns, depth = numbers.shape
    if depth % size or scales.shape != (columns, depth // size):
        return None
    cut = np.ascontiguousarray(numbers).reshape(*scales.shape, size)
    return WeightBlocks(cut, np.ascontiguousarray(scales), np.ascontiguousarray(zeros))

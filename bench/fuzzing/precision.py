"""What a precision that a user asks for may round (`docs/numerics.md`): operands of products, moved as far as it does.

Whether a product is rounded depends on its shape and on the machine. So in some of the computations operands are
rounded as ours does it, in others moved by as much at random, or one of them, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tunewright.graph.ir import Node
from tunewright.graph.numerics import Precision

from .program import FlatProgram
from .values import as_float64, is_float_array, limits

PRODUCTS = frozenset({
    "AffineGrid", "Conv", "ConvTranspose", "DFT", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN", "STFT",
})  # fmt: skip
"""Ops that become products, some of them by weights of their own."""

OWN_WEIGHTS = frozenset({"AffineGrid", "DFT", "STFT"})
"""Those that have known weights whatever their operands are."""

BF16_STEP = 2.0**-8
"""How far rounding to bfloat16 moves a number, relative to its size."""

BYTE_STEPS = 255
"""Steps of the bytes that a tensor is rounded to."""

BLOCK_STEPS = 127
"""Steps of those on either side of 0 that a block is rounded to."""

NIBBLE = 8
"""What signed numbers of four bits are counted from less."""

MOVED_WEIGHT = frozenset({"Cast", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Ops between the bytes of a weight, dequantised, and its product."""

SHAPE_OPS = frozenset({"EyeLike", "Shape", "Size"})
"""Ops whose results are known wherever shapes are."""

WAYS = 4
"""Ways in which operands are moved, by the number of the computation."""


class RoundedOperands:
    """The operands of one computation's products, as a precision may round them."""

    def __init__(self, precision: Precision, number: int, rng: np.random.Generator) -> None:
        self._precision, self._way, self._rng = precision, number % WAYS, rng
        self._is_lost = number // WAYS % 2 == 1  # what is no number takes all with it that is rounded by the same step

    def of(
        self, node: Node, arrays: Sequence[Any], program: FlatProgram, values: Mapping[str, Any], *, is_body: bool
    ) -> list[Any]:
        """The operands of a node. `is_body`: of the program it is not told which tensors are known."""
        if node.op not in PRODUCTS or node.domain or not is_rounded_type(arrays[0]):
            return list(arrays)
        if self._precision is Precision.BF16:
            known = [is_known(program, name) for name in node.inputs[:2]]
            if is_body or node.op in OWN_WEIGHTS or any(known):
                return [*map(self._as_bf16, arrays[:2], range(2), known), *arrays[2:]]
            return list(arrays)
        dequantised = dequantised_weight(program, node)
        if dequantised is None:
            return list(arrays)
        size = _block_size(dequantised, np.shape(values[dequantised.inputs[0]]), arrays[0])
        if not size and self._is_lost and not np.isfinite(_span(arrays[0])):
            # The scale of all is no number. Padding is multiplied by it too, so weights stand for it.
            return [*(np.full_like(array, np.nan) for array in arrays[:2]), *arrays[2:]]
        return [self._as_bytes(arrays[0], size), *arrays[1:]]

    def _as_bf16(self, array: Any, place: int, is_weight: bool) -> Any:
        """An operand in bfloat16, or moved by as much. A weight of which some number would be infinite then is not."""
        if not is_rounded_type(array):
            return array
        if self._way == 0:
            wide = as_float64(array) * (1 + BF16_STEP * self._rng.uniform(-1.0, 1.0, array.shape))
            is_small = np.abs(wide) < limits("bfloat16")[1]  # subnormal numbers may be 0
            wide = np.where(is_small & (self._rng.random(array.shape) < 0.5), 0.0, wide)
            return _stored(wide, array)
        if self._way not in (1, 2 + place):
            return array
        with np.errstate(over="ignore"):
            rounded = array.astype(ml_dtypes.bfloat16).astype(np.float64)
        is_kept = not is_weight or np.array_equal(np.isfinite(rounded), np.isfinite(as_float64(array)))
        return _stored(rounded, array) if is_kept else array

    def _as_bytes(self, array: Any, size: int) -> Any:
        """An operand rounded to bytes: in blocks of its last axis, or with size 0 all by one step."""
        if size and (not array.ndim or array.shape[-1] % size):
            return array
        wide = np.asarray(array, np.float32)
        rows = wide.reshape(-1, size) if size else wide.reshape(1, -1)
        if not rows.size or self._way == WAYS - 1:
            return array
        with np.errstate(all="ignore"):
            rounded = np.stack([self._row(row, is_block=bool(size)) for row in rows])
        return _stored(rounded.reshape(array.shape), array)

    def _row(self, row: Any, *, is_block: bool) -> Any:
        """Numbers that are rounded by one step."""
        low = min(row.min(), np.float32(0))
        step = np.abs(row).max() / np.float32(BLOCK_STEPS) if is_block else _span(row) / np.float32(BYTE_STEPS)
        if not np.isfinite(step):
            return np.full_like(row, np.nan) if self._is_lost else row
        if step < 2 * limits("float32")[1]:  # it is subnormal, or nearly so
            return np.zeros_like(row) if self._is_lost else row
        if self._way == 0:
            return row + step * self._rng.uniform(-0.5, 0.5, row.shape)
        zero = np.float32(0) if is_block else np.rint(-low / step)
        least, most = (-BLOCK_STEPS, BLOCK_STEPS) if is_block else (0, BYTE_STEPS)
        return (np.clip(np.rint(row / step) + zero, least, most) - zero) * step


def _span(array: Any) -> Any:
    """The range of numbers and 0, as dynamic quantisation takes it: no number, or infinite, where some number is so."""
    with np.errstate(all="ignore"):
        return np.float32(array.max(initial=0.0)) - np.float32(array.min(initial=0.0))


def is_rounded_type(array: Any) -> bool:
    """Whether a value is of float32, or of a type that is computed in it."""
    return is_float_array(array) and array.dtype != np.float64


def is_known(program: FlatProgram, name: str) -> bool:
    """Whether a tensor depends on no input of the model, but perhaps for shapes."""
    if name in program.constants:
        return True
    node = _producer(program, name)
    return node is not None and (node.op in SHAPE_OPS or all(is_known(program, n) for n in node.inputs if n))


def _producer(program: FlatProgram, name: str) -> Node | None:
    return next((node for node in program.nodes if name and name in node.outputs), None)


def dequantised_weight(program: FlatProgram, node: Node) -> Node | None:
    """The DequantizeLinear of a product's weights; None where these are no bytes."""
    if node.op not in ("Conv", "Gemm", "MatMul"):
        return None
    source = _producer(program, node.inputs[1])
    while source is not None and source.op in MOVED_WEIGHT:
        source = _producer(program, source.inputs[0])
    return source if source is not None and source.op == "DequantizeLinear" else None


def block_sizes(program: FlatProgram, node: Node, values: Mapping[str, Any]) -> Any:
    """Sizes of a product's terms where those of zero points are summed apart: `x q s` and `x z s`; 0 for other ones.

    They are at most those of the largest weight. Signed numbers have zero points if they are of four bits.
    """
    dequantised = dequantised_weight(program, node) if node.op == "MatMul" else None
    if dequantised is None:
        return 0.0
    x = np.abs(as_float64(values[node.inputs[0]]))
    if not _block_size(dequantised, np.shape(values[dequantised.inputs[0]]), x):
        return 0.0
    numbers, scales, zeros = ([values[name] for name in dequantised.inputs if name] + [np.zeros(1)])[:3]
    most = max(float(np.abs(as_float64(array)).max(initial=0.0)) for array in (numbers, zeros))
    if numbers.dtype == np.int8:
        if most > NIBBLE:
            return 0.0
        most += NIBBLE
    sums = np.nansum(np.where(np.isinf(x), 0.0, x), axis=-1, keepdims=True)
    return 2 * most * np.abs(as_float64(scales)).max(initial=0.0) * sums


def _block_size(node: Node, shape: Sequence[int], x: Any) -> int:
    """Numbers of a block with a scale of its own: a row, as `MatMulNBits` is written, or as ONNX says. 0 without, and
    where there is one block, which has the scale of its column.
    """
    size = int(node.attrs.get("block_size", 0))
    is_of_rows = node.attrs.get("axis") == 0 and node.outputs[0].startswith("call ")
    size = size or (prod(shape[1:]) if is_of_rows else 0)
    return size if np.ndim(x) and size < np.shape(x)[-1] else 0


def _stored(values: Any, like: Any) -> Any:
    """Values in the type of an array; its own where they would leave the range of it, but not of bfloat16."""
    with np.errstate(over="ignore"):
        stored = np.asarray(values).astype(like.dtype)
    is_out = np.isinf(as_float64(stored)) & np.isfinite(np.asarray(values, np.float64))
    return np.where(is_out, like, stored)

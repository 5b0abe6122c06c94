"""Products of shapes that a precision rounds: by known weights of floats, or of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tunewright.graph.numerics import Precision

from ..draft import CONTRIBUTED, DraftTensor, InvalidNode, ModelDraft, Shape
from ..values import ValueDomain
from .recipe import Recipes
from .windows import window

MOST_DEPTH = 66
"""The longest sums."""


def product(d: ModelDraft) -> DraftTensor:
    """A MatMul or Gemm by a constant."""
    x = _rows(d, 2)
    depth, columns = (x.shape or ())[-1], _columns(d)
    if x.rank == 2 and d.chance(0.4):
        turned = d.between(0, 1)
        w = d.fresh("float32", (columns, depth) if turned else (depth, columns), constant=1.0)
        bias = d.fresh("float32", (columns,), constant=0.9)
        return d.op("Gemm", x, w, bias, transB=turned, alpha=d.number(1.0, 0.5) if d.chance(0.3) else None)
    return d.op("MatMul", x, d.fresh("float32", (depth, columns), constant=1.0))


def convolution(d: ModelDraft) -> DraftTensor:
    """A convolution by a constant."""
    x = _image(d, 2)
    attrs = window(d, (x.shape or ())[2:])
    w = d.fresh("float32", (_columns(d), (x.shape or ())[1], *attrs["kernel_shape"]), constant=1.0)
    return d.op("Conv", x, w, d.fresh("float32", (w.shape or ())[:1], constant=1.0) if d.chance(0.5) else None, **attrs)


def byte_product(d: ModelDraft) -> DraftTensor:
    """A MatMul or Gemm by a constant of bytes, with a scale for all, or for each column."""
    x = _rows(d, 4)
    depth, columns = (x.shape or ())[-1], _columns(d)
    if x.rank == 2 and d.chance(0.3):
        turned = d.between(0, 1)
        shape = (columns, depth) if turned else (depth, columns)
        return d.op("Gemm", x, _dequantised(d, shape, 1 - turned), None, transB=turned)
    return d.op("MatMul", x, _dequantised(d, (depth, columns), 1))


def byte_convolution(d: ModelDraft) -> DraftTensor:
    """A convolution by a constant of bytes, with a scale for all, or for each output channel."""
    x = _image(d, 4)
    attrs = window(d, (x.shape or ())[2:])
    w = _dequantised(d, (_columns(d), (x.shape or ())[1], *attrs["kernel_shape"]), 0)
    return d.op("Conv", x, w, d.fresh("float32", (w.shape or ())[:1], constant=1.0) if d.chance(0.5) else None, **attrs)


def block_product(d: ModelDraft) -> DraftTensor:
    """A product with a weight of 4 or 8 bits in several blocks."""
    bits, block, blocks, columns = d.among(4, 4, 8), d.among(16, 32), d.between(2, 4), _columns(d)
    depth = block * blocks
    a = _operand(d, lambda s: len(s) >= 2 and 0 not in s and s[-1] == depth, (d.between(1, 5), depth))
    b = d.fresh("uint8", (columns, blocks, block * bits // 8), ValueDomain(0, 255), constant=1.0)
    scales = d.constant(abs(d.array_rng.standard_normal((columns, blocks))) * 0.1 + 0.01, "float32", plain=True)
    zero = None
    if d.chance(0.5):
        zero = d.fresh("uint8", (columns, -(-blocks * bits // 8)), ValueDomain(0, 255), constant=1.0)
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    shape = (*(a.shape or ())[:-1], columns)
    return d.call(CONTRIBUTED, "MatMulNBits", [a, b, scales, zero], ("float32", shape), **attrs)[0]


def blocks_of_rows(d: ModelDraft) -> DraftTensor:
    """A product with a constant that is dequantised in blocks along the reduction."""
    if d.opset < 21:
        raise InvalidNode("opset")
    block, blocks, columns = d.among(8, 16, 32), d.between(2, 3), _columns(d)
    depth = block * blocks
    a = _operand(d, lambda s: len(s) >= 2 and 0 not in s and s[-1] == depth, (d.between(1, 5), depth))
    dtype, low, high = d.among(("uint8", 0, 16), ("int8", -8, 8), ("uint8", 0, 256), ("int8", -128, 128))
    w = d.constant(d.array_rng.integers(low, high, (depth, columns)), dtype, plain=True)
    scale = d.constant(d.array_rng.random((blocks, columns)) / 20 + 0.001, "float32", plain=True)
    zero = d.constant(d.array_rng.integers(low, high, (blocks, columns)), dtype, plain=True) if d.chance(0.5) else None
    return d.op("MatMul", a, d.op("DequantizeLinear", w, scale, zero, axis=0, block_size=block))


def _rows(d: ModelDraft, words: int) -> DraftTensor:
    """An operand whose last axis has whole words."""
    depth = words * d.between(1, MOST_DEPTH // words)
    shape = (*((d.between(1, 3),) if d.chance(0.3) else ()), d.among(1, 1, 2, 3, 5, 7, 8, 17), depth)
    return _operand(d, lambda s: len(s) >= 2 and 0 not in s and not s[-1] % words and s[-1] <= MOST_DEPTH, shape)


def _image(d: ModelDraft, words: int) -> DraftTensor:
    """An image whose channels are whole words."""
    extents = (d.between(3, 9) for _ in range(d.among(1, 2, 2, 2)))
    shape = (d.among(1, 1, 2), words * d.between(1, 16 // words), *extents)
    return _operand(d, lambda s: len(s) in (3, 4) and 0 not in s and not s[1] % words and s[1] <= 16, shape)


def _operand(d: ModelDraft, fits: Callable[[Shape], bool], shape: Shape) -> DraftTensor:
    """A tensor whose shape fits, mostly a computed one; else a new input. What is known is folded, and not rounded."""
    computed = [t for t in d.content.tensors if t.dtype == "float32" and t.name not in d.content.constants]
    fitting = [t for t in computed if t.shape is not None and fits(t.shape)]
    return d.rng.choice(fitting) if fitting and d.chance(0.85) else d.fresh("float32", shape, constant=0.03)


def _columns(d: ModelDraft) -> int:
    """Columns enough, mostly."""
    return int(d.among(16, 16, 17, 19, 24, 32, 37, 8))


def _dequantised(d: ModelDraft, shape: Shape, axis: int) -> DraftTensor:
    """A constant of bytes, dequantised for all, or along an axis."""
    if d.opset < 10:
        raise InvalidNode("opset")
    dtype = d.among("int8", "uint8")
    low, high = (-127, 128) if dtype == "int8" else (0, 256)
    by: dict[str, Any] = {"axis": axis} if d.opset >= 13 and d.chance(0.5) else {}
    extents = (shape[axis],) if by else ()
    w = d.constant(d.array_rng.integers(low, high, shape), dtype, plain=True)
    scale = d.constant(d.array_rng.random(extents) / 50 + 0.001, "float32", plain=True)
    points = d.array_rng.integers(max(low, -20), 140 if dtype == "uint8" else 21, extents)
    zero = d.constant(points if d.chance(0.5) else np.zeros_like(points), dtype, plain=True)
    return d.op("DequantizeLinear", w, scale, zero if dtype == "uint8" or d.chance(0.7) else None, **by)


ROUNDED: Mapping[Precision, Recipes] = {
    Precision.BF16: {
        "product": product, "convolution": convolution, "product again": product, "byte product": byte_product,
    },
    Precision.INT8_ACTIVATIONS: {
        "byte product": byte_product, "byte convolution": byte_convolution, "block product": block_product,
        "blocks of rows": blocks_of_rows,
    },
}  # fmt: skip
"""Recipes by the precision that rounds them."""

"""Ops on bytes with scales and zero points, as ONNX Runtime has them.

Weights that meet unsigned bytes are within -64 .. 64: beyond, sums of ONNX Runtime saturate on processors without VNNI.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..draft import CONTRIBUTED, DraftTensor, ModelDraft, Shape
from ..values import ValueDomain
from .recipe import Recipes, broadcast_shape, is_non_scalar
from .windows import window

BYTES = {"uint8": ValueDomain(0, 255), "int8": ValueDomain(-128, 127)}
WEIGHTS = {"uint8": ValueDomain(0, 255), "int8": ValueDomain(-64, 64)}


def _scale(d: ModelDraft) -> DraftTensor:
    return d.constant(np.float32(d.among(0.02, 0.1, 0.031, 0.5, 1.0, 0.0078125)), plain=True)


def _form(d: ModelDraft, dtype: str) -> tuple[DraftTensor, DraftTensor]:
    """A scale and a zero point."""
    return _scale(d), d.constant(d.between(0, 100), dtype, plain=True)


def _bytes(d: ModelDraft, dtype: str, shape: Shape) -> DraftTensor:
    return d.pick(dtype, lambda s: s == shape, lambda: shape) if d.chance(0.2) else d.fresh(dtype, shape, BYTES[dtype])


def _result(
    d: ModelDraft, op: str, operands: Sequence[DraftTensor | None], dtype: str, shape: Shape, **attrs: Any
) -> DraftTensor:
    return d.call(CONTRIBUTED, op, operands, (dtype, shape), **attrs)[0]


def _pick(d: ModelDraft, low: int = 1) -> tuple[DraftTensor, Shape]:
    dtype = d.among("uint8", "int8")
    fits = [t for t in d.content.tensors if t.dtype == dtype and t.shape and len(t.shape) >= low and 0 not in t.shape]
    x = d.rng.choice(fits) if fits and d.chance(0.4) else d.fresh(dtype, _full_shape(d, low), BYTES[dtype])
    return x, x.shape or ()


def _full_shape(d: ModelDraft, low: int) -> Shape:
    return tuple(max(extent, 1) for extent in d.some_shape(low=low))


def binary(op: str, d: ModelDraft) -> DraftTensor:
    """A sum or a product of what broadcasts."""
    a, shape = _pick(d)
    other = broadcast_shape(d, shape)
    b = _bytes(d, a.dtype, other)
    operands = [a, *_form(d, a.dtype), b, *_form(d, a.dtype), *_form(d, a.dtype)]
    return _result(d, op, operands, a.dtype, np.broadcast_shapes(shape, other))


def unary(op: str, d: ModelDraft) -> DraftTensor:
    """A curve."""
    x, shape = _pick(d)
    alpha = d.number(0.01, 0.2) if op == "QLinearLeakyRelu" and d.chance(0.7) else None
    return _result(d, op, [x, *_form(d, x.dtype), *_form(d, x.dtype)], x.dtype, shape, alpha=alpha)


def softmax(d: ModelDraft) -> DraftTensor:
    """Over one axis, or all from one on."""
    x, shape = _pick(d)
    axis = d.between(0, len(shape) - 1)
    scale = d.constant(np.float32(d.among(1 / 256, 0.01)), plain=True)
    zero = d.constant(0 if x.dtype == "uint8" else -128, x.dtype, plain=True)
    operands = [x, *_form(d, x.dtype), scale, zero]
    return _result(d, "QLinearSoftmax", operands, x.dtype, shape, axis=axis, opset=d.among(11, 13))


def concat(d: ModelDraft) -> DraftTensor:
    """Tensors with scales of their own."""
    x, shape = _pick(d)
    axis = d.between(0, len(shape) - 1)
    operands = [*_form(d, x.dtype), x, *_form(d, x.dtype)]
    extent = shape[axis]
    for _ in range(d.between(1, 3)):
        count = d.between(1, 4)
        operands += [_bytes(d, x.dtype, (*shape[:axis], count, *shape[axis + 1 :])), *_form(d, x.dtype)]
        extent += count
    return _result(d, "QLinearConcat", operands, x.dtype, (*shape[:axis], extent, *shape[axis + 1 :]), axis=axis)


def choose(d: ModelDraft) -> DraftTensor:
    """Elements of one or the other."""
    x, shape = _pick(d)
    y = _bytes(d, x.dtype, shape)
    condition = d.fresh("bool", shape)
    operands = [condition, x, *_form(d, x.dtype), y, *_form(d, x.dtype), *_form(d, x.dtype)]
    return _result(d, "QLinearWhere", operands, x.dtype, shape)


def global_pool(d: ModelDraft) -> DraftTensor:
    """Means of images, with channels first or last."""
    dtype = d.among("uint8", "int8")
    n, c, h, w = d.between(1, 2), d.between(1, 9), d.between(1, 7), d.between(1, 7)
    is_last = d.chance(0.4)
    x = d.fresh(dtype, (n, h, w, c) if is_last else (n, c, h, w), BYTES[dtype])
    shape = (n, 1, 1, c) if is_last else (n, c, 1, 1)
    operands = [x, *_form(d, dtype), *_form(d, dtype)]
    return _result(d, "QLinearGlobalAveragePool", operands, dtype, shape, channels_last=int(is_last))


def max_pool(d: ModelDraft) -> DraftTensor:
    """The largest in windows, with channels last."""
    dtype = d.among("uint8", "int8")
    n, h, w, c = d.between(1, 2), d.between(3, 9), d.between(3, 9), d.between(1, 9)
    x = d.fresh(dtype, (n, h, w, c), BYTES[dtype])
    attrs = window(d, (h, w), least_pad=True)
    extents = d.shape("MaxPool", ("float32", (n, c, h, w)), **attrs)[2:]
    return _result(d, "NhwcMaxPool", [x], dtype, (n, *extents, c), **attrs)


def _product_operands(d: ModelDraft, a_dtype: str) -> tuple[Shape, DraftTensor, str]:
    """Rows, the weight `[depth, columns]`, and its type."""
    depth, columns = d.between(1, 17), d.among(1, 3, 8, 16, 17)
    b_dtype = "int8" if a_dtype == "int8" else d.among("uint8", "int8")
    weight = d.fresh(b_dtype, (depth, columns), WEIGHTS[b_dtype], constant=0.9)
    return (*d.some_shape(low=1, high=2), depth), weight, b_dtype


def _weight_form(d: ModelDraft, columns: int, dtype: str) -> tuple[DraftTensor, DraftTensor | None]:
    """Scales and zero points of a weight, for all or for each column."""
    shape = (columns,) if d.chance(0.5) else ()
    scale = d.constant(abs(d.array_rng.standard_normal(shape)) * 0.1 + 0.01, "float32", plain=True)
    if d.chance(0.4):
        return scale, None
    return scale, d.constant(d.array_rng.integers(0, 60, shape), dtype, plain=True)


def dynamic_product(d: ModelDraft) -> DraftTensor:
    """Floats, quantised while the model runs, times a weight."""
    rows, weight, dtype = _product_operands(d, "uint8")
    columns = (weight.shape or ())[1]
    scale, zero = _weight_form(d, columns, dtype)
    bias = d.fresh("float32", (columns,), constant=0.9) if d.chance(0.5) else None
    a = d.pick("float32", lambda s: s == rows, lambda: rows)
    operands = [a, weight, scale, zero, bias]
    return _result(d, "DynamicQuantizeMatMul", operands, "float32", (*rows[:-1], columns))


def product_to_float(d: ModelDraft) -> DraftTensor:
    """A product of bytes as floats."""
    a_dtype = d.among("uint8", "int8")
    rows, weight, dtype = _product_operands(d, a_dtype)
    columns = (weight.shape or ())[1]
    scale, zero = _weight_form(d, columns, dtype)
    a_scale, a_zero = _form(d, a_dtype)
    bias = d.fresh("float32", (columns,), constant=0.9) if d.chance(0.5) else None
    operands = [_bytes(d, a_dtype, rows), weight, a_scale, scale, a_zero, zero, bias]
    return _result(d, "MatMulIntegerToFloat", operands, "float32", (*rows[:-1], columns))


def gemm(d: ModelDraft) -> DraftTensor:
    """A Gemm of bytes, to bytes or floats."""
    a_dtype = d.among("uint8", "int8")
    b_dtype = "int8" if a_dtype == "int8" else d.among("uint8", "int8")
    rows, depth, columns = d.between(1, 7), d.between(1, 17), d.among(1, 3, 8, 17)
    ta, tb = d.between(0, 1), d.between(0, 1)
    a = _bytes(d, a_dtype, (depth, rows) if ta else (rows, depth))
    b = d.fresh(b_dtype, (columns, depth) if tb else (depth, columns), WEIGHTS[b_dtype], constant=0.9)
    bias = d.fresh("int32", (columns,), ValueDomain(-999, 999), constant=0.9) if d.chance(0.5) else None
    is_rounded = d.chance(0.5)
    operands = [a, *_form(d, a_dtype), b, _scale(d), d.constant(d.between(0, 60), b_dtype, plain=True), bias]
    operands += _form(d, a_dtype) if is_rounded else ()
    alpha = d.among(None, 1.0, 0.7)
    return _result(
        d, "QGemm", operands, a_dtype if is_rounded else "float32", (rows, columns), transA=ta, transB=tb, alpha=alpha
    )


def quantise(d: ModelDraft) -> DraftTensor:
    """Floats to bytes."""
    x = d.pick("float32", is_non_scalar, lambda: d.some_shape(low=1))
    dtype = d.among("uint8", "int8")
    return _result(d, "QuantizeLinear", [x, *_form(d, dtype)], dtype, x.shape or ())


def dequantise(d: ModelDraft) -> DraftTensor:
    """Bytes to floats, by one scale or by one for each extent of an axis."""
    x, shape = _pick(d)
    if d.chance(0.5):
        return _result(d, "DequantizeLinear", [x, *_form(d, x.dtype)], "float32", shape)
    axis = d.between(0, len(shape) - 1)
    scale = d.constant(abs(d.array_rng.standard_normal(shape[axis])) + 0.01, "float32", plain=True)
    zero = d.constant(d.array_rng.integers(0, 100, shape[axis]), x.dtype, plain=True)
    return _result(d, "DequantizeLinear", [x, scale, zero], "float32", shape, axis=axis)


BYTE_OPS: Recipes = {
    **{op: partial(binary, op) for op in ("QLinearAdd", "QLinearMul")},
    **{op: partial(unary, op) for op in ("QLinearLeakyRelu", "QLinearSigmoid")},
    "DequantizeLinear": dequantise,
    "DynamicQuantizeMatMul": dynamic_product,
    "MatMulIntegerToFloat": product_to_float,
    "NhwcMaxPool": max_pool,
    "QGemm": gemm,
    "QLinearConcat": concat,
    "QLinearGlobalAveragePool": global_pool,
    "QLinearSoftmax": softmax,
    "QLinearWhere": choose,
    "QuantizeLinear": quantise,
}

"""Ops on bytes with a scale and a zero point, written as what they stand for: real numbers, rounded at the end.

Products of bytes are exact (`MatMulInteger`), and become real numbers by the product of the scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .activations import channels_first, channels_last
from .attention import ATTENTION, attend_to_projection
from .call import BYTES, ContribCall, Unsupported, contrib_op, standard_op

_BYTES = {"T": BYTES}
_WIDE = f"{BYTES} int16 uint16 int4 uint4"


def dequantize(call: ContribCall, x: str, scale: str, zero_point: str = "", axis: int | None = None) -> str:
    """The real numbers that bytes stand for."""
    return call.emit("DequantizeLinear", *filter(None, (x, scale, zero_point)), axis=axis)


def quantize(call: ContribCall, x: str, scale: str, zero_point: str, dtype: str, axis: int | None = None) -> str:
    """Bytes of real numbers; the zero point is 0 where there is none."""
    zero_point = zero_point or call.constant(np.zeros(call.shape(scale)), dtype)
    return call.emit("QuantizeLinear", x, scale, zero_point, axis=axis)


_IN_BYTES = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}


def in_bytes(call: ContribCall, name: str) -> str:
    """Numbers of few bits as bytes: hardly any op takes them as they are."""
    dtype = call.kind(name).dtype if name else ""
    return call.cast(name, _IN_BYTES[dtype]) if dtype in _IN_BYTES else name


@standard_op("DequantizeLinear")
def _dequantize_few_bits(call: ContribCall) -> str:
    """ONNX's own, of numbers of few bits, as that of bytes."""
    x, scale, zero_point = (call.operand(name) for name in ("x", "x_scale", "x_zero_point"))
    if call.kind(x).dtype not in _IN_BYTES:
        raise Unsupported("numbers that are bytes already")
    x, zero_point = in_bytes(call, x), in_bytes(call, zero_point)
    attrs = {name: call.attr(name) for name in ("axis", "block_size", "output_dtype")}
    return call.emit("DequantizeLinear", *filter(None, (x, scale, zero_point)), **attrs)


@contrib_op(
    "QuantizeLinear(x:T1, y_scale:T1, y_zero_point?:T2) -> y:T2",
    {"T1": "float float16", "T2": _WIDE},
    {"axis": int | None},
)
def _quantize_linear(call: ContribCall) -> str:
    zero_point = call.operand("y_zero_point")
    return quantize(call, call.operand("x"), call.operand("y_scale"), zero_point, "uint8", call.attr("axis"))


@contrib_op(
    "DequantizeLinear(x:T1, x_scale:T2, x_zero_point?:T1) -> y:T2",
    {"T1": f"{_WIDE} int32", "T2": "float float16"},
    {"axis": int | None},
)
def _dequantize_linear(call: ContribCall) -> str:
    return dequantize(call, call.operand("x"), call.operand("x_scale"), call.operand("x_zero_point"), call.attr("axis"))


def _operand(call: ContribCall, name: str, prefix: str | None = None) -> str:
    """The real numbers of an operand, by its name and that of its scale."""
    prefix = name if prefix is None else prefix
    return dequantize(call, call.operand(name), call.operand(f"{prefix}_scale"), call.operand(f"{prefix}_zero_point"))


def _result(call: ContribCall, x: str, prefix: str, like: str) -> str:
    """The result as bytes, of the type of an operand."""
    scale, zero_point = (call.operand(f"{prefix}_{part}") for part in ("scale", "zero_point"))
    return quantize(call, x, scale, zero_point, call.kind(call.operand(like)).dtype)


_BINARY = (
    "(A:T, A_scale:float, A_zero_point?:T, B:T, B_scale:float, B_zero_point?:T, C_scale:float, C_zero_point?:T) -> C:T"
)


@contrib_op(f"QLinearAdd{_BINARY}", _BYTES)
def _q_linear_add(call: ContribCall) -> str:
    return _result(call, call.emit("Add", _operand(call, "A"), _operand(call, "B")), "C", "A")


@contrib_op(f"QLinearMul{_BINARY}", _BYTES)
def _q_linear_mul(call: ContribCall) -> str:
    return _result(call, call.emit("Mul", _operand(call, "A"), _operand(call, "B")), "C", "A")


_UNARY = "(X:T, X_scale:float, X_zero_point?:T, Y_scale:float, Y_zero_point?:T) -> Y:T"


@contrib_op(f"QLinearSigmoid{_UNARY}", _BYTES)
def _q_linear_sigmoid(call: ContribCall) -> str:
    return _result(call, call.emit("Sigmoid", _operand(call, "X")), "Y", "X")


@contrib_op(f"QLinearLeakyRelu{_UNARY}", _BYTES, {"alpha": 0.01})
def _q_linear_leaky_relu(call: ContribCall) -> str:
    return _result(call, call.emit("LeakyRelu", _operand(call, "X"), alpha=call.attr("alpha")), "Y", "X")


@contrib_op(
    "QLinearSoftmax(X:T, X_scale:float, x_zero_point?:T, y_scale:float, y_zero_point:T) -> Y:T",
    _BYTES,
    {"axis": -1, "opset": int},
)
def _q_linear_softmax(call: ContribCall) -> str:
    """A softmax over an axis, or before opset 13 over all axes from that one on."""
    x = dequantize(call, call.operand("X"), call.operand("X_scale"), call.operand("x_zero_point"))
    axis, shape = call.attr("axis"), call.shape(x)
    if call.attr("opset") >= 13:
        y = call.emit("Softmax", x, axis=axis)
    else:
        y = call.reshape(call.emit("Softmax", call.emit("Flatten", x, axis=axis), axis=1), *shape)
    return _result(call, y, "y", "X")


@contrib_op(
    "QLinearConcat(Y_scale:TF, Y_zero_point:T8, inputs*:TV) -> Y:T8",
    {"T8": BYTES, "TF": "float", "TV": f"{BYTES} float"},
    {"axis": int},
)
def _q_linear_concat(call: ContribCall) -> str:
    """`inputs` are tensors, each with its scale and its zero point after it."""
    triples = zip(call.rest[::3], call.rest[1::3], call.rest[2::3], strict=True)
    parts = [dequantize(call, x, scale, zero_point) for x, scale, zero_point in triples]
    zero_point = call.operand("Y_zero_point")
    whole = call.emit("Concat", *parts, axis=call.attr("axis"))
    return quantize(call, whole, call.operand("Y_scale"), zero_point, call.kind(zero_point).dtype)


@contrib_op(
    "QLinearWhere(condition:B, X:T, x_scale:TF, x_zero_point:T, Y:T, y_scale:TF, y_zero_point:T, z_scale:TF,"
    " z_zero_point:T) -> Z:T",
    {"B": "bool", "TF": "float", **_BYTES},
)
def _q_linear_where(call: ContribCall) -> str:
    x, y = _operand(call, "X", "x"), _operand(call, "Y", "y")
    return _result(call, call.emit("Where", call.operand("condition"), x, y), "z", "X")


@contrib_op(
    "QLinearReduceMean(data:T, data_scale:float, data_zero_point?:T, reduced_scale:float, reduced_zero_point?:T)"
    " -> reduced:T",
    _BYTES,
    {"axes": list[int], "keepdims": int},
)
def _q_linear_reduce_mean(call: ContribCall) -> str:
    axes = call.constant(call.attr("axes"), "int64")
    return _result(
        call, call.emit("ReduceMean", _operand(call, "data"), axes, keepdims=call.attr("keepdims")), "reduced", "data"
    )


_POOL = "(X:T, x_scale:float, x_zero_point?:T, y_scale:float, y_zero_point?:T) -> Y:T"


@contrib_op(f"QLinearGlobalAveragePool{_POOL}", _BYTES, {"channels_last": 0})
def _q_linear_global_average_pool(call: ContribCall) -> str:
    return _pool(call, "GlobalAveragePool")


_WINDOW = {
    "kernel_shape": list[int], "strides": list[int], "pads": list[int], "ceil_mode": 0, "count_include_pad": 0,
    "auto_pad": "NOTSET",
}  # fmt: skip


@contrib_op(f"QLinearAveragePool{_POOL}", _BYTES, {**_WINDOW, "channels_last": 0})
def _q_linear_average_pool(call: ContribCall) -> str:
    return _pool(call, "AveragePool", **{name: call.attr(name) for name in _WINDOW})


def _pool(call: ContribCall, op: str, **attrs: object) -> str:
    x = _operand(call, "X", "x")
    if not call.attr("channels_last"):
        return _result(call, call.emit(op, x, **attrs), "y", "X")
    return _result(call, channels_last(call, call.emit(op, channels_first(call, x), **attrs)), "y", "X")


def product_of_bytes(
    call: ContribCall, a: str, b: str, zero_points: Sequence[str], scales: Sequence[str], bias: str = ""
) -> str:
    """The product of bytes as real numbers, and a bias."""
    product = call.emit("MatMulInteger", a, b, *zero_points)
    scale = call.emit("Mul", *scales)
    return call.sum(call.emit("Mul", call.cast(product, call.kind(scale).dtype), scale), bias)


@contrib_op(
    "MatMulIntegerToFloat(A:T1, B:T2, a_scale:T3, b_scale:T3, a_zero_point?:T1, b_zero_point?:T2, bias?:T3) -> Y:T3",
    {"T1": BYTES, "T2": BYTES, "T3": "float float16"},
)
def _mat_mul_integer_to_float(call: ContribCall) -> str:
    zero_points, scales = ([call.operand(f"{x}_{part}") for x in "ab"] for part in ("zero_point", "scale"))
    return product_of_bytes(call, call.operand("A"), call.operand("B"), zero_points, scales, call.operand("bias"))


@contrib_op(
    "DynamicQuantizeMatMul(A:T1, B:T2, b_scale:T1, b_zero_point?:T2, bias?:T1) -> Y:T1",
    {"T1": "float", "T2": BYTES},
)
def _dynamic_quantize_mat_mul(call: ContribCall) -> str:
    a, scale, zero_point = call.emit_all("DynamicQuantizeLinear", [call.operand("A")], 3)
    zero_points, scales = (zero_point, call.operand("b_zero_point")), (scale, call.operand("b_scale"))
    return product_of_bytes(call, a, call.operand("B"), zero_points, scales, call.operand("bias"))


@contrib_op(
    "QGemm(A:TA, a_scale:T, a_zero_point:TA, B:TB, b_scale:T, b_zero_point:TB, C?:TC, y_scale?:T, y_zero_point?:TYZ)"
    " -> Y:TY",
    {"T": "float", "TA": BYTES, "TB": BYTES, "TC": "int32", "TYZ": BYTES, "TY": f"float {BYTES}"},
    {"alpha": 1.0, "transA": 0, "transB": 0},
)
def _q_gemm(call: ContribCall) -> str:
    """alpha * a_scale * b_scale * (A @ B + C) of integers; bytes where the result has a scale."""
    a, b = (
        call.emit("Transpose", call.operand(name), perm=[1, 0]) if call.attr(f"trans{name}") else call.operand(name)
        for name in "AB"
    )
    product = call.emit("MatMulInteger", a, b, call.operand("a_zero_point"), call.operand("b_zero_point"))
    product = call.sum(product, call.operand("C"))
    scale = call.emit("Mul", call.operand("a_scale"), call.operand("b_scale"))
    if call.attr("alpha") != 1:
        scale = call.emit("Mul", scale, call.like(scale, call.attr("alpha")))
    y = call.emit("Mul", call.cast(product, "float32"), scale)
    return _result(call, y, "y", "A") if call.operand("y_scale") else y


@contrib_op(
    "QAttention(input:T1, weight:T2, bias:T3, input_scale:T3, weight_scale:T3, mask_index?:T4, input_zero_point?:T1,"
    " weight_zero_point?:T2, past?:T3) -> output:T3, present?:T3",
    {"T1": BYTES, "T2": BYTES, "T3": "float float16", "T4": "int32"},
    ATTENTION,
)
def _q_attention(call: ContribCall) -> Sequence[str]:
    zero_points, scales = (
        [call.operand(f"{x}_{part}") for x in ("input", "weight")] for part in ("zero_point", "scale")
    )
    projected = product_of_bytes(
        call, call.operand("input"), call.operand("weight"), zero_points, scales, call.operand("bias")
    )
    return attend_to_projection(call, projected)

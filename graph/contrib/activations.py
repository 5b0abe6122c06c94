"""Activations, and what has one in its end: Gelu and its kin, products and convolutions with an activation."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.onnx_form import first_from_last, last_from_first
from .call import FLOATS, ContribCall, contrib_op

_T = {"T": FLOATS}


@contrib_op("Gelu(X:T) -> Y:T", _T)
def _gelu(call: ContribCall) -> str:
    return call.emit("Gelu", call.operand("X"))


@contrib_op("BiasGelu(A:T, B:T) -> C:T", _T)
def _bias_gelu(call: ContribCall) -> str:
    return call.emit("Gelu", call.sum(call.operand("A"), call.operand("B")))


@contrib_op("FastGelu(X:T, bias?:T) -> Y:T", _T)
def _fast_gelu(call: ContribCall) -> str:
    return call.emit("Gelu", call.sum(call.operand("X"), call.operand("bias")), approximate="tanh")


@contrib_op("QuickGelu(X:T) -> Y:T", _T, {"alpha": 1.702})
def _quick_gelu(call: ContribCall) -> str:
    x, alpha = call.operand("X"), call.attr("alpha")
    scaled = x if alpha == 1 else call.emit("Mul", x, call.like(x, alpha))
    return call.emit("Mul", x, call.emit("Sigmoid", scaled))


_PRODUCT = {"alpha": 1.0, "transA": 0, "transB": 0}
_BATCHED = {**_PRODUCT, "transBatchA": 0, "transBatchB": 0}


@contrib_op("TransposeMatMul(A:T, B:T) -> Y:T", _T, _PRODUCT)
@contrib_op("FusedMatMul(A:T, B:T) -> Y:T", _T, _BATCHED)
def _fused_mat_mul(call: ContribCall) -> str:
    """alpha * A @ B, each with its last two axes exchanged, or with its rows before its batches."""
    a = _transpose(call, call.operand("A"), call.attr("transA"), call.attr("transBatchA"))
    b = _transpose(call, call.operand("B"), call.attr("transB"), call.attr("transBatchB"))
    product, alpha = call.emit("MatMul", a, b), call.attr("alpha")
    return product if alpha == 1 else call.emit("Mul", product, call.like(product, alpha))


def _transpose(call: ContribCall, name: str, transposes: int, transposes_batch: int | None) -> str:
    rank = len(call.shape(name))
    if rank < 2:  # a vector is what it is
        return name
    order = list(range(rank))
    if transposes_batch:  # [M, batch ..., K] is meant for [batch ..., M, K]
        order = [*range(1, rank - 1), 0, rank - 1]
    if transposes:
        order[-2:] = order[:-3:-1]
    return name if order == list(range(rank)) else call.emit("Transpose", name, perm=order)


@contrib_op(
    "FusedGemm(A:T, B:T, C?:T) -> Y:T",
    {"T": "float float16 double"},
    {**_PRODUCT, "beta": 1.0, "activation": ""}
    | dict.fromkeys(("activation_alpha", "activation_beta", "activation_gamma"), float | None),
)
def _fused_gemm(call: ContribCall) -> str:
    attrs = {name: call.attr(name) for name in ("alpha", "beta", "transA", "transB")}
    operands = [call.operand(name) for name in "ABC"]
    product = call.emit("Gemm", *(operands if operands[2] else operands[:2]), **attrs)
    parameters = [call.attr(f"activation_{name}") for name in ("alpha", "beta")]
    return activate(call, product, call.attr("activation"), [value for value in parameters if value is not None])


_WINDOW = {
    "kernel_shape": list[int], "strides": list[int], "pads": list[int], "dilations": list[int], "group": 1,
    "auto_pad": "NOTSET",
}  # fmt: skip


@contrib_op(
    "FusedConv(X:T, W:T, B?:T, Z?:T) -> Y:T",
    {"T": "float float16 double"},
    {**_WINDOW, "activation": "", "activation_params": list[float]},
)
def _fused_conv(call: ContribCall) -> str:
    """The activation of a convolution, to which Z is added before."""
    operands = [call.operand(name) for name in "XWB"]
    attrs = {name: call.attr(name) for name in _WINDOW}
    result = call.emit("Conv", *(operands if operands[2] else operands[:2]), **attrs)
    result = call.sum(result, call.operand("Z"))
    return activate(call, result, call.attr("activation"), call.attr("activation_params", ()))


def activate(call: ContribCall, x: str, activation: str, parameters: Sequence[float]) -> str:
    """An activation by its name; its parameters are ONNX's alpha and beta, or the least and most."""
    if not activation:
        return x
    if activation == "Clip":
        return call.emit("Clip", x, *(call.like(x, limit) for limit in parameters))
    return call.emit(activation, x, **dict(zip(("alpha", "beta"), parameters, strict=False)))


@contrib_op(
    "NhwcMaxPool(x:T) -> y:T",
    {"T": "uint8 int8"},
    {"kernel_shape": list[int], "strides": list[int], "pads": list[int], "dilations": list[int], "ceil_mode": 0}
    | {"auto_pad": "NOTSET"},
)
def _nhwc_max_pool(call: ContribCall) -> str:
    """A MaxPool with the channels in the last axis."""
    x = channels_first(call, call.operand("x"))
    names = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode", "auto_pad")
    return channels_last(call, call.emit("MaxPool", x, **{name: call.attr(name) for name in names}))


def channels_first(call: ContribCall, name: str) -> str:
    """[N, ..., C] as [N, C, ...]."""
    return call.emit("Transpose", name, perm=first_from_last(len(call.shape(name))))


def channels_last(call: ContribCall, name: str) -> str:
    """[N, C, ...] as [N, ..., C]."""
    return call.emit("Transpose", name, perm=last_from_first(len(call.shape(name))))

"""Products with weights of 2, 4 or 8 bits, of which every block has its scale."""

from __future__ import annotations

from math import ceil

import numpy as np

from .call import ContribCall, Unsupported, contrib_op
from .quantisation import dequantize, in_bytes

_FLOATS = "float float16 bfloat16"

INT8_LEVEL = 4
"""The `accuracy_level` at which activations are rounded to 8 bits, in the blocks of the weights."""

WORD_NUMBERS = 8
"""Numbers of four bits in a word: blocks in which activations are rounded are whole words."""

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NF4: quantiles of the normal distribution (Dettmers et al., arXiv 2305.14314, appendix E)."""

_FP4_MAGNITUDES = (0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_FP4 = (*_FP4_MAGNITUDES, *(-value for value in _FP4_MAGNITUDES))
"""FP4 as bitsandbytes has it: a sign, two bits of exponent and one of mantissa, over 12."""


def unpack(call: ContribCall, packed: str, bits: int, high_first: bool = False) -> str:
    """The numbers of `bits` each in bytes, along the last axis; the lowest bits come first, or the highest."""
    if bits == 8:
        return packed
    shape = call.shape(packed)
    mask, parts = call.constant(2**bits - 1, "uint8"), []
    for shift in sorted(range(0, 8, bits), reverse=high_first):
        part = call.emit("BitShift", packed, call.constant(shift, "uint8"), direction="RIGHT") if shift else packed
        parts.append(call.unsqueeze(call.emit("BitwiseAnd", part, mask), len(shape)))
    return call.reshape(call.emit("Concat", *parts, axis=len(shape)), *shape[:-1], shape[-1] * (8 // bits))


@contrib_op(
    "MatMulNBits(A:T1, B:T2, scales:T1, zero_points?:T3, g_idx?:T4, bias?:T1) -> Y:T1",
    {"T1": _FLOATS, "T2": "uint8", "T3": f"uint8 {_FLOATS}", "T4": "int32"},
    {"K": int, "N": int, "bits": 4, "block_size": int, "accuracy_level": 0, "weight_prepacked": 0},
)
def _mat_mul_n_bits(call: ContribCall) -> str:
    """A @ W^T + bias. W `[N, K]` is cut into blocks along K, each with a scale and a zero point."""
    if call.attr("weight_prepacked"):
        raise Unsupported("a weight in the layout of one GPU")
    n, k, bits, size = (call.attr(name) for name in ("N", "K", "bits", "block_size"))
    blocks = ceil(k / size)
    numbers = call.reshape(unpack(call, call.operand("B"), bits), n, blocks * size)
    scales = call.reshape(call.operand("scales"), n, blocks)
    zero_points = _zero_points(call, n, blocks, bits)
    groups, has_bytes = call.operand("g_idx"), call.kind(zero_points).dtype == "uint8"
    if groups:
        groups = call.slice(groups, 0, 0, k)
        numbers = call.slice(numbers, 1, 0, k)
        scales, zero_points = (call.emit("Gather", name, groups, axis=1) for name in (scales, zero_points))
        weight = _scaled(call, numbers, scales, zero_points)
    elif has_bytes:
        scales, zero_points = (call.reshape(name, n * blocks) for name in (scales, zero_points))
        rows = dequantize(call, call.reshape(numbers, n * blocks, size), scales, zero_points, axis=0)
        weight = call.reshape(rows, n, blocks * size)
    else:
        cut = call.reshape(numbers, n, blocks, size)
        weight = call.reshape(_scaled(call, cut, *(call.unsqueeze(x, 2) for x in (scales, zero_points))), n, -1)
    if not groups and k < blocks * size:
        weight = call.slice(weight, 1, 0, k)
    a = call.operand("A")
    is_rounded = call.attr("accuracy_level") == INT8_LEVEL and bits in (4, 8) and has_bytes and not groups
    if is_rounded and k % size == 0 and size % WORD_NUMBERS == 0:
        a = call.emit_own("RoundBlocks", (a,), call.kind(a), size=size)
    return call.sum(call.emit("MatMul", a, call.emit("Transpose", weight, perm=[1, 0])), call.operand("bias"))


def _zero_points(call: ContribCall, n: int, blocks: int, bits: int) -> str:
    """`[N, blocks]`: bytes, or real numbers."""
    given = call.operand("zero_points")
    if not given:
        return call.constant(np.full((n, blocks), 2 ** (bits - 1)), "uint8")
    if call.kind(given).dtype != "uint8":
        return call.reshape(given, n, blocks)
    per_row = ceil(blocks * bits / 8)
    return call.slice(unpack(call, call.reshape(given, n, per_row), bits), 1, 0, blocks)


def _scaled(call: ContribCall, numbers: str, scales: str, zero_points: str) -> str:
    """(numbers - zero points) * scales, of the type of the scales."""
    dtype = call.kind(scales).dtype
    centred = call.emit("Sub", *(call.cast(name, dtype) for name in (numbers, zero_points)))
    return call.emit("Mul", centred, scales)


@contrib_op(
    "GatherBlockQuantized(data:T1, indices:Tind, scales:T2, zero_points?:T1) -> output:T2",
    {"T1": "int4 uint4 uint8", "T2": _FLOATS, "Tind": "int32 int64"},
    {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
)
def _gather_block_quantized(call: ContribCall) -> str:
    """Rows of a table of few bits, as real numbers."""
    data, indices, scales = (call.operand(name) for name in ("data", "indices", "scales"))
    rank, packs = len(call.shape(data)), call.kind(data).dtype == "uint8"
    bits, axis, blocked = call.attr("bits"), call.attr("gather_axis") % rank, call.attr("quantize_axis") % rank
    if axis == blocked:
        raise Unsupported("blocks along the axis that is gathered")
    numbers, scales = (call.emit("Gather", name, indices, axis=axis) for name in (in_bytes(call, data), scales))
    blocked += (len(call.shape(indices)) - 1) * (axis < blocked)
    zero_points = call.operand("zero_points")
    if zero_points:
        zero_points = call.emit("Gather", in_bytes(call, zero_points), indices, axis=axis)
    if packs:
        numbers = unpack(call, numbers, bits)
        zero_points = unpack(call, zero_points, bits) if zero_points else call.constant(2 ** (bits - 1), "uint8")
    numbers, zero_points = (name and call.cast(name, "int32") for name in (numbers, zero_points))
    extent = call.shape(numbers)[blocked]
    block_of = call.constant(np.arange(extent) // call.attr("block_size"), "int64")
    scales = call.emit("Gather", scales, block_of, axis=blocked)
    if not zero_points:
        return call.emit("Mul", call.cast(numbers, call.kind(scales).dtype), scales)
    if call.shape(zero_points):
        zero_points = call.emit("Gather", zero_points, block_of, axis=blocked)
    return _scaled(call, numbers, scales, zero_points)


@contrib_op(
    "MatMulBnb4(A:T1, B:T2, absmax:T1) -> Y:T1",
    {"T1": _FLOATS, "T2": "uint8"},
    {"K": int, "N": int, "block_size": int, "quant_type": int, "training_mode": 0, "transB": 1},
)
def _mat_mul_bnb4(call: ContribCall) -> str:
    """A @ W^T. The numbers of W `[N, K]` are places in a table, in blocks without regard to rows."""
    if not call.attr("transB"):
        raise Unsupported("a weight that is not transposed")
    n, k, size = (call.attr(name) for name in ("N", "K", "block_size"))
    a, absmax = call.operand("A"), call.operand("absmax")
    table = call.constant(_NF4 if call.attr("quant_type") else _FP4, call.kind(a).dtype)
    places = call.reshape(unpack(call, call.operand("B"), 4, high_first=True), -1)
    values = call.emit("Gather", table, call.cast(places, "int32"))
    block_of = call.constant(np.arange(n * k) // size, "int64")
    values = call.emit("Mul", call.slice(values, 0, 0, n * k), call.emit("Gather", absmax, block_of))
    return call.emit("MatMul", a, call.emit("Transpose", call.reshape(values, n, k), perm=[1, 0]))

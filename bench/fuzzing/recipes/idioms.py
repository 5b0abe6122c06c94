"""Idioms of several ops, as exporters write them and rewrites look for them, with variations.

Constants come from `Draft.number`, which is near the usual one, but not always the same.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from ..draft import DraftTensor, InvalidNode, ModelDraft, Shape
from ..values import ValueDomain
from .recipe import Recipes, rank_at_least
from .windows import conv, window


def _pick_float(d: ModelDraft, low: int = 0, high: int = 5) -> DraftTensor:
    dtype = d.main if d.main in ("float32", "float16", "float64") else "float32"
    x = d.pick(dtype, lambda s: low <= len(s) <= high and 0 not in s, lambda: d.some_shape(low=low, high=min(high, 4)))
    if x.shape is None:
        raise InvalidNode("shape")
    return x


def _constant(d: ModelDraft, x: DraftTensor, *usual: float) -> DraftTensor:
    return d.scalar(d.number(*usual), x.dtype)


def quotient_then_step(d: ModelDraft) -> DraftTensor:
    """A division by a constant whose result is rounded, compared or used as an index."""
    x = _pick_float(d)
    y = d.op("Div", x, _constant(d, x, 41.0, 3.0, 7.0, 49.0, 0.1, 255.0))
    match d.between(0, 4):
        case 0:
            return d.op("Cast", d.op("Clip", y, *_limits(d, x, -100.0, 100.0)) if d.opset >= 11 else y, to=7)
        case 1:
            return d.op(d.among("Greater", "Less"), y, _constant(d, x, 1.0, 2.0, 0.0))
        case 2 if d.opset >= 11:
            return d.op("Round", y)
        case _:
            return d.op(d.among("Floor", "Ceil"), y)


def _limits(d: ModelDraft, x: DraftTensor, low: float, high: float) -> list[DraftTensor]:
    return [d.constant(np.asarray(v), x.dtype, plain=True) for v in (low, high)]


def rounding_constant(d: ModelDraft) -> DraftTensor:
    """A large constant added and subtracted."""
    x = _pick_float(d)
    big = d.among(12582912.0, 8388608.0, 1e8, 16777216.0) if x.dtype != "float16" else 1536.0
    y = d.op("Add", x, d.scalar(big, x.dtype))
    return d.op("Sub", y, d.scalar(big, x.dtype)) if d.chance(0.5) else d.op("Add", y, d.scalar(-big, x.dtype))


def scales_in_a_row(d: ModelDraft) -> DraftTensor:
    """Products by constants, some of which would underflow together."""
    y = _pick_float(d)
    for _ in range(d.between(2, 4)):
        factor = d.among(1e-25, 1e20, 1e-30, 2.0, 0.1, 1e-3, 1e30) if y.dtype != "float16" else d.among(2.0, 0.1, 1e-3)
        y = d.op(d.among("Mul", "Mul", "Div"), y, d.scalar(factor, y.dtype))
    return y


def affine_chain(d: ModelDraft) -> DraftTensor:
    """Sums and products with constants, of one number or one for each channel."""
    y = _pick_float(d)
    for _ in range(d.between(2, 4)):
        shape: Shape = (
            () if d.chance(0.6) or not y.rank else tuple(e if k == 1 else 1 for k, e in enumerate(y.shape or ()))
        )
        c = d.fresh(y.dtype, shape, constant=1.0)
        y = d.op(d.among("Mul", "Add", "Sub", "Div"), *((y, c) if d.chance(0.8) else (c, y)))
    return y


def gelu(d: ModelDraft) -> DraftTensor:
    """By erf, or by tanh."""
    x = _pick_float(d)
    if d.chance(0.6):
        inner = (
            d.op("Div", x, _constant(d, x, sqrt(2.0))) if d.chance(0.5) else d.op("Mul", x, _constant(d, x, sqrt(0.5)))
        )
        curve = d.op("Add", d.op("Erf", inner), _constant(d, x, 1.0))
    else:
        cube = d.op("Pow", x, _constant(d, x, 3.0)) if d.chance(0.5) else d.op("Mul", x, d.op("Mul", x, x))
        inner = d.op(
            "Mul", d.op("Add", x, d.op("Mul", cube, _constant(d, x, 0.044715))), _constant(d, x, sqrt(2 / np.pi))
        )
        curve = d.op("Add", d.op("Tanh", inner), _constant(d, x, 1.0))
    half = d.op("Mul", x, curve)
    if d.chance(0.5):
        return d.op("Mul", half, _constant(d, x, 0.5))
    return d.op("Mul", d.op("Mul", x, _constant(d, x, 0.5)), curve)


def silu(d: ModelDraft) -> DraftTensor:
    """By a sigmoid, or one written out."""
    x = _pick_float(d)
    if d.chance(0.6):
        gate = d.op("Sigmoid", d.op("Mul", x, _constant(d, x, 1.702, 1.0)) if d.chance(0.3) else x)
    else:
        gate = d.op("Reciprocal", d.op("Add", d.op("Exp", d.op("Neg", x)), _constant(d, x, 1.0)))
    return d.op("Mul", x, gate) if d.chance(0.5) else d.op("Mul", gate, x)


def hard_swish(d: ModelDraft) -> DraftTensor:
    """By a clip, or a hard sigmoid."""
    x = _pick_float(d)
    if d.chance(0.5):
        gate = d.op("HardSigmoid", x, alpha=d.number(1 / 6, 0.2), beta=d.number(0.5))
    else:
        shifted = d.op("Add", x, _constant(d, x, 3.0))
        gate = _clip(d, shifted, d.number(0.0), d.number(6.0))
        gate = d.op("Div", gate, _constant(d, x, 6.0)) if d.chance(0.5) else d.op("Mul", gate, _constant(d, x, 1 / 6))
    return d.op("Mul", x, gate) if d.chance(0.8) else gate


def hard_sigmoid(d: ModelDraft) -> DraftTensor:
    """A line, clipped, then one less."""
    x = _pick_float(d)
    y = _clip(
        d, d.op("Add", d.op("Mul", x, _constant(d, x, 0.2, 1 / 6)), _constant(d, x, 0.5)), 0.0, d.number(1.0, 0.9999)
    )
    return d.op("Log", d.op("Sub", d.scalar(1.0, x.dtype), y)) if d.chance(0.4) else y


def _clip(d: ModelDraft, x: DraftTensor, low: float, high: float) -> DraftTensor:
    if d.opset < 11 or d.chance(0.2):
        if d.opset >= 11 or x.dtype != "float32":
            return d.op("Min", d.op("Max", x, d.scalar(low, x.dtype)), d.scalar(high, x.dtype))
        return d.op("Clip", x, min=low, max=high)
    return d.op("Clip", x, *_limits(d, x, low, high))


def clip_chain(d: ModelDraft) -> DraftTensor:
    """Clips and their kind, one on another."""
    y = _pick_float(d)
    for _ in range(d.between(2, 3)):
        match d.between(0, 3):
            case 0:
                y = d.op("Relu", y)
            case 1:
                y = d.op(d.among("Max", "Min"), y, _constant(d, y, 0.0, 6.0, 1.0))
            case _:
                y = _clip(d, y, d.number(0.0, -1.0), d.number(6.0, 1.0))
    return y


def softplus(d: ModelDraft) -> DraftTensor:
    """Written out, far from zero too."""
    x = _pick_float(d)
    return d.op("Log", d.op("Add", d.op("Exp", x), _constant(d, x, 1.0)))


def mish(d: ModelDraft) -> DraftTensor:
    """By its parts."""
    x = _pick_float(d)
    return d.op("Mul", x, d.op("Tanh", d.op("Softplus", x)))


def softmax(d: ModelDraft) -> DraftTensor:
    """Written out, with the maximum taken off or not."""
    x = _pick_float(d, 1)
    axis = -1 if d.chance(0.6) or d.opset < 11 else d.between(0, x.rank - 1)
    if d.opset < 11:
        axis = x.rank - 1
    if d.chance(0.7):
        x = d.op("Sub", x, fold(d, "ReduceMax", x, axis))
    e = d.op("Exp", x)
    return d.op("Div", e, fold(d, "ReduceSum", e, axis))


def fold(d: ModelDraft, op: str, x: DraftTensor, axis: int) -> DraftTensor:
    """A reduction along one axis, which stays."""
    if d.opset >= (13 if op == "ReduceSum" else 18):
        return d.op(op, x, d.ints([axis]), keepdims=1)
    return d.op(op, x, axes=[axis], keepdims=1)


def layer_norm(d: ModelDraft) -> DraftTensor:
    """Written out, as several exporters do; also without centring."""
    x = _pick_float(d, 1)
    axis = -1 if d.opset >= 11 else x.rank - 1
    centred = d.op("Sub", x, fold(d, "ReduceMean", x, axis)) if d.chance(0.8) else x
    square = d.op("Mul", centred, centred) if d.chance(0.4) else d.op("Pow", centred, _constant(d, x, 2.0))
    root = d.op(
        "Sqrt", d.op("Add", fold(d, "ReduceMean", square, axis), d.scalar(d.among(1e-5, 1e-3, 0.1, 0.0), x.dtype))
    )
    y = d.op("Div", centred, root) if d.chance(0.7) else d.op("Mul", centred, d.op("Reciprocal", root))
    last = ((x.shape or ())[-1],)
    if d.chance(0.8):
        y = d.op("Mul", y, d.fresh(x.dtype, last, constant=0.9))
    if d.chance(0.7):
        y = d.op("Add", y, d.fresh(x.dtype, last, constant=0.9))
    return y


def mask(d: ModelDraft) -> DraftTensor:
    """A mask of -inf, or of the lowest float, added before a softmax or after a norm."""
    x = _pick_float(d, 1)
    last = (x.shape or ())[-1]
    low = d.among(float("-inf"), float("-inf"), -1e9 if x.dtype != "float16" else -6e4)
    mask = np.where(d.array_rng.random(last) < d.among(0.3, 1.0), low, 0.0)
    if d.opset >= 17 and d.chance(0.4):
        x = d.op(
            "LayerNormalization", x, d.fresh(x.dtype, (last,), constant=1.0), d.fresh(x.dtype, (last,), constant=1.0)
        )
    y = d.op("Add", x, d.constant(mask, x.dtype))
    return d.op("Softmax", y, axis=x.rank - 1) if d.chance(0.7) else y


def conv_block(d: ModelDraft) -> DraftTensor:
    """A convolution, then a norm, a scale, an activation, a sum."""
    y = conv(d)
    for _ in range(d.between(1, 3)):
        shape = y.shape or ()
        if not shape:
            raise InvalidNode("shape")
        channel_shape = (1, shape[1], *(1 for _ in shape[2:]))
        match d.between(0, 5):
            case 0:
                channels = (shape[1],)
                parameters = [d.fresh(y.dtype, channels, constant=0.95) for _ in range(3)]
                y = d.op(
                    "BatchNormalization",
                    y,
                    *parameters,
                    d.constant(d.array_rng.random(channels) + d.among(1e-9, 0.1), y.dtype),
                )
            case 1:
                y = d.op(
                    d.among("Mul", "Add", "Sub", "Div"),
                    y,
                    d.fresh(y.dtype, d.among(channel_shape, channel_shape[1:], ()), constant=0.95),
                )
            case 2:
                y = d.op("Add", y, d.pick(y.dtype, lambda s, want=shape: s == want, lambda want=shape: want))  # type: ignore[misc]
            case 3:
                y = pool_of(d, y)
            case _:
                y = d.op(d.among("Relu", "Sigmoid", "LeakyRelu", "Tanh", "Elu", "HardSigmoid", "Softplus"), y)
    return y


def pool_of(d: ModelDraft, x: DraftTensor) -> DraftTensor:
    """A pool over what there is, large ones too."""
    op = d.among("MaxPool", "AveragePool")
    attrs = window(d, (x.shape or ())[2:], dilated=False, least_pad=True)
    attrs.pop("dilations", None)
    return d.op(op, x, **attrs)


def padded_conv(d: ModelDraft) -> DraftTensor:
    """A pad of its own before a window."""
    x = d.pick(
        "float32",
        lambda s: len(s) == 4 and 0 not in s and s[1] < 20,
        lambda: (1, d.between(1, 5), d.between(3, 8), d.between(3, 8)),
    )
    shape = x.shape or ()
    a, b, c, e = (d.between(0, 2) for _ in range(4))
    pads = [0, 0, a, b, 0, 0, c, e]
    mode = d.among("constant", "constant", "reflect", "edge")
    value = d.among(0.0, 0.0, 1.0, float("-inf"))
    if d.opset < 11:
        y = d.op("Pad", x, pads=pads, mode=mode, value=value)
    else:
        y = d.op(
            "Pad", x, d.ints(pads), d.constant(np.float32(value), plain=True) if d.chance(0.7) else None, mode=mode
        )
    if d.chance(0.5) and min(shape[2:]) > 2:
        return d.op(d.among("MaxPool", "AveragePool"), y, kernel_shape=[2, 3], strides=d.among(None, [2, 2]))
    w = d.fresh("float32", (d.among(1, 3, 8), shape[1], d.between(1, 3), d.between(1, 3)), constant=0.95)
    return d.op("Conv", y, w, pads=d.among(None, [1, 1, 1, 1]))


def scaled_product(d: ModelDraft) -> DraftTensor:
    """Scales and biases around a product, with reshapes or transpositions between."""
    x = _pick_float(d, 2, 4)
    if d.chance(0.5):
        x = d.op(d.among("Mul", "Div"), x, _constant(d, x, 0.125, 8.0, sqrt(8.0)))
    depth, columns = (x.shape or ())[-1], d.among(1, 3, 4, 6, 8, 16)
    y = d.op("MatMul", x, d.fresh(x.dtype, (depth, columns), constant=0.9))
    for _ in range(d.between(1, 3)):
        shape = y.shape or ()
        match d.between(0, 3):
            case 0:
                perm = d.rng.sample(range(len(shape)), len(shape))
                y = d.op("Transpose", y, perm=perm)
            case 1:
                y = d.op("Reshape", y, d.ints(d.among([-1], [1, -1], [*shape[:-2], -1] if len(shape) > 2 else [-1, 1])))
            case 2:
                y = d.op(d.among("Mul", "Add", "Div"), y, d.fresh(y.dtype, d.among((), (shape[-1],)), constant=0.95))
            case _:
                y = d.op("Mul", y, _constant(d, y, 0.125, 0.5))
    return y


def attention(d: ModelDraft) -> DraftTensor:
    """Queries, keys and values, with a scale, a mask and a softmax."""
    b, h, q, k, e = d.between(1, 2), d.between(1, 3), d.between(1, 6), d.between(1, 6), d.among(1, 2, 4, 8, 16)
    dtype = d.main if d.main in ("float32", "float16") else "float32"
    queries, keys, values = (d.fresh(dtype, s, constant=0.1) for s in ((b, h, q, e), (b, h, k, e), (b, h, k, e)))
    scale = d.scalar(d.among(1 / sqrt(e), 0.5, sqrt(e)), dtype)
    if d.chance(0.3):
        queries = d.op(d.among("Mul", "Div"), queries, scale)
    scores = d.op("MatMul", queries, d.op("Transpose", keys, perm=[0, 1, 3, 2]))
    if d.chance(0.6):
        scores = d.op(d.among("Mul", "Div"), scores, scale)
    if d.chance(0.5):
        hidden = np.triu(np.full((q, k), d.among(float("-inf"), -1e4)), 1)
        scores = d.op("Add", scores, d.constant(hidden, dtype))
    y = d.op("MatMul", d.op("Softmax", scores, axis=3), values)
    if d.chance(0.6):
        y = d.op("Reshape", d.op("Transpose", y, perm=[0, 2, 1, 3]), d.ints([b, q, h * e]))
    return y


def quantised_op(d: ModelDraft) -> DraftTensor:
    """Ops between DequantizeLinear and QuantizeLinear."""
    if d.opset < 10:
        raise InvalidNode("opset")
    dtype = d.among("uint8", "int8")

    def numbers(scale: float) -> list[DraftTensor]:
        zero = d.between(0, 128) if dtype == "uint8" else d.between(-10, 10)
        return [d.constant(np.float32(scale), plain=True), d.constant(zero, dtype, plain=True)]

    def through(x: DraftTensor) -> DraftTensor:
        scale = numbers(d.among(0.05, 0.1, 0.02))
        return d.op("DequantizeLinear", d.op("QuantizeLinear", x, *scale), *scale)

    x = through(d.pick("float32", rank_at_least(2), lambda: (1, d.between(1, 4), d.between(3, 6), d.between(3, 6))))
    shape = x.shape or ()
    if 0 in shape:
        raise InvalidNode("empty")
    if len(shape) == 4 and d.chance(0.6):
        outs = d.among(1, 3, 8)
        w = d.constant(
            d.array_rng.integers(-127, 128, (outs, shape[1], 1, d.between(1, min(3, shape[3])))), "int8", plain=True
        )
        per = d.opset >= 13 and d.chance(0.5)
        scale = d.constant(d.array_rng.random((outs,) if per else ()) / 50 + 0.001, "float32", plain=True)
        zero = d.constant(np.zeros((outs,) if per else ()), "int8", plain=True)
        weight = d.op("DequantizeLinear", w, scale, zero, axis=0 if per else None)
        y = d.op("Conv", x, weight)
    elif d.chance(0.5):
        w = d.constant(d.array_rng.integers(-127, 128, (shape[-1], d.among(1, 4, 8))), "int8", plain=True)
        zero = d.constant(0, "int8", plain=True)
        y = d.op("MatMul", x, d.op("DequantizeLinear", w, d.constant(np.float32(0.01), plain=True), zero))
    else:
        other = through(d.fresh("float32", shape))
        y = d.op(d.among("Add", "Mul"), x, other) if d.chance(0.6) else d.op("Concat", x, other, axis=1)
    if d.chance(0.5):
        y = d.op(d.among("Relu", "Sigmoid"), y)
    return d.op("QuantizeLinear", y, *numbers(d.among(0.05, 0.1, 0.3)))


def shuffle(d: ModelDraft) -> DraftTensor:
    """Channels in another order, by reshapes around a transposition."""
    n, g, c, h, w = d.between(1, 2), d.between(2, 3), d.between(1, 4), d.between(1, 5), d.between(1, 5)
    x = d.pick("float32", lambda s: s == (n, g * c, h, w), lambda: (n, g * c, h, w))
    y = d.op("Transpose", d.op("Reshape", x, d.ints([n, g, c, h, w])), perm=[0, 2, 1, 3, 4])
    return d.op("Reshape", y, d.ints([n, -1, h, w]))


def transpositions(d: ModelDraft) -> DraftTensor:
    """An op on each element, or a fold, between transpositions."""
    x = d.pick("float32", lambda s: len(s) == 4 and 0 not in s, lambda: d.some_shape(4))
    y = d.op("Transpose", x, perm=[0, 2, 3, 1])
    if d.chance(0.5):
        y = d.op("Add", y, d.fresh("float32", d.among((), ((y.shape or ())[3],)), constant=0.9))
    else:
        y = d.op(d.among("Relu", "Sigmoid", "Exp"), y)
    if d.chance(0.5):
        y = fold(d, d.among("ReduceMean", "ReduceSum", "ReduceMax"), y, d.between(0, 3))
    return d.op("Transpose", y, perm=d.among([0, 3, 1, 2], [0, 2, 1, 3]))


def index_by_division(d: ModelDraft) -> DraftTensor:
    """An index that is computed in floats."""
    count = d.between(3, 20)
    table = d.fresh("float32", (count, d.between(1, 3)))
    c = d.among(3.0, 7.0, 10.0, 41.0)
    x = (
        d.constant(d.array_rng.integers(0, int(c * count), d.among((5,), (7, 3))).astype(np.float32))
        if d.chance(0.3)
        else None
    )
    if x is None:
        x = d.fresh("float32", (d.among(5, 40),), ValueDomain(0, int(c) * count - 1), constant=0.0)
    index = d.op("Cast", d.op("Floor", d.op("Div", x, d.scalar(c, "float32"))), to=d.among(6, 7))
    return d.op("Gather", table, index, axis=0)


def statistics(d: ModelDraft) -> DraftTensor:
    """Mean, variance and what is made of them."""
    x = _pick_float(d, 1)
    axis = x.rank - 1
    mean = fold(d, "ReduceMean", x, axis)
    square = fold(d, "ReduceMean", d.op("Mul", x, x), axis)
    return d.op("Sub", square, d.op("Mul", mean, mean))


def rotary_halves(d: ModelDraft) -> DraftTensor:
    """Halves exchanged and one of them negated, as rotary embeddings do."""
    depth = d.among(2, 4, 8)
    x = d.pick("float32", lambda s: len(s) >= 1 and s[-1] == depth, lambda: (*d.some_shape(2), depth))
    if d.opset < 10:
        raise InvalidNode("opset")
    half = depth // 2

    def part(low: int, high: int) -> DraftTensor:
        return d.op("Slice", x, d.ints([low]), d.ints([high]), d.ints([x.rank - 1]))

    rotation = d.op("Concat", d.op("Neg", part(half, depth)), part(0, half), axis=x.rank - 1)
    cos, sin = (d.fresh("float32", (depth,), constant=0.9) for _ in range(2))
    return d.op("Add", d.op("Mul", x, cos), d.op("Mul", rotation, sin))


def flattened_head(d: ModelDraft) -> DraftTensor:
    """A global pool, a Flatten and a dense layer."""
    x = d.pick("float32", lambda s: len(s) == 4 and 0 not in s, lambda: d.some_shape(4))
    y = d.op("Flatten", d.op("GlobalAveragePool", x))
    columns = d.among(1, 5, 10)
    depth = prod((y.shape or ())[1:])
    return d.op(
        "Gemm",
        y,
        d.fresh("float32", (columns, depth), constant=0.95),
        d.fresh("float32", (columns,), constant=0.95),
        transB=1,
    )


def deep_chain(d: ModelDraft) -> DraftTensor:
    """Many small ops in a row."""
    y = _pick_float(d)
    for _ in range(d.between(8, 20)):
        y = (
            d.op(d.among("Relu", "Tanh", "Abs", "Neg", "Sigmoid"), y)
            if d.chance(0.5)
            else d.op(d.among("Add", "Mul"), y, d.scalar(d.number(1.0, 0.5), y.dtype))
        )
    return y


IDIOMS: Recipes = {
    "affine chain": affine_chain,
    "attention": attention,
    "clip chain": clip_chain,
    "conv block": conv_block,
    "deep chain": deep_chain,
    "flattened head": flattened_head,
    "gelu": gelu,
    "hard sigmoid": hard_sigmoid,
    "hard swish": hard_swish,
    "index by division": index_by_division,
    "layer norm": layer_norm,
    "masked": mask,
    "mish": mish,
    "padded conv": padded_conv,
    "quantised": quantised_op,
    "quotient then step": quotient_then_step,
    "rotated": rotary_halves,
    "rounding constant": rounding_constant,
    "scaled product": scaled_product,
    "scales in a row": scales_in_a_row,
    "shuffle": shuffle,
    "silu": silu,
    "softmax": softmax,
    "softplus": softplus,
    "statistics": statistics,
    "transpositions": transpositions,
}

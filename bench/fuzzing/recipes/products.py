"""Matrix products, quantised ones too, and ops of several of them: attention, recurrent ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..draft import DraftTensor, InvalidNode, ModelDraft, Shape
from ..values import FLOATS, ValueDomain
from .recipe import Recipes, is_non_scalar, rank_at_least, rank_in


def matmul(d: ModelDraft) -> DraftTensor:
    """Vectors, matrices, and stacks that broadcast."""
    dtype = d.dtype_for("MatMul")
    a = d.pick(dtype, lambda s: len(s) >= 1, lambda: d.some_shape(low=1))
    shape = a.shape or ()
    wanted_shape = right_shape(d, shape)
    b = (
        d.pick(dtype, lambda s: s == wanted_shape, lambda: wanted_shape)
        if d.chance(0.2)
        else d.fresh(dtype, wanted_shape, constant=0.6)
    )
    return d.op("MatMul", a, b)


def right_shape(d: ModelDraft, shape: Shape) -> Shape:
    """A shape of the right operand of a product with this left one."""
    depth = shape[-1]
    if d.chance(0.12):
        return (depth,)
    columns = d.among(1, 2, 3, 5, 8, 16, 17, 32)
    batch = tuple(e if d.chance(0.6) else 1 for e in shape[:-2]) if d.chance(0.5) else ()
    return (*batch[d.between(0, len(batch)) :], depth, columns)


def gemm(d: ModelDraft) -> DraftTensor:
    """With both transpositions, factors, and a bias that broadcasts."""
    dtype = d.dtype_for("Gemm", among=(*FLOATS, "int32", "int64"))
    a = d.pick(dtype, rank_in(2), lambda: d.some_shape(2))
    ta, tb = d.among(None, 0, 1), d.among(None, 0, 1)
    rows, depth = a.shape if not ta else a.shape[::-1]  # type: ignore[misc,index]
    columns = d.among(1, 3, 5, 8, 16, 17)
    b = d.fresh(dtype, (columns, depth) if tb else (depth, columns), constant=0.7)
    shapes: list[Shape] = [(), (1,), (columns,), (rows, 1), (1, columns), (rows, columns)]
    c = d.fresh(dtype, d.rng.choice(shapes), constant=0.7) if d.chance(0.7) or d.opset < 11 else None
    numbers: dict[str, Any] = (
        {"alpha": d.number(1.0, 0.5), "beta": d.number(1.0, 2.0)} if d.chance(0.4) and dtype in FLOATS else {}
    )
    return d.op("Gemm", a, b, c, transA=ta, transB=tb, **numbers)


EQUATIONS = {
    "ij,jk->ik": (2, 2), "bij,bjk->bik": (3, 3), "bhqd,bhkd->bhqk": (4, 4), "i,j->ij": (1, 1), "ij->ji": (2,),
    "ii->i": (2,), "ij->": (2,), "ij,ij->i": (2, 2), "...ij,jk->...ik": (3, 2), "ij,jk": (2, 2), "bij,bij->b": (3, 3),
}  # fmt: skip


def einsum(d: ModelDraft) -> DraftTensor:
    """Some usual equations."""
    equation = d.rng.choice(list(EQUATIONS))
    dtype = d.dtype_for("Einsum", among=("float32", "float64", "int64"))
    extents: dict[str, int] = {}
    operands = []
    for term in equation.split("->")[0].split(","):
        letters = term.replace("...", "Z")
        operands.append(d.fresh(dtype, tuple(extents.setdefault(x, d.among(1, 2, 3, 5)) for x in letters)))
    return d.op("Einsum", *operands, equation=equation)


def det(d: ModelDraft) -> DraftTensor:
    """Determinants of small matrices."""
    n = d.between(1, 3)
    return d.op("Det", d.fresh(d.dtype_for("Det", among=("float32", "float64")), (*d.some_shape(high=1), n, n)))


def quantise(d: ModelDraft) -> DraftTensor:
    """For all, for each channel, or for blocks of it."""
    x = d.pick(d.dtype_for("QuantizeLinear", among=("float32", "float16")), is_non_scalar, lambda: d.some_shape(low=1))
    scale, zero, attrs = _scales(
        d, x, d.among("uint8", "int8", *(("int16", "uint16") if d.opset >= 21 else ())), x.dtype
    )
    return d.op("QuantizeLinear", x, scale, zero, **attrs)


def _scales(
    d: ModelDraft, x: DraftTensor, dtype: str, wide: str
) -> tuple[DraftTensor, DraftTensor | None, dict[str, Any]]:
    shape = x.shape or ()
    axis = d.between(0, len(shape) - 1)
    attrs: dict[str, Any] = {}
    extents: Shape = ()
    if d.opset >= 13 and d.chance(0.4):
        extents = (shape[axis],)
        attrs["axis"] = axis - len(shape) if d.chance(0.3) else axis
        if d.opset >= 21 and d.chance(0.3):
            block = d.among(1, 2, 3)
            extents = tuple(-(-e // block) if k == axis else e for k, e in enumerate(shape))
            attrs["block_size"] = block
    usual = d.array_rng.choice([0.1, 0.02, 1.0, 0.5, 1 / 3, 0.0078125], extents)
    scale = d.constant(usual, wide)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    zero = d.constant(d.array_rng.integers(max(low, -100), min(high, 200) + 1, extents), dtype)
    if d.chance(0.3):
        return scale, zero if dtype not in ("uint8",) else None, attrs
    return scale, zero, attrs


def dequantise(d: ModelDraft) -> DraftTensor:
    """For all, for each channel, or for blocks of it."""
    dtype = d.dtype_for("DequantizeLinear", among=("uint8", "int8", "int32"))
    x = d.pick(dtype, is_non_scalar, lambda: d.some_shape(low=1))
    scale, zero, attrs = _scales(d, x, dtype if dtype != "int32" else "int8", "float32")
    return d.op(
        "DequantizeLinear", x, scale, zero if dtype != "int32" and zero and zero.dtype == dtype else None, **attrs
    )


def dynamic_quantise(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Quantisation with a scale from the values."""
    return d.ops("DynamicQuantizeLinear", d.pick("float32", lambda s: 0 not in s), outputs=3)


def matmul_integer(d: ModelDraft) -> DraftTensor:
    """Bytes, with zero points."""
    a = d.pick(d.among("uint8", "int8"), rank_at_least(2), lambda: d.some_shape(low=2))
    b = d.fresh(d.among("uint8", "int8"), right_shape(d, a.shape or ()), constant=0.8)
    if len(b.shape or ()) < 2:
        raise InvalidNode("vector")
    za = d.constant(d.between(0, 100), a.dtype) if d.chance(0.5) else None
    zero_shape: Shape = ((b.shape or ())[-1],) if d.chance(0.3) and len(b.shape or ()) == 2 else ()
    zb = d.constant(d.array_rng.integers(0, 100, zero_shape), b.dtype) if d.chance(0.4) else None
    return d.op("MatMulInteger", a, b, za, zb)


def qlinear_matmul(d: ModelDraft) -> DraftTensor:
    """Quantised throughout."""
    a = d.pick(d.among("uint8", "int8"), rank_at_least(2), lambda: d.some_shape(low=2))
    b = d.fresh(a.dtype if d.chance(0.5) else "int8", right_shape(d, a.shape or ()), constant=0.8)
    if len(b.shape or ()) < 2:
        raise InvalidNode("vector")
    operands: list[DraftTensor] = []
    for tensor in (a, b):
        operands += [
            tensor,
            d.constant(np.float32(d.among(0.02, 0.1, 0.031)), plain=True),
            d.constant(d.between(0, 100), tensor.dtype, plain=True),
        ]
    y = [
        d.constant(np.float32(d.among(0.3, 0.2, 0.13)), plain=True),
        d.constant(d.between(0, 100), a.dtype, plain=True),
    ]
    return d.op("QLinearMatMul", *operands, *y)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CURVES = (
    "Sigmoid",
    "Tanh",
    "Relu",
    "HardSigmoid",
    "Softsign",
    "Elu",
    "LeakyRelu",
    "Affine",
    "ScaledTanh",
    "ThresholdedRelu",
    "Softplus",
)


def recurrent(op: str, d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Directions, initial states, lengths, peepholes, activations, clipping, layouts."""
    dtype = d.dtype_for(op, among=("float32",))
    steps, batch, size, hidden = d.between(1, 4), d.between(1, 3), d.between(1, 4), d.between(1, 5)
    direction = d.among("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    is_batch_first = d.opset >= 14 and d.chance(0.2)
    x = d.fresh(dtype, (batch, steps, size) if is_batch_first else (steps, batch, size), constant=0.1)
    gates = GATES[op]
    w = d.fresh(dtype, (count, gates * hidden, size), constant=0.9)
    r = d.fresh(dtype, (count, gates * hidden, hidden), constant=0.9)
    b = d.fresh(dtype, (count, 2 * gates * hidden), constant=0.9) if d.chance(0.6) else None
    lengths = d.fresh("int32", (batch,), ValueDomain(1, steps), constant=0.5) if d.chance(0.3) else None
    state: Shape = (batch, count, hidden) if is_batch_first else (count, batch, hidden)
    h = d.fresh(dtype, state) if d.chance(0.4) else None
    lstm_inputs: list[DraftTensor | None] = []
    if op == "LSTM":
        lstm_inputs = [
            d.fresh(dtype, state) if d.chance(0.4) else None,
            d.fresh(dtype, (count, 3 * hidden), constant=0.9) if d.chance(0.3) else None,
        ]
    attrs: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": direction if count == 2 or d.chance(0.7) or direction != "forward" else None,
    }
    if d.chance(0.3):
        activation_count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
        attrs["activations"] = [d.rng.choice(CURVES) for _ in range(activation_count * count)]
        if any(name in ("Affine", "ScaledTanh") for name in attrs["activations"]):
            attrs["activation_alpha"] = [0.5] * len(attrs["activations"])
            attrs["activation_beta"] = [0.3] * len(attrs["activations"])
    if d.chance(0.2):
        attrs["clip"] = d.among(0.5, 3.0)
    if op == "GRU":
        attrs["linear_before_reset"] = d.among(None, 0, 1)
    if op == "LSTM":
        attrs["input_forget"] = d.among(None, None, 0, 1)
    if is_batch_first:
        attrs["layout"] = 1
    return d.ops(op, x, w, r, b, lengths, h, *lstm_inputs, outputs=3 if op == "LSTM" else 2, **attrs)


def attention(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Of opset 23: four or three axes, groups of heads, masks, keys and values of the past."""
    batch, heads, queries, keys, depth = (
        d.between(1, 2),
        d.among(1, 2, 4),
        d.between(1, 4),
        d.between(1, 5),
        d.among(1, 2, 4, 8),
    )
    kv = heads if d.chance(0.6) else 1
    dtype = d.dtype_for("Attention", among=("float32", "float16"))
    wide = d.among(depth, 3)
    if d.chance(0.6):
        shapes: list[Shape] = [(batch, heads, queries, depth), (batch, kv, keys, depth), (batch, kv, keys, wide)]
        attrs: dict[str, Any] = {}
    else:
        shapes = [(batch, queries, heads * depth), (batch, keys, kv * depth), (batch, keys, kv * wide)]
        attrs = {"q_num_heads": heads, "kv_num_heads": kv}
    q, k, v = (d.fresh(dtype, shape, constant=0.1) for shape in shapes)
    before = d.between(1, 4) if d.chance(0.35) else 0
    past = [d.fresh(dtype, (batch, kv, before, size)) for size in (depth, wide)] if before else []
    mask = _attention_mask(d, dtype, batch, queries, before + keys) if d.chance(0.4) else None
    attrs["scale"] = d.number(0.5, 0.25, 1.0) if d.chance(0.3) else None
    attrs["softcap"] = d.among(None, None, 5.0)
    outputs = 3 if past else 1
    return d.ops("Attention", q, k, v, mask, *past, outputs=outputs, is_causal=d.among(None, 0, 1), **attrs)


def _attention_mask(d: ModelDraft, dtype: str, batch: int, queries: int, keys: int) -> DraftTensor:
    """Bools, or numbers to add."""
    shape = d.among((queries, keys), (1, 1, queries, keys), (batch, 1, queries, keys))
    return d.fresh(dtype if d.chance(0.6) else "bool", shape)


def rotary(d: ModelDraft) -> DraftTensor:
    """Pairs of elements turned."""
    batch, heads, steps, depth = d.between(1, 2), d.between(1, 2), d.between(1, 4), d.among(2, 4, 8)
    dtype = d.dtype_for("RotaryEmbedding", among=("float32",))
    x = d.fresh(dtype, (batch, heads, steps, depth), constant=0.1)
    if d.chance(0.5):
        tables = [d.fresh(dtype, (steps + 2, depth // 2), constant=0.8) for _ in range(2)]
        ids = d.fresh("int64", (batch, steps), ValueDomain(0, steps + 1))
    else:
        tables = [d.fresh(dtype, (batch, steps, depth // 2), constant=0.8) for _ in range(2)]
        ids = None
    return d.op("RotaryEmbedding", x, *tables, ids, interleaved=d.among(None, 0, 1))


PRODUCTS: Recipes = {
    **{op: partial(recurrent, op) for op in GATES},
    "Attention": attention,
    "DequantizeLinear": dequantise,
    "Det": det,
    "DynamicQuantizeLinear": dynamic_quantise,
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantise,
    "RotaryEmbedding": rotary,
}

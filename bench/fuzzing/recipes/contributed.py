"""Ops of ONNX Runtime's own domain (`com.microsoft`): activations, products with them, and norms; with the others.

ONNX has no schema of these, so each recipe says itself what types its results have. Mostly float32: ONNX Runtime has
no kernels of others for many.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..draft import CONTRIBUTED, DraftTensor, ModelDraft, Shape
from ..values import ValueDomain
from .contributed_attention import ATTENTIONS
from .contributed_bytes import BYTE_OPS
from .recipe import Recipes, is_non_scalar
from .windows import window


def _call(
    d: ModelDraft, op: str, operands: list[DraftTensor | None], dtype: str, shape: Shape, **attrs: Any
) -> DraftTensor:
    return d.call(CONTRIBUTED, op, operands, (dtype, shape), **attrs)[0]


def _float(d: ModelDraft) -> str:
    return str(d.rng.choices(["float32", "float16"], [0.9, 0.1])[0])


def curve(op: str, d: ModelDraft) -> DraftTensor:
    """A curve of one operand, and perhaps a bias."""
    x = d.pick(_float(d), is_non_scalar, lambda: d.some_shape(low=1))
    shape = x.shape or ()
    operands: list[DraftTensor | None] = [x]
    if op == "BiasGelu" or (op == "FastGelu" and d.chance(0.5)):
        operands.append(d.fresh(x.dtype, shape[-1:], constant=0.8))
    alpha = d.number(1.702, 1.0) if op == "QuickGelu" and d.chance(0.6) else None
    return _call(d, op, operands, x.dtype, shape, alpha=alpha)


def fused_matmul(d: ModelDraft) -> DraftTensor:
    """With a factor, and both operands turned."""
    a = d.pick("float32", lambda s: len(s) >= 2 and 0 not in s, lambda: d.some_shape(low=2))
    shape = a.shape or ()
    ta, tb = d.between(0, 1), d.between(0, 1)
    rows = (*shape[:-2], shape[-1], shape[-2]) if ta else shape
    columns = d.among(1, 3, 5, 8, 17)
    batch = shape[:-2] if d.chance(0.6) else ()
    b = d.fresh("float32", (*batch, columns, rows[-1]) if tb else (*batch, rows[-1], columns), constant=0.7)
    factor = d.number(1.0, 0.125) if d.chance(0.6) else None
    return _call(d, "FusedMatMul", [a, b], "float32", (*rows[:-1], columns), transA=ta, transB=tb, alpha=factor)


def fused_matmul_of_batches(d: ModelDraft) -> DraftTensor:
    """Rows before batches."""
    batch, rows, depth, columns = d.between(1, 3), d.between(1, 5), d.between(1, 5), d.among(1, 3, 8)
    flags = {name: d.between(0, 1) for name in ("transA", "transB", "transBatchA", "transBatchB")}

    def shape(rows: int, columns: int, turned: int, is_batch_turned: int) -> Shape:
        first, last = (columns, rows) if turned else (rows, columns)
        return (first, batch, last) if is_batch_turned else (batch, first, last)

    a = d.fresh("float32", shape(rows, depth, flags["transA"], flags["transBatchA"]))
    b = d.fresh("float32", shape(depth, columns, flags["transB"], flags["transBatchB"]))
    return _call(d, "FusedMatMul", [a, b], "float32", (batch, rows, columns), **flags)


ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": (0.2,), "HardSigmoid": (0.3, 0.4),
}  # fmt: skip


def fused_gemm(d: ModelDraft) -> DraftTensor:
    """A Gemm with an activation."""
    a = d.pick("float32", lambda s: len(s) == 2 and 0 not in s, lambda: (d.between(1, 9), d.between(1, 9)))
    ta, tb = d.between(0, 1), d.between(0, 1)
    rows, depth = (a.shape or ())[::-1] if ta else a.shape or ()
    columns = d.among(1, 3, 5, 8, 17)
    b = d.fresh("float32", (columns, depth) if tb else (depth, columns), constant=0.7)
    c = d.fresh("float32", d.among((columns,), (rows, columns), (1, columns)), constant=0.7) if d.chance(0.7) else None
    activation = d.among("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")
    names = ("activation_alpha", "activation_beta")
    attrs: dict[str, Any] = dict(zip(names, ACTIVATIONS[activation], strict=False))
    attrs |= {"alpha": d.number(1.0, 0.5), "beta": d.number(1.0, 2.0)} if d.chance(0.4) else {}
    return _call(
        d, "FusedGemm", [a, b, c], "float32", (rows, columns), transA=ta, transB=tb, activation=activation, **attrs
    )  # fmt: skip


def fused_conv(d: ModelDraft) -> DraftTensor:
    """A convolution with an activation, and perhaps a sum before it."""
    x = d.pick("float32", lambda s: len(s) == 4 and 0 not in s and s[1] <= 17, lambda: (1, d.between(1, 8), 7, 9))
    shape = x.shape or ()
    attrs = window(d, shape[2:])
    group = shape[1] if d.chance(0.2) else 1
    outs = group * d.among(1, 2) if group > 1 else d.among(1, 3, 8, 16)
    w = d.fresh("float32", (outs, shape[1] // group, *attrs["kernel_shape"]), constant=0.85)
    result = d.shape("Conv", ("float32", shape), ("float32", w.shape or ()), group=group, **attrs)
    bias = d.fresh("float32", (outs,), constant=0.85) if d.chance(0.6) else None
    more = d.fresh("float32", result) if d.chance(0.3) else None
    activation = d.among("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Clip")
    parameters = (-0.5, d.among(0.5, 6.0)) if activation == "Clip" else ACTIVATIONS[activation]
    return _call(
        d, "FusedConv", [x, w, bias, more], "float32", result, group=group, activation=activation,
        activation_params=list(parameters) or None, **attrs,
    )  # fmt: skip


def skip_norm(op: str, d: ModelDraft) -> tuple[DraftTensor, ...]:
    """A norm of a sum, which may be a result too."""
    x = d.pick(_float(d), lambda s: len(s) in (2, 3) and 0 not in s, lambda: d.some_shape(d.between(2, 3)))
    shape, size = x.shape or (), (x.shape or ())[-1:]
    skip = d.fresh(x.dtype, d.among(shape, shape, shape[1:]) if len(shape) == 3 else shape)
    operands: list[DraftTensor | None] = [x, skip, d.fresh(x.dtype, size, constant=0.8)]
    if op == "SkipLayerNormalization":
        operands.append(d.fresh(x.dtype, size, constant=0.8) if d.chance(0.6) else None)
    operands.append(d.fresh(x.dtype, size, constant=0.8) if d.chance(0.5) else None)
    total = [None, None, (x.dtype, shape)] if d.chance(0.5) else []
    epsilon = d.among(None, 1e-5, 1e-12)
    return d.call(CONTRIBUTED, op, operands, (x.dtype, shape), *total, epsilon=epsilon)


def simplified_norm(d: ModelDraft) -> DraftTensor:
    """A norm without means, which is in ONNX's own domain here."""
    x = d.pick(_float(d), lambda s: len(s) >= 1 and 0 not in s, lambda: d.some_shape(low=1))
    shape = x.shape or ()
    axis = d.between(0, len(shape) - 1) if d.chance(0.3) else len(shape) - 1
    scale = d.fresh(x.dtype, shape[axis:], constant=0.8)
    attrs = {"axis": axis - len(shape) if d.chance(0.5) else axis, "epsilon": d.among(None, 1e-6)}
    return d.call("", "SimplifiedLayerNormalization", [x, scale], (x.dtype, shape), **attrs)[0]


def embeddings(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Sums of embeddings, normalised."""
    batch, length, words, size = d.between(1, 3), d.between(1, 5), d.between(2, 9), d.among(1, 4, 8, 17)

    def table(count: int) -> DraftTensor:
        return d.fresh("float32", (count, size), constant=0.9)

    def ids(count: int) -> DraftTensor:
        return d.fresh("int32", (batch, length), ValueDomain(0, count - 1), constant=0.2)

    has_segments = d.chance(0.6)
    has_mask, has_positions = d.chance(0.5), d.chance(0.4)
    operands = [
        ids(words), ids(2) if has_segments else None, table(words), table(length + 2),
        table(2) if has_segments else None, d.fresh("float32", (size,), constant=0.9),
        d.fresh("float32", (size,), constant=0.9), ids(2) if has_mask else None,
        ids(length + 2) if has_positions else None,
    ]  # fmt: skip
    shape = (batch, length, size)
    total = [("float32", shape)] if d.chance(0.4) else []
    results = [("float32", shape), ("int32", (batch,)), *total]
    return d.call(CONTRIBUTED, "EmbedLayerNormalization", operands, *results, epsilon=d.among(None, 1e-5))


def few_bits(d: ModelDraft) -> DraftTensor:
    """A product with a weight of 4 or 8 bits in blocks."""
    bits, block = d.among(4, 4, 8), d.among(16, 32)
    depth = block * d.between(1, 3) - (d.between(0, 5) if d.chance(0.3) else 0)
    a = d.pick("float32", lambda s: len(s) >= 2 and 0 not in s and s[-1] == depth, lambda: (d.between(1, 5), depth))
    n, blocks = d.among(1, 3, 8, 16, 17), -(-depth // block)
    b = d.fresh("uint8", (n, blocks, block * bits // 8), ValueDomain(0, 255), constant=0.9)
    scales = d.constant(abs(d.array_rng.standard_normal((n, blocks))) * 0.1 + 0.01, "float32", plain=True)
    zero = None
    if d.chance(0.5):
        zero = d.fresh("uint8", (n, -(-blocks * bits // 8)), ValueDomain(0, 255), constant=1.0)
    bias = d.fresh("float32", (n,), constant=0.9) if d.chance(0.3) else None
    attrs = {"K": depth, "N": n, "bits": bits, "block_size": block, "accuracy_level": d.among(None, 0, 1)}
    shape = (*(a.shape or ())[:-1], n)
    return _call(d, "MatMulNBits", [a, b, scales, zero, None, bias], "float32", shape, **attrs)


def rows_of_few_bits(d: ModelDraft) -> DraftTensor:
    """Rows of a table of 4 or 8 bits in blocks."""
    bits, block = d.among(4, 8), d.among(16, 32)
    rows, blocks = d.between(1, 6), d.between(1, 3)
    depth = blocks * block
    data = d.fresh("uint8", (rows, depth * bits // 8), ValueDomain(0, 255), constant=0.95)
    scales = d.constant(d.array_rng.standard_normal((rows, blocks)), "float32", plain=True)
    zero = None
    if d.chance(0.5):
        zero = d.fresh("uint8", (rows, -(-blocks * bits // 8)), ValueDomain(0, 255), constant=1.0)
    shape = d.some_shape(low=1, high=2)
    indices = d.fresh(d.among("int32", "int64"), shape, ValueDomain(0, rows - 1), constant=0.3)
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": d.among(1, -1)}
    return _call(d, "GatherBlockQuantized", [data, indices, scales, zero], "float32", (*shape, depth), **attrs)


def table_weights(d: ModelDraft) -> DraftTensor:
    """A product with a weight of places in a table."""
    depth, n, block = d.among(16, 32, 48), d.among(1, 3, 8), 16
    a = d.pick("float32", lambda s: len(s) == 2 and s[-1] == depth and s[0] > 0, lambda: (d.between(1, 4), depth))
    b = d.fresh("uint8", (n * depth // 2,), ValueDomain(0, 255), constant=1.0)
    scales = d.constant(abs(d.array_rng.standard_normal(n * depth // block)) + 0.01, "float32", plain=True)
    attrs = {"K": depth, "N": n, "block_size": block, "quant_type": d.between(0, 1)}
    return _call(d, "MatMulBnb4", [a, b, scales], "float32", ((a.shape or ())[0], n), **attrs)


CONTRIBUTIONS: Recipes = {
    **{op: partial(curve, op) for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")},
    **{op: partial(skip_norm, op) for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    **ATTENTIONS,
    **BYTE_OPS,
    "EmbedLayerNormalization": embeddings,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "FusedMatMul of batches": fused_matmul_of_batches,
    "GatherBlockQuantized": rows_of_few_bits,
    "MatMulBnb4": table_weights,
    "MatMulNBits": few_bits,
    "SimplifiedLayerNormalization": simplified_norm,
}
"""Recipes by op, or by op and form."""

"""Normalisations over the last axis, with the residual and the embeddings that are added before."""

from __future__ import annotations

from collections.abc import Sequence

from .call import FLOATS, ContribCall, Unsupported, contrib_op, standard_op

_SKIP_TYPES = {"T": "float float16 bfloat16", "U": "float"}


@contrib_op(
    "SkipLayerNormalization(input:T, skip:T, gamma:T, beta?:T, bias?:T)"
    " -> output:T, mean?:U, inv_std_var?:U, input_skip_bias_sum?:T",
    _SKIP_TYPES,
    {"epsilon": 1e-12},
)
def _skip_layer_normalization(call: ContribCall) -> Sequence[str]:
    total = call.sum(call.operand("input"), call.operand("skip"), call.operand("bias"))
    operands = [name for name in (total, call.operand("gamma"), call.operand("beta")) if name]
    statistics = call.wants("mean") or call.wants("inv_std_var")
    count = 3 if statistics else 1
    results = call.emit_all("LayerNormalization", operands, count, axis=-1, epsilon=call.attr("epsilon"))
    return [*[*results, "", ""][:3], total]


@contrib_op(
    "SkipSimplifiedLayerNormalization(input:T, skip:T, gamma:T, bias?:T)"
    " -> output:T, mean?:U, inv_std_var?:U, input_skip_bias_sum?:T",
    _SKIP_TYPES,
    {"epsilon": 1e-12},
)
def _skip_simplified_layer_normalization(call: ContribCall) -> Sequence[str]:
    total = call.sum(call.operand("input"), call.operand("skip"), call.operand("bias"))
    epsilon = call.attr("epsilon")
    inverse = _inverse_deviation(call, total, -1, epsilon) if call.wants("inv_std_var") else ""
    return call.emit("RMSNormalization", total, call.operand("gamma"), axis=-1, epsilon=epsilon), "", inverse, total


@contrib_op(
    "SimplifiedLayerNormalization(X:T, scale:V) -> Y:V, inv_std_var?:U",
    {"T": FLOATS, "V": FLOATS, "U": "float double"},
    {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    domain="",
)
def _simplified_layer_normalization(call: ContribCall) -> Sequence[str]:
    """RMSNormalization before ONNX had it: exporters wrote it in ONNX's own domain."""
    x, scale = call.operand("X"), call.operand("scale")
    axis, epsilon = call.attr("axis"), call.attr("epsilon")
    inverse = _inverse_deviation(call, x, axis, epsilon) if call.wants("inv_std_var") else ""
    x = call.cast(x, call.kind(scale).dtype)
    return call.emit("RMSNormalization", x, scale, axis=axis, epsilon=epsilon), inverse


def _inverse_deviation(call: ContribCall, x: str, axis: int, epsilon: float) -> str:
    """1 / sqrt(mean(x * x) + epsilon), float32."""
    rank = len(call.shape(x))
    x = call.cast(x, "float32")
    axes = call.constant(range(axis % rank, rank), "int64")
    mean = call.emit("ReduceMean", call.emit("Mul", x, x), axes, keepdims=1)
    return call.emit("Reciprocal", call.emit("Sqrt", call.sum(mean, call.constant(epsilon, "float32"))))


@contrib_op(
    "EmbedLayerNormalization(input_ids:T1, segment_ids?:T1, word_embedding:T, position_embedding:T,"
    " segment_embedding?:T, gamma:T, beta:T, mask?:T1, position_ids?:T1)"
    " -> output:T, mask_index?:T1, embedding_sum?:T",
    {"T1": "int32", "T": "float float16"},
    {"epsilon": 1e-12, "mask_index_type": 0},
)
def _embed_layer_normalization(call: ContribCall) -> Sequence[str]:
    """The sum of a word's embeddings, of itself, its position and its segment, normalised; and the lengths by mask."""
    ids, mask = call.operand("input_ids"), call.operand("mask")
    batch, length = call.shape(ids)
    words = call.emit("Gather", call.operand("word_embedding"), ids)
    if call.operand("position_ids"):
        positions = call.emit("Gather", call.operand("position_embedding"), call.operand("position_ids"))
    else:
        positions = call.slice(call.operand("position_embedding"), 0, 0, length)
    segments = call.operand("segment_ids")
    if segments:
        segments = call.emit("Gather", call.operand("segment_embedding"), segments)
    total = call.sum(words, positions, segments)
    parameters = call.operand("gamma"), call.operand("beta")
    output = call.emit("LayerNormalization", total, *parameters, axis=-1, epsilon=call.attr("epsilon"))
    if not call.wants("mask_index"):
        return output, "", total
    if not mask:
        return output, call.constant([0] * batch, "int32"), total
    return output, call.emit("ReduceSum", mask, call.constant([1], "int64"), keepdims=0), total


@standard_op("BatchNormalization")
def _batch_normalization(call: ContribCall) -> Sequence[str]:
    """That of training, by the moments of the batch; those that run on move towards them."""
    x, rank = call.operand("X"), len(call.shape(call.operand("X")))
    if not call.attr("training_mode") or rank < 2 or 0 in call.shape(x):
        raise Unsupported("moments that are given")
    dtype = call.kind(x).dtype
    wide = "float64" if dtype == "float64" else "float32"
    axes = call.constant([axis for axis in range(rank) if axis != 1], "int64")
    x = call.cast(x, wide)
    mean = call.emit("ReduceMean", x, axes, keepdims=1)
    centred = call.emit("Sub", x, mean)
    variance = call.emit("ReduceMean", call.emit("Mul", centred, centred), axes, keepdims=1)
    places = (-1, *(1,) * (rank - 2))
    scale, bias = (call.reshape(call.cast(call.operand(name), wide), *places) for name in ("scale", "B"))
    deviation = call.emit("Sqrt", call.emit("Add", variance, call.constant(call.attr("epsilon"), wide)))
    y = call.emit("Add", call.emit("Div", call.emit("Mul", scale, centred), deviation), bias)
    moments = [_move(call, f"input_{name}", moment) for name, moment in (("mean", mean), ("var", variance))]
    return [call.cast(y, dtype), *moments]


def _move(call: ContribCall, parameter: str, moment: str) -> str:
    """A moment that runs on, moved towards that of the batch."""
    given, momentum = call.operand(parameter), call.attr("momentum")
    dtype, wide = call.kind(given).dtype, call.kind(moment).dtype
    old = call.emit("Mul", call.cast(given, wide), call.constant(momentum, wide))
    new = call.emit("Mul", call.reshape(moment, -1), call.constant(1 - momentum, wide))
    return call.cast(call.emit("Add", old, new), dtype)

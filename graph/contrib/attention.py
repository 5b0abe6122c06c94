"""Attention: over a packed projection, over given heads, and with fewer heads of keys than of queries.

Everywhere: B batch, S length of the queries, P length of the past, T length of what is attended to, N heads of
queries, K heads of keys and values, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ..evaluation.causal import CAUSAL
from ..tolerance import MODERATE
from .cache_quantisation import CacheQuantisation
from .call import ContribCall, Unsupported, contrib_op
from .rotary import rotate

_T = "float float16 bfloat16"
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores come of queries and keys: factor, cap (0: none), and what is added before the softmax."""

    scale: float
    cap: float = 0.0
    biases: tuple[str, ...] = ()  # each broadcasts to [B, N, S, T]
    past: int | None = None  # keys before the first query, where a query sees no key after it
    sink: str = ""  # [N]: a score more, of nothing
    dtype: str = ""  # of the softmax, if another


@dataclass(frozen=True, slots=True)
class ScoreStages:
    """Scores on their way to weights, each `[B, N, S, T]`."""

    product: str  # with the factor
    capped: str
    biased: str
    weights: str


def attend(call: ContribCall, q: str, k: str, v: str, scores: Scores) -> tuple[str, ScoreStages]:
    """softmax(scores) @ v: the result `[B, N, S, D]`, and the scores.

    q is `[B, N, S, D]`, k and v `[B, K, T, D]`: each head of keys serves N / K of queries.
    """
    batch, heads, length, size = call.shape(q)
    kv_heads, total = call.shape(k)[1:3]
    groups = heads // kv_heads
    turned = call.emit("Transpose", k, perm=[0, 1, 3, 2])
    if groups > 1:  # [B, K, N / K, S, D] times [B, K, 1, D, T]
        q, turned = call.reshape(q, batch, kv_heads, groups, length, size), call.unsqueeze(turned, 2)
    is_small = scores.scale < MODERATE[0]  # ONNX multiplies queries and keys by its root
    if is_small:
        q = call.emit("Mul", q, call.like(q, scores.scale))
    product = call.emit("MatMul", q, turned)
    if not is_small:
        product = call.emit("Mul", product, call.like(product, scores.scale))
    if groups > 1:
        product = call.reshape(product, batch, heads, length, total)
    capped = product
    if scores.cap:
        cap = call.like(product, scores.cap)
        capped = call.emit("Mul", call.emit("Tanh", call.emit("Div", product, cap)), cap)
    biased = call.sum(capped, *scores.biases)
    if scores.past is not None:
        biased = call.emit_own(CAUSAL, (biased,), call.kind(biased), past=scores.past)
    weights = _softmax(call, call.cast(biased, scores.dtype) if scores.dtype else biased, scores.sink)
    weights = call.cast(weights, call.kind(biased).dtype)
    shares = call.cast(weights, call.kind(v).dtype)
    if groups > 1:
        shares, v = call.reshape(shares, batch, kv_heads, groups, length, total), call.unsqueeze(v, 2)
    result = call.emit("MatMul", shares, v)
    if groups > 1:
        result = call.reshape(result, batch, heads, length, call.shape(v)[-1])
    return result, ScoreStages(product, capped, biased, weights)


def _softmax(call: ContribCall, x: str, sink: str) -> str:
    if not sink:
        return call.emit("Softmax", x, axis=-1)
    batch, heads, length, total = call.shape(x)
    extra = call.reshape(sink, 1, heads, 1, 1)
    extra = call.emit("Expand", extra, call.constant((batch, heads, length, 1), "int64"))
    both = call.emit("Softmax", call.emit("Concat", x, extra, axis=-1), axis=-1)
    return call.slice(both, 3, 0, total)


def split_heads(call: ContribCall, name: str, heads: int) -> str:
    """`[B, S, N * D]` as `[B, N, S, D]`."""
    batch, length, hidden = call.shape(name)
    return call.emit("Transpose", call.reshape(name, batch, length, heads, hidden // heads), perm=[0, 2, 1, 3])


def merge_heads(call: ContribCall, name: str) -> str:
    """`[B, N, S, D]` as `[B, S, N * D]`."""
    batch, heads, length, size = call.shape(name)
    return call.reshape(call.emit("Transpose", name, perm=[0, 2, 1, 3]), batch, length, heads * size)


def _scale(call: ContribCall, size: int) -> float:
    return float(call.attr("scale") or 1 / sqrt(size))


def _causal_bias(call: ContribCall, dtype: str, length: int, total: int, past: int) -> str:
    """0 where a query may look, the lowest number at keys after it. `[S, T]`.

    The first query sees one new key, and the last one all, however many there are, as in ONNX Runtime.
    """
    later = np.arange(total) > np.arange(length)[:, None] + past
    later[-1:] = False
    return call.constant(np.where(later, _least(dtype), 0), dtype)


def _least(dtype: str) -> float:
    return float(np.finfo(np.float16).min) if dtype == "float16" else _LOWEST


def _mask_bias(call: ContribCall, mask: str, dtype: str, length: int, total: int) -> str:
    """What a mask of keys adds to scores, in one of the forms that it may have."""
    shape = call.shape(mask)
    if len(shape) == 1:
        mask, shape = _mask_of_lengths(call, mask, total), (0, total)
    axes = {2: (1, 2), 3: (1,)}.get(len(shape), ())
    if axes:
        mask = call.unsqueeze(mask, *axes)
    if len(shape) == 4:  # of the longest sequence there may be: the rows of these queries
        mask = call.slice(call.slice(mask, 2, total - length, total), 3, 0, total)
    hidden = call.emit("Equal", mask, call.constant(0, "int32"))
    filler = call.constant(max(call.attr("mask_filter_value"), _least(dtype)), dtype)
    return call.emit("Where", hidden, filler, call.constant(0, dtype))


def _mask_of_lengths(call: ContribCall, lengths: str, total: int) -> str:
    """`[B, T]` with 1 where a key is: before the end of its sequence, and not before its start if that is given too."""
    (count,), batch = call.shape(lengths), call.shape(call.operand("input") or call.operand("query"))[0]
    positions = call.constant(range(total), "int32")
    ends = call.unsqueeze(call.slice(lengths, 0, 0, batch), 1)
    inside = call.emit("Less", positions, ends)
    if count == 2 * batch:
        starts = call.unsqueeze(call.slice(lengths, 0, batch, count), 1)
        inside = call.emit("And", inside, call.emit("GreaterOrEqual", positions, starts))
    return call.cast(inside, "int32")


def with_past(call: ContribCall, past: str, present: str) -> str:
    """Keys or values after those of the past, along the length."""
    return call.emit("Concat", past, present, axis=2) if past else present


ATTENTION = {
    "num_heads": int, "scale": 0.0, "unidirectional": 0, "mask_filter_value": -10000.0, "do_rotary": 0,
    "past_present_share_buffer": 0,
}  # fmt: skip


@contrib_op(
    "Attention(input:T, weights:T, bias?:T, mask_index?:M, past?:T, attention_bias?:T, past_sequence_length?:M)"
    " -> output:T, present?:T",
    {"T": _T, "M": "int32"},
    {**ATTENTION, "qkv_hidden_sizes": list[int], "rotary_embedding_dim": 0},
)
def _attention(call: ContribCall) -> Sequence[str]:
    """Projection of queries, keys and values by one matrix, then attention."""
    projected = call.sum(call.emit("MatMul", call.operand("input"), call.operand("weights")), call.operand("bias"))
    return attend_to_projection(call, projected, call.attr("qkv_hidden_sizes"))


def attend_to_projection(call: ContribCall, projected: str, sizes: Sequence[int] | None = None) -> Sequence[str]:
    """Attention over queries, keys and values side by side, `[B, S, hidden sizes]`: the result, and keys and values."""
    if call.attr("do_rotary") or call.attr("past_present_share_buffer"):
        raise Unsupported("rotary embeddings and buffers that are shared with the past")
    heads, hidden = call.attr("num_heads"), call.shape(projected)[2]
    parts = _parts(call, projected, sizes or (hidden // 3,) * 3)
    q, k, v = (split_heads(call, part, heads) for part in parts)
    past = call.operand("past")
    if past:
        keys, values = call.emit_all("Split", [past], 2, axis=0, num_outputs=2)
        axis = call.constant([0], "int64")
        k = with_past(call, call.emit("Squeeze", keys, axis), k)
        v = with_past(call, call.emit("Squeeze", values, axis), v)
    present = ""
    if call.wants("present"):
        present = call.emit("Concat", call.unsqueeze(k, 0), call.unsqueeze(v, 0), axis=0)
    biases = _biases(call, call.operand("mask_index"), q, k, call.shape(past)[3] if past else 0)
    result, _ = attend(call, q, k, v, Scores(_scale(call, call.shape(q)[3]), biases=biases))
    return merge_heads(call, result), present


def _parts(call: ContribCall, name: str, sizes: Sequence[int]) -> list[str]:
    """Parts of the last axis."""
    return call.emit_all("Split", [name, call.constant(sizes, "int64")], len(sizes), axis=-1)


def _biases(call: ContribCall, mask: str, q: str, k: str, past: int) -> tuple[str, ...]:
    """What is added to scores: by order, by mask, and as given."""
    dtype, length, total = call.kind(q).dtype, call.shape(q)[2], call.shape(k)[2]
    causal = _causal_bias(call, dtype, length, total, past) if call.attr("unidirectional") else ""
    masked = _mask_bias(call, mask, dtype, length, total) if mask else ""
    return tuple(filter(None, (masked, call.operand("attention_bias"), causal)))


@contrib_op(
    "MultiHeadAttention(query:T, key?:T, value?:T, bias?:T, key_padding_mask?:M, attention_bias?:T, past_key?:T,"
    " past_value?:T, past_sequence_length?:M, cache_indirection?:M)"
    " -> output:T, present_key?:T, present_value?:T, qk?:QK",
    {"T": _T, "QK": _T, "M": "int32"},
    {"num_heads": int, "scale": 0.0, "unidirectional": 0, "mask_filter_value": -10000.0},
)
def _multi_head_attention(call: ContribCall) -> Sequence[str]:
    """Attention over projected queries, keys and values, each `[B, S, N * D]` or packed together."""
    if call.operand("past_sequence_length") or call.operand("cache_indirection"):
        raise Unsupported("a past in buffers of beam search")
    q, k, v = _projections(call)
    new_keys = call.shape(k)[2]
    k, v = with_past(call, call.operand("past_key"), k), with_past(call, call.operand("past_value"), v)
    biases = _biases(call, call.operand("key_padding_mask"), q, k, call.shape(k)[2] - new_keys)
    result, scores = attend(call, q, k, v, Scores(_scale(call, call.shape(q)[3]), biases=biases))
    return merge_heads(call, result), k, v, scores.biased


def _projections(call: ContribCall) -> tuple[str, str, str]:
    """Queries, keys and values by heads, with their biases."""
    heads = call.attr("num_heads")
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if not key:  # [B, S, N, 3, D]
        turned = call.emit("Transpose", query, perm=[3, 0, 2, 1, 4])
        parts = call.emit_all("Split", [turned], 3, axis=0, num_outputs=3)
        q, k, v = (call.emit("Squeeze", part, call.constant([0], "int64")) for part in parts)
    elif not value:  # [B, T, N, 2, D]
        turned = call.emit("Transpose", key, perm=[3, 0, 2, 1, 4])
        parts = call.emit_all("Split", [turned], 2, axis=0, num_outputs=2)
        k, v = (call.emit("Squeeze", part, call.constant([0], "int64")) for part in parts)
        q = split_heads(call, query, heads)
    else:
        q = split_heads(call, query, heads)
        k, v = (name if len(call.shape(name)) == 4 else split_heads(call, name, heads) for name in (key, value))
    bias = call.operand("bias")
    if not bias:
        return q, k, v
    sizes = [heads * call.shape(name)[3] for name in (q, k, v)]
    parts = _parts(call, bias, sizes)
    biased = (
        call.sum(name, call.reshape(part, heads, 1, call.shape(name)[3]))
        for name, part in zip((q, k, v), parts, strict=True)
    )
    q, k, v = biased
    return q, k, v


_GROUP_QUERY = {
    "num_heads": int, "kv_num_heads": int, "scale": 0.0, "softcap": 0.0, "local_window_size": -1, "do_rotary": 0,
    "rotary_interleaved": 0, "smooth_softmax": 0, "qk_output": 0, "causal": 1, "qk_norm_epsilon": 1e-6,
    "kv_cache_bit_width": 0, "sliding_window_cache": 0, "k_quant_type": "NONE", "v_quant_type": "NONE",
}  # fmt: skip


@contrib_op(
    "GroupQueryAttention(query:T, key?:T, value?:T, past_key?:C, past_value?:C, seqlens_k:M, total_sequence_length:M,"
    " cos_cache?:T, sin_cache?:T, position_ids?:int64, attention_bias?:T, head_sink?:T, k_scale?:float,"
    " v_scale?:float, q_norm_weight?:T, k_norm_weight?:T)"
    " -> output:T, present_key?:C, present_value?:C, output_qk?:T",
    {"T": _T, "C": f"{_T} uint8 int8", "M": "int32"},
    _GROUP_QUERY,
)
def _group_query_attention(call: ContribCall) -> Sequence[str]:
    """Causal attention with a cache, fewer heads of keys than of queries, and rotary embeddings.

    `seqlens_k` has the last position of each sequence, padding apart; a cache may be longer than what is in it.
    """
    if call.attr("sliding_window_cache"):
        raise Unsupported("a cache of a window's size")
    heads, kv_heads = call.count("num_heads"), call.count("kv_num_heads")
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if not key:
        size = call.shape(query)[2] // (heads + 2 * kv_heads)
        query, key, value = _parts(call, query, (heads * size, kv_heads * size, kv_heads * size))
    q, k, v = (split_heads(call, name, n) for name, n in ((query, heads), (key, kv_heads), (value, kv_heads)))
    q, k = (_normalised(call, name, f"{which}_norm_weight") for which, name in (("q", q), ("k", k)))
    cache = _Cache.of(call, k)
    if call.attr("do_rotary"):
        positions = call.operand("position_ids") or cache.positions(call)
        tables = call.operand("cos_cache"), call.operand("sin_cache")
        interleaved = call.attr("rotary_interleaved")
        q, k = (rotate(call, name, positions, *tables, interleaved) for name in (q, k))
    forms = [CacheQuantisation.of(call, which, kv_heads, call.shape(k)[3]) for which in "kv"]
    keys, values = (
        cache.extended(call, f"past_{which}", form.write(call, new))
        for which, form, new in zip(("key", "value"), forms, (k, v), strict=True)
    )
    bias = cache.visible(call, call.kind(q).dtype)
    biases = tuple(filter(None, (call.operand("attention_bias"), bias)))
    parts = (call.slice(name, 2, 0, cache.total) if cache.room > cache.total else name for name in (keys, values))
    k, v = (form.read(call, part) for form, part in zip(forms, parts, strict=True))
    scores = Scores(_scale(call, call.shape(q)[3]), call.attr("softcap"), biases, sink=_sink(call, heads))
    result, stages = attend(call, q, k, v, scores)
    shown = stages.weights if call.attr("qk_output") == 2 else stages.biased
    return merge_heads(call, result), keys, values, shown


def _normalised(call: ContribCall, name: str, parameter: str) -> str:
    weight = call.operand(parameter)
    epsilon = call.attr("qk_norm_epsilon")
    return call.emit("RMSNormalization", name, weight, axis=-1, epsilon=epsilon) if weight else name


def _sink(call: ContribCall, heads: int) -> str:
    if call.operand("head_sink"):
        return call.operand("head_sink")
    return call.constant([0] * heads, call.kind(call.operand("query")).dtype) if call.attr("smooth_softmax") else ""


def _pad_length(call: ContribCall, name: str, count: int) -> str:
    """Keys or values with `count` zeros after them."""
    return call.emit("Pad", name, call.constant((0, 0, 0, 0, 0, 0, count, 0), "int64")) if count else name


@dataclass(frozen=True, slots=True)
class _Cache:
    """A cache of keys and values: the lengths of new ones, of all that is attended to, and the room in it."""

    batch: int
    length: int
    total: int
    past: int  # room in the past
    lasts: str  # [B]: the last position of each sequence

    @property
    def room(self) -> int:
        return max(self.past, self.total)

    @property
    def is_prompt(self) -> bool:
        """Whether nothing was there before."""
        return self.length == self.total

    @property
    def is_even(self) -> bool:
        """Whether all sequences have the same length, as a single one has."""
        return self.batch == 1

    @classmethod
    def of(cls, call: ContribCall, k: str) -> _Cache:
        batch, _, length, _ = call.shape(k)
        past = call.operand("past_key")
        room = call.shape(past)[2] if past else 0
        return cls(batch, length, call.number("total_sequence_length"), room, call.operand("seqlens_k"))

    def firsts(self, call: ContribCall) -> str:
        """`[B, 1]`: how many positions each sequence had before."""
        lasts = call.cast(call.reshape(self.lasts, self.batch, 1), "int64")
        return call.emit("Sub", lasts, call.constant(self.length - 1, "int64"))

    def positions(self, call: ContribCall) -> str:
        """`[B, S]`: the positions of the new keys."""
        steps = np.arange(self.length)[None]
        if self.is_prompt or self.is_even:
            return call.constant(np.repeat(steps + self.total - self.length, self.batch, 0), "int64")
        return call.emit("Add", self.firsts(call), call.constant(steps, "int64"))

    def extended(self, call: ContribCall, past_name: str, new: str) -> str:
        """The cache with the new keys or values, `[B, K, room, D]`."""
        past = call.operand(past_name)
        if not past:
            return new
        if not (self.is_even or self.is_prompt):
            return self._scattered(call, past, new)
        before = self.total - self.length
        parts = [call.slice(past, 2, 0, before)] if before else []
        parts.append(new)
        extended = call.emit("Concat", *parts, axis=2) if len(parts) > 1 else new
        return _pad_length(call, extended, self.room - self.total)

    def _scattered(self, call: ContribCall, past: str, new: str) -> str:
        """The same where each sequence has its own length: position j of the new ones is `new[j - first]`."""
        past = _pad_length(call, past, self.room - self.past)
        steps = call.emit("Sub", call.constant(np.arange(self.room)[None], "int64"), self.firsts(call))
        limits = (call.constant(limit, "int64") for limit in (0, self.length - 1))
        heads, size = call.shape(new)[1], call.shape(new)[3]
        shape = call.constant((self.batch, heads, self.room, size), "int64")
        indices = call.emit("Expand", call.unsqueeze(call.emit("Clip", steps, *limits), 1, 3), shape)
        is_old, is_within = (
            call.unsqueeze(call.emit("Less", steps, call.constant(limit, "int64")), 1, 3) for limit in (0, self.length)
        )
        moved = call.emit("GatherElements", new, indices, axis=2)
        rest = call.emit("Where", is_within, moved, call.like(new, 0))
        return call.emit("Where", is_old, past, rest)

    def visible(self, call: ContribCall, dtype: str) -> str:
        """0 where a query may look, the lowest number elsewhere: `[S, T]`, or `[B, 1, S, T]` by sequence."""
        window, causal = call.attr("local_window_size"), call.attr("causal")
        keys, steps = np.arange(self.total), np.arange(self.length)[:, None]
        if self.is_even or self.is_prompt:
            distance = steps + self.total - self.length - keys
            hidden = (distance < 0 if causal else np.zeros_like(distance, bool)) | (0 <= window <= distance)
            return call.constant(np.where(hidden, _least(dtype), 0), dtype) if hidden.any() else ""
        firsts = call.unsqueeze(self.firsts(call), 1, 2)
        distances = call.emit("Add", firsts, call.constant(steps - keys, "int64"))
        hidden = call.emit("Less", distances, call.constant(0, "int64"))
        if window >= 0:
            far = call.emit("GreaterOrEqual", distances, call.constant(window, "int64"))
            hidden = call.emit("Or", hidden, far)
        return call.emit("Where", hidden, call.constant(_least(dtype), dtype), call.constant(0, dtype))

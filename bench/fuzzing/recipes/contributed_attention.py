"""Attention as ONNX Runtime has it: over a projection, over given heads, over a cache; and rotary embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..draft import CONTRIBUTED, DraftResult, DraftTensor, ModelDraft, Shape
from ..values import ValueDomain
from .recipe import Recipes


def _floats(d: ModelDraft, *shape: int, constant: float = 0.1) -> DraftTensor:
    return d.fresh("float32", shape, constant=constant)


def _mask(d: ModelDraft, *shape: int) -> DraftTensor:
    return d.fresh("int32", shape, ValueDomain(0, 1), constant=0.2)


def _key_mask(d: ModelDraft, batch: int, length: int, total: int) -> DraftTensor:
    """A mask of keys, in each form: lengths, rows, or rows for each query."""
    match d.between(0, 2):
        case 0:
            return d.fresh("int32", (batch,), ValueDomain(1, total), constant=0.2)
        case 1:
            return _mask(d, batch, total)
    return _mask(d, batch, length, total)


def projected(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """Attention with its projection."""
    batch, length, heads, size = d.between(1, 2), d.between(1, 5), d.among(1, 2, 3), d.among(1, 2, 4, 8)
    hidden, width = heads * size, d.between(1, 9)
    x, weights = _floats(d, batch, length, width), _floats(d, width, 3 * hidden, constant=0.9)
    bias = _floats(d, 3 * hidden, constant=0.9)
    past_length = d.between(1, 4) if d.chance(0.3) else 0
    total = past_length + length
    past = _floats(d, 2, batch, heads, past_length, size) if past_length else None
    mask = _key_mask(d, batch, length, total) if d.chance(0.5) else None
    added = _floats(d, d.among(1, batch), heads, length, total) if not past and d.chance(0.3) else None
    results: list[DraftResult] = [("float32", (batch, length, hidden))]
    if past:
        results.append(("float32", (2, batch, heads, total, size)))
    return d.call(
        CONTRIBUTED, "Attention", [x, weights, bias, mask, past, added], *results, num_heads=heads,
        unidirectional=d.among(None, 0, 1), scale=d.number(0.5) if d.chance(0.3) else None,
        mask_filter_value=d.among(None, None, -3.0),
    )  # fmt: skip


def by_heads(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """MultiHeadAttention of three operands, with biases, masks and a past."""
    batch, heads, size = d.between(1, 2), d.among(1, 2, 3), d.among(1, 2, 4, 8)
    length, keys = d.between(1, 4), d.between(1, 5)
    has_past = d.chance(0.3)
    keys = length if has_past else keys
    wide = size if has_past else d.among(size, size, 3)
    q = _floats(d, batch, length, heads * size)
    k, v = _floats(d, batch, keys, heads * size), _floats(d, batch, keys, heads * wide)
    bias = _floats(d, heads * (2 * size + wide), constant=0.9) if d.chance(0.4) else None
    before = d.between(1, 3) if has_past else 0
    total = before + keys
    past = [_floats(d, batch, heads, before, size) for _ in range(2)] if has_past else []
    mask = None
    if d.chance(0.4):
        mask = _mask(d, batch, total) if d.chance(0.6) else d.fresh("int32", (batch,), ValueDomain(1, total))
    added = _floats(d, d.among(1, batch), d.among(1, heads), length, total) if d.chance(0.3) else None
    results: list[DraftResult] = [("float32", (batch, length, heads * wide))]
    if has_past:
        results += [("float32", (batch, heads, total, size))] * 2
    return d.call(
        CONTRIBUTED, "MultiHeadAttention", [q, k, v, bias, mask, added, *past], *results, num_heads=heads,
        unidirectional=d.among(None, 0, 1), scale=d.number(0.5) if d.chance(0.3) else None,
        mask_filter_value=d.among(None, None, -3.0),
    )  # fmt: skip


def by_groups(d: ModelDraft) -> tuple[DraftTensor, ...]:
    """GroupQueryAttention: a prompt, or new keys behind those of a cache, which may have more room."""
    batch, kv_heads, size = d.between(1, 2), d.among(1, 2), d.among(8, 16)
    heads = kv_heads * d.among(1, 2, 3)
    is_prompt = d.chance(0.4)
    length = d.between(1, 5) if is_prompt else 1 if batch > 1 else d.between(1, 3)
    before = 0 if is_prompt else d.between(1, 6)
    total = before + length
    lasts = [total - 1] * batch
    if not is_prompt and batch > 1:  # of which one is shorter
        lasts[1] = d.between(0, total - 1)
    q, k, v = _group_operands(d, batch, length, (heads, kv_heads, size))
    room = (0 if is_prompt else before) + d.among(0, 0, 3)
    past = [_floats(d, batch, kv_heads, room, size) for _ in range(2)] if room or d.chance(0.5) else [None, None]
    counts = [d.constant(np.asarray(n, np.int32), plain=True) for n in (lasts, [total])]
    turned = size == 16 and d.chance(0.5)
    tables = [_floats(d, total + 2, size // 2, constant=0.9) for _ in range(2)] if turned else []
    cache: Shape = (batch, kv_heads, max(room, total), size)
    results = [("float32", (batch, length, heads * size)), ("float32", cache), ("float32", cache)]
    attrs: dict[str, Any] = {"do_rotary": 1, "rotary_interleaved": d.among(None, 0, 1)} if turned else {}
    return d.call(
        CONTRIBUTED, "GroupQueryAttention", [q, k, v, *past, *counts, *tables], *results, num_heads=heads,
        kv_num_heads=kv_heads, scale=d.number(0.5) if d.chance(0.3) else None, softcap=d.among(None, None, 2.0),
        local_window_size=d.among(None, None, 1, 3), smooth_softmax=d.among(None, None, 1), **attrs,
    )  # fmt: skip


def _group_operands(
    d: ModelDraft, batch: int, length: int, heads: tuple[int, int, int]
) -> tuple[DraftTensor, DraftTensor | None, DraftTensor | None]:
    """Queries, keys and values, or all side by side."""
    count, kv_count, size = heads
    if d.chance(0.3):
        return _floats(d, batch, length, (count + 2 * kv_count) * size), None, None
    k, v = (_floats(d, batch, length, kv_count * size) for _ in range(2))
    return _floats(d, batch, length, count * size), k, v


def rotary(d: ModelDraft) -> DraftTensor:
    """Pairs of elements turned, of all of a head or of its first ones."""
    batch, heads, length, half = d.between(1, 2), d.between(1, 3), d.between(1, 4), d.among(1, 2, 4)
    attrs: dict[str, Any] = {"interleaved": d.among(None, 0, 1)}
    size = 2 * half
    if d.chance(0.3):
        size += d.among(2, 4)
        attrs |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}
    shape: Shape = (batch, length, heads * size) if d.chance(0.5) else (batch, heads, length, size)
    x = _floats(d, *shape)
    tables = [_floats(d, length + 3, half, constant=0.9) for _ in range(2)]
    ids = d.fresh("int64", (1,), ValueDomain(0, 3)) if d.chance(0.4) else None
    ids = ids or d.fresh("int64", (batch, length), ValueDomain(0, length + 2))
    return d.call(CONTRIBUTED, "RotaryEmbedding", [x, ids, *tables], ("float32", shape), **attrs)[0]


ATTENTIONS: Recipes = {
    "Attention": projected,
    "GroupQueryAttention": by_groups,
    "MultiHeadAttention": by_heads,
    "RotaryEmbedding": rotary,
}

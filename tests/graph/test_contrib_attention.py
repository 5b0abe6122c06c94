"""Contributed attention and rotary embeddings, beside ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import ModelError

from .contrib_models import agree, contrib_model, run_ours
from .correcting import RNG, normal, run_by_peer


def mask(*shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(np.int32)


def int32s(*values: int) -> Any:
    return np.array(values, np.int32)


PROJECTED = {"input": normal(2, 5, 12), "weights": normal(12, 36), "bias": normal(36)}


@pytest.mark.parametrize(
    ("operands", "attrs"),
    [
        ({}, {}),
        ({}, {"unidirectional": 1, "scale": 0.3}),
        ({"mask_index": int32s(3, 5)}, {}),
        ({"mask_index": int32s(3, 5, 0, 1)}, {}),
        ({"mask_index": mask(2, 5)}, {"mask_filter_value": -3.0}),
        ({"mask_index": mask(2, 5, 5)}, {"unidirectional": 1}),
        ({"attention_bias": normal(1, 3, 5, 5)}, {}),
        ({"weights": normal(12, 30), "bias": normal(30)}, {"qkv_hidden_sizes": [12, 12, 6]}),
    ],
)
def test_attention(operands: dict[str, Any], attrs: dict[str, Any]) -> None:
    agree("Attention", {**PROJECTED, **operands}, ["output"], num_heads=3, **attrs)


def test_attention_to_the_past() -> None:
    operands = {**PROJECTED, "past": normal(2, 2, 3, 4, 4), "mask_index": mask(2, 9)}
    agree("Attention", operands, ["output", "present"], num_heads=3, unidirectional=1)


QUERY, KEY, VALUE = normal(2, 5, 12), normal(2, 7, 12), normal(2, 7, 18)


@pytest.mark.parametrize(
    "operands",
    [
        {},
        {"bias": normal(42)},
        {"value": KEY, "bias": normal(36), "key_padding_mask": mask(2, 7), "attention_bias": normal(2, 1, 5, 7)},
        {"key_padding_mask": int32s(3, 6)},
        {"key": normal(2, 3, 7, 4), "value": normal(2, 3, 7, 4)},
    ],
)
def test_multi_head_attention(operands: dict[str, Any]) -> None:
    given = {"query": QUERY, "key": KEY, "value": VALUE, **operands}
    agree("MultiHeadAttention", given, ["output"], num_heads=3)


@pytest.mark.parametrize("keys", [2, 7])
def test_order_holds_where_there_are_more_or_fewer_keys_than_queries(keys: int) -> None:
    given = {"query": QUERY, "key": normal(2, keys, 12), "value": normal(2, keys, 12)}
    agree("MultiHeadAttention", given, ["output"], num_heads=3, unidirectional=1)


def test_multi_head_attention_to_the_past() -> None:
    past = {"past_key": normal(2, 3, 4, 4), "past_value": normal(2, 3, 4, 4)}
    operands = {"query": QUERY, "key": QUERY, "value": QUERY, **past}
    agree("MultiHeadAttention", operands, ["output", "present_key", "present_value"], num_heads=3, unidirectional=1)


def test_packed_operands_are_those_side_by_side() -> None:
    """ONNX Runtime has no kernels for these on processors."""
    q, k, v = (normal(2, 5, 3, 4) for _ in range(3))
    apart = {name: x.reshape(2, 5, 12) for name, x in (("query", q), ("key", k), ("value", v))}
    [expected] = run_ours(contrib_model("MultiHeadAttention", apart, ["output"], num_heads=3), apart)
    for packed in (
        {"query": np.stack([q, k, v], 3)},
        {"query": apart["query"], "key": np.stack([k, v], 3)},
    ):
        [result] = run_ours(contrib_model("MultiHeadAttention", packed, ["output"], num_heads=3), packed)
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "positions", "half", "attrs"),
    [
        ((2, 5, 24), np.arange(10).reshape(2, 5), 4, {}),
        ((2, 5, 24), np.array([3]), 4, {}),
        ((2, 3, 5, 8), np.array([3]), 2, {"rotary_embedding_dim": 4, "num_heads": 3}),
        ((2, 5, 24), np.array([3]), 2, {"rotary_embedding_dim": 4, "num_heads": 3}),
    ],
)
def test_rotary_embedding(shape: Any, positions: Any, half: int, attrs: dict[str, Any], interleaved: int) -> None:
    operands = {"input": normal(*shape), "position_ids": positions.astype(np.int64)}
    operands |= {"cos_cache": normal(20, half), "sin_cache": normal(20, half)}
    agree("RotaryEmbedding", operands, ["output"], interleaved=interleaved, **attrs)


HEADS, KV_HEADS, SIZE = 4, 2, 16


def cached(lengths: tuple[int, ...], length: int, past: int | None, attrs: dict[str, Any]) -> dict[str, Any]:
    """Operands of new keys of some length, for sequences of these lengths with them."""
    batch = len(lengths)
    operands = {"query": normal(batch, length, HEADS * SIZE)}
    operands |= {name: normal(batch, length, KV_HEADS * SIZE) for name in ("key", "value")}
    if past is not None:
        operands |= {name: normal(batch, KV_HEADS, past, SIZE) for name in ("past_key", "past_value")}
    operands |= {"seqlens_k": int32s(*lengths) - 1, "total_sequence_length": int32s(max(lengths))}
    if attrs.get("do_rotary"):
        operands |= {name: normal(64, SIZE // 2) for name in ("cos_cache", "sin_cache")}
    return operands


def agree_cached(operands: dict[str, Any], **attrs: Any) -> None:
    results = ["output", "present_key", "present_value"]
    constants = ["total_sequence_length"]
    agree("GroupQueryAttention", operands, results, constants, num_heads=HEADS, kv_num_heads=KV_HEADS, **attrs)


@pytest.mark.parametrize(
    ("lengths", "length", "past", "attrs"),
    [
        ((5,), 5, None, {}),
        ((5,), 5, 0, {"do_rotary": 1}),
        ((7,), 1, 6, {"do_rotary": 1, "rotary_interleaved": 1}),
        ((9,), 3, 6, {"do_rotary": 1}),
        ((7,), 1, 16, {"do_rotary": 1}),
        ((7, 4), 1, 6, {"do_rotary": 1}),
        ((7, 4), 1, 16, {"do_rotary": 1}),
        ((7, 4), 1, 6, {"local_window_size": 3}),
        ((5,), 5, 0, {"softcap": 2.0, "local_window_size": 2, "scale": 0.5}),
        ((5,), 5, 0, {"smooth_softmax": 1}),
        ((5,), 5, 0, {"causal": 0}),
    ],
)
def test_group_query_attention(lengths: tuple[int, ...], length: int, past: int | None, attrs: dict[str, Any]) -> None:
    agree_cached(cached(lengths, length, past, attrs), **attrs)


def test_group_query_attention_with_more_operands() -> None:
    prompt = cached((5,), 5, 0, {})
    agree_cached({**prompt, "attention_bias": normal(1, 1, 5, 5)})
    agree_cached({**prompt, "head_sink": normal(HEADS)})
    turned = cached((5,), 5, 0, {"do_rotary": 1})
    agree_cached({**turned, "position_ids": np.arange(2, 7)[None]}, do_rotary=1)
    packed = {name: array for name, array in turned.items() if name not in ("key", "value")}
    agree_cached({**packed, "query": normal(1, 5, (HEADS + 2 * KV_HEADS) * SIZE)}, do_rotary=1)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("lengths", "length"), [((7,), 1), ((9, 8), 1), ((11,), 3), ((8, 8), 8)])
def test_caches_of_few_bits(lengths: tuple[int, ...], length: int, bits: int, kind: str) -> None:
    operands = cached(lengths, length, 8, {"do_rotary": 1})
    shape, dtype = (len(lengths), KV_HEADS, 8, SIZE * bits // 8), np.uint8 if bits == 4 else np.int8
    operands |= {name: RNG.integers(0, 100, shape).astype(dtype) for name in ("past_key", "past_value")}
    scales = RNG.random((2, KV_HEADS * SIZE if kind == "PER_CHANNEL" else 1)).astype(np.float32) + np.float32(0.5)
    operands |= {
        name: row * (0.4 if bits == 4 else 0.03) for name, row in zip(("k_scale", "v_scale"), scales, strict=True)
    }
    agree_cached(operands, do_rotary=1, kv_cache_bit_width=bits, k_quant_type=kind, v_quant_type=kind)


@pytest.mark.parametrize(
    ("attrs", "fault"),
    [
        ({"k_quant_type": "PER_TENSOR"}, "k_quant_type PER_TENSOR and no scale"),
        ({"sliding_window_cache": 1}, "a cache of a window's size"),
        ({"kv_num_heads": 0}, "kv_num_heads of 0"),
    ],
)
def test_caches_that_are_refused(attrs: dict[str, Any], fault: str) -> None:
    operands = cached((7,), 1, 8, {})
    model = contrib_model(
        "GroupQueryAttention", operands, ["output"], ["total_sequence_length"],
        **{"num_heads": HEADS, "kv_num_heads": KV_HEADS, **attrs},
    )  # fmt: skip
    with pytest.raises(ModelError, match=fault):
        run_ours(model, operands)


def test_rows_of_padding_are_the_only_ones_that_differ() -> None:
    """Behind the end of a shorter prompt ONNX Runtime attends to nothing."""
    operands = cached((5, 3), 5, 0, {"do_rotary": 1})
    attrs = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
    constants = ["total_sequence_length"]
    model = contrib_model(
        "GroupQueryAttention", operands, ["output", "present_key", "present_value"], constants, **attrs
    )
    feeds = {value.name: operands[value.name] for value in model.graph.input}
    (ours, our_key, _), (theirs, their_key, _) = run_ours(model, operands), run_by_peer(model, feeds)
    np.testing.assert_allclose(our_key, their_key, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours[1, :3], theirs[1, :3], rtol=1e-4, atol=1e-5)


def test_keys_and_queries_are_normalised_by_head() -> None:
    """ONNX Runtime has this on GPUs alone."""
    operands = cached((5,), 5, 0, {})
    scale = {name: normal(SIZE) for name in ("q_norm_weight", "k_norm_weight")}
    attrs = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}
    constants = ["total_sequence_length"]

    def outputs(operands: dict[str, Any]) -> Any:
        return run_ours(contrib_model("GroupQueryAttention", operands, ["output"], constants, **attrs), operands)[0]

    def by_hand(x: Any, weight: Any) -> Any:
        heads = x.reshape(1, 5, -1, SIZE)
        return (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * weight).reshape(x.shape)

    expected = {
        "query": by_hand(operands["query"], scale["q_norm_weight"]),
        "key": by_hand(operands["key"], scale["k_norm_weight"]),
    }
    np.testing.assert_allclose(outputs({**operands, **scale}), outputs({**operands, **expected}), rtol=1e-4, atol=1e-5)

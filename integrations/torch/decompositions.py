"""What ops of PyTorch are written as where ONNX has no word for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.onnx._internal.exporter import _decomp

from .onnx_writer import registry

aten = torch.ops.aten


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """By op; those that ONNX knows are left as they are."""
    known = set(_decomp.get_onnx_implemented_overloads(registry()))
    table = _decomp.create_onnx_friendly_decomposition_table(known)
    for lift in (aten.lift.default, aten.lift_fresh.default):  # of constants, which are no examples
        table.pop(lift, None)
    own: dict[Any, Callable[..., Any]] = {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,  # noqa: SLF001
        aten.native_layer_norm.default: _layer_norm,
        aten._native_multi_head_attention.default: _multi_head_attention,  # noqa: SLF001
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,  # noqa: SLF001
    }
    return {**table, **own}


def _layer_norm(x: Any, sizes: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """A norm whose weights are of a wider type than what it is of, as in mixed precision."""
    wide = next((one.dtype for one in (weight, bias) if one is not None and one.dtype != x.dtype), None)
    if wide is None:
        return NotImplemented
    result, mean, deviation = aten.native_layer_norm.default(x.to(wide), sizes, weight, bias, eps)
    return result.to(x.dtype), mean, deviation


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Attention with heads of keys and values that several heads of queries may share, and logarithms of its sums."""
    if dropout_p:
        return NotImplemented
    shared = query.size(1) // key.size(1)
    if shared > 1:
        key, value = (operand.repeat_interleave(shared, 1) for operand in (key, value))
    scores = (query * (query.size(-1) ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask.to(scores.dtype)
    result = scores.softmax(-1) @ value
    if attn_mask is not None:  # whose rows of nothing but -inf give zeros, not NaN
        result = result.masked_fill((attn_mask == float("-inf")).all(-1, keepdim=True), 0.0)
    return result.transpose(1, 2).contiguous().transpose(1, 2), scores.logsumexp(-1)


def _multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    features: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    projection_weight: Any,
    projection_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Attention of several heads, as `torch.nn.MultiheadAttention` calls it in inference."""
    operands = (query, key, value)
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        functional.linear(operand, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for operand, weight, bias in zip(operands, weights, biases, strict=True)
    )
    scores = (q * (features // heads) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        if mask_type == 1:  # of keys, by row of the batch
            mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask.bool(), float("-inf"))
    shares = scores.softmax(-1)
    result = functional.linear((shares @ v).transpose(1, 2).flatten(2), projection_weight, projection_bias)
    if not need_weights:
        return result, query.new_empty(0)
    return result, shares.mean(1) if average_weights else shares


def _encoder_layer(
    x: Any,
    features: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    projection_weight: Any,
    projection_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    weight_1: Any,
    bias_1: Any,
    weight_2: Any,
    bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`torch.nn.TransformerEncoderLayer` in inference."""
    act = functional.gelu if use_gelu else functional.relu

    def attend(y: Any) -> Any:
        own = (qkv_weight, qkv_bias, projection_weight, projection_bias)
        return _multi_head_attention(y, y, y, features, heads, *own, mask, need_weights=False, mask_type=mask_type)[0]

    def feed(y: Any) -> Any:
        return functional.linear(act(functional.linear(y, weight_1, bias_1)), weight_2, bias_2)

    def norm_1(y: Any) -> Any:
        return functional.layer_norm(y, (features,), norm_weight_1, norm_bias_1, eps)

    def norm_2(y: Any) -> Any:
        return functional.layer_norm(y, (features,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))

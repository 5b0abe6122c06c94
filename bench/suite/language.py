"""Language models as they are deployed: quantised, with caches of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import ml_dtypes
import numpy as np
from onnx import TensorProto

from .network import BRANCH_GAIN, Network

MICROSOFT = "com.microsoft"

Linear = Callable[[Network, str, int, int, float], str]
"""Products of [.., inputs] with weights, of a given gain."""


def _plain(net: Network, x: str, inputs: int, outputs: int, gain: float) -> str:
    return net.add("MatMul", x, net.weight((inputs, outputs), inputs, gain))


def _dynamic(net: Network, x: str, inputs: int, outputs: int, gain: float) -> str:
    """Activations quantised as they come, weights in advance, as ONNX Runtime's quantiser writes it."""
    rng = np.random.default_rng([inputs, outputs])
    deviation = gain / sqrt(inputs)
    scale = 4 * deviation / 127
    weights = np.clip(np.rint(rng.standard_normal((inputs, outputs)) * deviation / scale), -127, 127).astype(np.int8)
    values, steps, zero = net.add_split("DynamicQuantizeLinear", x, count=3)
    product = net.add("MatMulInteger", values, net.constant(weights), zero, net.constant(np.array(0, np.int8)))
    factor = net.add("Mul", steps, net.scalar(scale))
    return net.add("Mul", net.add("Cast", product, to=TensorProto.FLOAT), factor)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """What layers of a transformer have in common."""

    net: Network
    features: int
    heads: int
    linear: Linear

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.features // self.heads

    def split(self, x: str, tokens: int) -> str:
        """[1, tokens, features] by heads: [1, heads, tokens, size]."""
        return self.net.transpose(self.net.reshape(x, 1, tokens, self.heads, self.size), 0, 2, 1, 3)

    def project(self, x: str, tokens: int) -> str:
        return self.split(self.linear(self.net, x, self.features, self.features, 1.0), tokens)

    def attend(self, query: str, memory: Sequence[str], tokens: int, bias: str | None, scale: float) -> str:
        """Attention and the product after it. Queries, and keys and values in `memory`, are [1, heads, .., size]."""
        net, (keys, values) = self.net, memory
        scores = net.add("MatMul", query, net.transpose(keys, 0, 1, 3, 2))
        scores = net.add("Mul", scores, net.scalar(scale)) if scale != 1.0 else scores
        scores = net.add("Add", scores, bias) if bias else scores
        mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), values)
        mixed = net.reshape(net.transpose(mixed, 0, 2, 1, 3), 1, tokens, self.features)
        return self.linear(net, mixed, self.features, self.features, BRANCH_GAIN)


def minilm_int8() -> bytes:
    """Wang et al., "MiniLM" (2020), six layers of 384 features, quantised dynamically: the mean of its tokens."""
    net, tokens, features = Network("minilm_int8"), 128, 384
    ids, mask = (net.input(name, (1, tokens), TensorProto.INT64) for name in ("ids", "mask"))
    rng = np.random.default_rng(0)
    words = net.add("Gather", net.table(30522, features), ids, axis=0)
    places = net.constant(rng.standard_normal((1, tokens, features), dtype=np.float32))
    x = net.layer_norm(net.add("Add", words, places), features, 1e-12)
    visible = net.add("Cast", net.reshape(mask, 1, 1, 1, tokens), to=TensorProto.FLOAT)
    bias = net.add("Mul", net.add("Sub", net.scalar(1), visible), net.scalar(-1e4))
    layer = _Decoder(net, features, 12, _dynamic)
    for _ in range(6):
        query, keys, values = (layer.project(x, tokens) for _ in range(3))
        x = net.layer_norm(
            net.add("Add", x, layer.attend(query, (keys, values), tokens, bias, 1 / sqrt(layer.size))), features, 1e-12
        )
        inner = net.gelu(net.add("Add", _dynamic(net, x, features, 4 * features, 1.0), net.shift(4 * features)))
        x = net.layer_norm(
            net.add("Add", x, _dynamic(net, inner, 4 * features, features, BRANCH_GAIN)), features, 1e-12
        )
    weights = net.add("Cast", net.reshape(mask, 1, tokens, 1), to=TensorProto.FLOAT)
    total = net.add("ReduceSum", net.add("Mul", x, weights), net.integers(1), keepdims=0)
    count = net.add("Max", net.add("ReduceSum", weights, net.integers(1), keepdims=0), net.scalar(1e-9))
    return net.onnx(net.add("LpNormalization", net.add("Div", total, count), axis=-1, p=2))


T5_FEATURES, T5_HEADS, T5_INNER, T5_LAYERS = 512, 8, 2048, 6


def _rms_norm(net: Network, x: str, features: int) -> str:
    """Normalisation by the root of the mean of squares, as exporters write it."""
    mean = net.mean(net.add("Pow", x, net.scalar(2)), -1)
    scaled = net.add("Div", x, net.add("Sqrt", net.add("Add", mean, net.scalar(1e-6))))
    return net.add("Mul", scaled, net.constant(np.linspace(0.9, 1.1, features, dtype=np.float32)))


def _t5_perceptron(net: Network, x: str, linear: Linear) -> str:
    inner = linear(net, _rms_norm(net, x, T5_FEATURES), T5_FEATURES, T5_INNER, sqrt(2))
    return net.add("Add", x, linear(net, net.add("Relu", inner), T5_INNER, T5_FEATURES, BRANCH_GAIN))


def _t5_bias(net: Network, rows: int, columns: int) -> str:
    """Added to scores, by how far keys are from queries."""
    return net.constant(np.random.default_rng(1).standard_normal((1, T5_HEADS, rows, columns), dtype=np.float32))


def t5_encoder_int8() -> bytes:
    """Raffel et al., "Exploring the Limits of Transfer Learning" (2019), the small size, quantised dynamically."""
    return _t5_encoder("t5_encoder_int8", _dynamic)


def t5_encoder() -> bytes:
    """The same in float32."""
    return _t5_encoder("t5_encoder", _plain)


def _t5_encoder(name: str, linear: Linear) -> bytes:
    net, tokens = Network(name), 64
    ids = net.input("ids", (1, tokens), TensorProto.INT64)
    x = net.add("Gather", net.table(32128, T5_FEATURES), ids, axis=0)
    layer, bias = _Decoder(net, T5_FEATURES, T5_HEADS, linear), _t5_bias(net, tokens, tokens)
    for _ in range(T5_LAYERS):
        normal = _rms_norm(net, x, T5_FEATURES)
        query, keys, values = (layer.project(normal, tokens) for _ in range(3))
        x = net.add("Add", x, layer.attend(query, (keys, values), tokens, bias, 1 / 8))
        x = _t5_perceptron(net, x, linear)
    return net.onnx(_rms_norm(net, x, T5_FEATURES))


def t5_decoder_int8() -> bytes:
    """A step of its decoder: one token, 32 before it in the cache, 64 of the encoder."""
    net, past, others = Network("t5_decoder_int8"), 32, 64
    ids = net.input("ids", (1, 1), TensorProto.INT64)
    words = net.table(32128, T5_FEATURES)
    x = net.add("Gather", words, ids, axis=0)
    layer, bias, caches = _Decoder(net, T5_FEATURES, T5_HEADS, _dynamic), _t5_bias(net, 1, past + 1), []
    for number in range(T5_LAYERS):
        normal = _rms_norm(net, x, T5_FEATURES)
        query, *fresh = (layer.project(normal, 1) for _ in range(3))
        before = [net.input(f"past.{number}.{name}", (1, T5_HEADS, past, 64)) for name in ("key", "value")]
        keys, values = (net.add("Concat", old, new, axis=2) for old, new in zip(before, fresh, strict=True))
        caches += [keys, values]
        x = net.add("Add", x, layer.attend(query, (keys, values), 1, bias, 1 / 8))
        query = layer.project(_rms_norm(net, x, T5_FEATURES), 1)
        across = [net.input(f"encoder.{number}.{name}", (1, T5_HEADS, others, 64)) for name in ("key", "value")]
        x = net.add("Add", x, layer.attend(query, across, 1, None, 1 / 8))
        x = _t5_perceptron(net, x, _dynamic)
    x = net.add("Mul", _rms_norm(net, x, T5_FEATURES), net.scalar(T5_FEATURES**-0.5))
    return net.onnx(net.add("MatMul", x, net.transpose(words, 1, 0)), *caches)


WHISPER_FEATURES, WHISPER_HEADS, WHISPER_LAYERS, WHISPER_WORDS = 384, 6, 4, 51865


def whisper_decoder_merged() -> bytes:
    """Radford et al., "Robust Speech Recognition" (2022), the tiny size: a step of its decoder.

    One file for the first step and for those after it: `use_cache_branch` decides whether the keys and values of the
    encoder's frames are computed, or are those that were.
    """
    net, past, frames = Network("whisper_decoder_merged"), 16, 1500
    ids = net.input("ids", (1, 1), TensorProto.INT64)
    heard = net.input("encoder", (1, frames, WHISPER_FEATURES))
    shape = (1, WHISPER_HEADS, frames, WHISPER_FEATURES // WHISPER_HEADS)
    names = [f"{number}.{name}" for number in range(WHISPER_LAYERS) for name in ("key", "value")]
    before = [net.input(f"past.{name}", (1, WHISPER_HEADS, past, shape[3])) for name in names]
    known = [net.input(f"past.encoder.{name}", shape) for name in names]
    condition = net.input("use_cache_branch", (1,), TensorProto.BOOL)
    first, later = net.body("first"), net.body("later")
    computed = [_Decoder(first, WHISPER_FEATURES, WHISPER_HEADS, _plain).project(heard, frames) for _ in names]
    branches = {
        "then_branch": later.graph(*(later.add("Identity", name) for name in known)),
        "else_branch": first.graph(*computed),
    }
    across = net.add_split("If", condition, count=len(names), **branches)
    for name in across:
        net.declare(name, shape)
    words = net.table(WHISPER_WORDS, WHISPER_FEATURES, WHISPER_FEATURES**-0.5)
    layer = _Decoder(net, WHISPER_FEATURES, WHISPER_HEADS, _plain)
    x, caches = net.add("Add", net.add("Gather", words, ids, axis=0), net.shift(WHISPER_FEATURES)), []
    for number in range(WHISPER_LAYERS):
        normal = net.layer_norm(x, WHISPER_FEATURES)
        query, *fresh = (layer.project(normal, 1) for _ in range(3))
        own = before[2 * number : 2 * number + 2]
        keys, values = (net.add("Concat", old, new, axis=2) for old, new in zip(own, fresh, strict=True))
        caches += [keys, values]
        x = net.add("Add", x, layer.attend(query, (keys, values), 1, None, layer.size**-0.5))
        query = layer.project(net.layer_norm(x, WHISPER_FEATURES), 1)
        others = across[2 * number : 2 * number + 2]
        x = net.add("Add", x, layer.attend(query, others, 1, None, layer.size**-0.5))
        inner = net.gelu(net.linear(net.layer_norm(x, WHISPER_FEATURES), WHISPER_FEATURES, 4 * WHISPER_FEATURES))
        x = net.add("Add", x, net.linear(inner, 4 * WHISPER_FEATURES, WHISPER_FEATURES, BRANCH_GAIN))
    x = net.layer_norm(x, WHISPER_FEATURES)
    return net.onnx(net.add("MatMul", x, net.transpose(words, 1, 0)), *caches, *across)


QWEN_FEATURES, QWEN_HEADS, QWEN_GROUPS, QWEN_INNER, QWEN_SIZE = 896, 14, 2, 4864, 64


def four_bits(net: Network, x: str, inputs: int, outputs: int, gain: float) -> str:
    """Weights of 4 bits with a scale for each 32 of them, as ONNX Runtime's quantiser writes it.

    Scales are bfloat16, as weights of this model are, whose largest are eight steps of their block.
    """
    rng, block = np.random.default_rng([inputs, outputs]), 32
    packed = rng.integers(0, 256, (outputs, inputs // block, block // 2), dtype=np.uint8)
    scales = rng.uniform(0.8, 1.2, (outputs, inputs // block)) * gain / sqrt(inputs) / 4.6
    scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    options = {"K": inputs, "N": outputs, "bits": 4, "block_size": block, "accuracy_level": 4}
    return net.add(
        "MatMulNBits", x, net.constant(packed), net.constant(scales), domain=MICROSOFT, **options
    )  # the zero point is 8


def qwen_step_q4() -> bytes:
    """Four layers of `qwen_q4`: a step after 128 tokens."""
    return qwen_q4("qwen_step_q4", tokens=1, past=128, layers=4)


def qwen_q4(name: str, tokens: int, past: int, layers: int, words: int = 0) -> bytes:
    """Qwen Team, "Qwen2.5 Technical Report" (2024), layers of the size of 0.5 B: so many tokens after `past` others.

    Weights of four bits, groups of heads that share keys, positions by rotation, as ONNX Runtime's model builder
    writes it. With `words`, a head of so many follows.
    """
    net, features, total = Network(name), QWEN_FEATURES, past + tokens
    x, skip = (net.input(part, (1, tokens, features)) for part in ("embedding", "residual"))
    last = net.constant(np.array([total - 1], np.int32)), net.constant(np.array(total, np.int32))
    angles = np.arange(total)[:, None] / 10000.0 ** (np.arange(0, QWEN_SIZE, 2) / QWEN_SIZE)
    tables = net.constant(np.cos(angles).astype(np.float32)), net.constant(np.sin(angles).astype(np.float32))
    caches = []
    for number in range(layers):
        normal, skip = _skip_norm(net, x, skip)
        width = QWEN_GROUPS * QWEN_SIZE
        query = net.add("Add", four_bits(net, normal, features, features, 1.0), net.shift(features))
        keys, values = (net.add("Add", four_bits(net, normal, features, width, 1.0), net.shift(width)) for _ in "kv")
        before = [net.input(f"past.{number}.{part}", (1, QWEN_GROUPS, past, QWEN_SIZE)) for part in ("key", "value")]
        mixed, *present = net.add_split(
            "GroupQueryAttention", query, keys, values, *before, *last, *tables, count=3, domain=MICROSOFT,
            num_heads=QWEN_HEADS, kv_num_heads=QWEN_GROUPS, do_rotary=1,
        )  # fmt: skip
        caches += [net.declare(cache, (1, QWEN_GROUPS, total, QWEN_SIZE)) for cache in present]
        x = four_bits(net, mixed, features, features, BRANCH_GAIN)
        normal, skip = _skip_norm(net, x, skip)
        gate, inner = (four_bits(net, normal, features, QWEN_INNER, 1.0) for _ in range(2))
        x = four_bits(net, net.add("Mul", net.silu(gate), inner), QWEN_INNER, features, BRANCH_GAIN)
    y, _ = _skip_norm(net, x, skip)
    y = four_bits(net, y, features, words, 1.0) if words else y
    return net.onnx(net.declare(y, (1, tokens, words or features)), *caches)


def _skip_norm(net: Network, x: str, skip: str) -> tuple[str, str]:
    """The sum of both normalised, and the sum."""
    scale = net.constant(np.linspace(0.9, 1.1, QWEN_FEATURES, dtype=np.float32))
    outputs = net.add_split(
        "SkipSimplifiedLayerNormalization", x, skip, scale, count=4, unwanted=(1, 2), domain=MICROSOFT, epsilon=1e-6
    )
    return outputs[0], outputs[3]

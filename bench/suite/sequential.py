"""Networks over sequences, written down from the papers that describe them, and a small perceptron."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
from onnx import TensorProto

from .network import BRANCH_GAIN, PLAIN, Network, NetworkForm


def _attention(net: Network, x: str, tokens: int, features: int, heads: int, bias: str | None) -> str:
    """Vaswani et al., "Attention Is All You Need" (2017): `bias` is added to the scores of a head, [tokens, tokens]."""
    size = features // heads

    def part(perm: tuple[int, ...]) -> str:
        return net.transpose(net.reshape(net.linear(x, features, features), net.form.batch, tokens, heads, size), *perm)

    query, key, value = part((0, 2, 1, 3)), part((0, 2, 3, 1)), part((0, 2, 1, 3))
    scores = net.add("Mul", net.add("MatMul", query, key), net.scalar(1 / sqrt(size)))
    scores = net.add("Add", scores, bias) if bias else scores
    result = net.add("MatMul", net.add("Softmax", scores, axis=-1), value)
    result = net.reshape(net.transpose(result, 0, 2, 1, 3), net.form.batch, tokens, features)
    return net.linear(result, features, features, BRANCH_GAIN)


def _perceptron(net: Network, x: str, features: int, activation: Callable[[str], str]) -> str:
    return net.linear(activation(net.linear(x, features, 4 * features)), 4 * features, features, BRANCH_GAIN)


def _encoder(
    net: Network, x: str, tokens: int, features: int, heads: int, bias: str | None, activation: Callable[[str], str]
) -> str:
    """Twelve layers."""
    for _ in range(12):
        x = encoder_layer(net, x, tokens, features, heads, bias, activation)
    return net.layer_norm(x, features)


def encoder_layer(
    net: Network, x: str, tokens: int, features: int, heads: int, bias: str | None, activation: Callable[[str], str]
) -> str:
    """A layer with the normalisation before each branch."""
    x = net.add("Add", x, _attention(net, net.layer_norm(x, features), tokens, features, heads, bias))
    return net.add("Add", x, _perceptron(net, net.layer_norm(x, features), features, activation))


def bert_base_s128(form: NetworkForm = PLAIN) -> bytes:
    """Devlin et al., "BERT" (2018), the base size, 128 tokens and a mask of which of them count."""
    net, tokens, features = Network("bert_base_s128", form=form), 128, 768
    ids, mask = (net.input(name, (form.batch, tokens), TensorProto.INT64) for name in ("ids", "mask"))
    words = net.add("Gather", net.table(30522, features), ids, axis=0)
    places = net.constant(np.random.default_rng(0).standard_normal((1, tokens, features), dtype=np.float32))
    x = net.layer_norm(net.add("Add", words, places), features, 1e-12)
    visible = net.add("Cast", net.reshape(mask, form.batch, 1, 1, tokens), to=form.onnx_type)
    bias = net.add("Mul", net.add("Sub", net.scalar(1), visible), net.scalar(-1e4))
    for _ in range(12):
        x = net.layer_norm(net.add("Add", x, _attention(net, x, tokens, features, 12, bias)), features, 1e-12)
        x = net.layer_norm(net.add("Add", x, _perceptron(net, x, features, net.gelu)), features, 1e-12)
    return net.onnx(x)


def gpt2_prefill_s64() -> bytes:
    """Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), the small size, on 64 tokens."""
    net, tokens, features = Network("gpt2_prefill_s64"), 64, 768

    def gelu(x: str) -> str:
        cube = net.add("Mul", net.add("Pow", x, net.scalar(3)), net.scalar(0.044715))
        bell = net.add("Tanh", net.add("Mul", net.add("Add", x, cube), net.scalar(sqrt(2 / np.pi))))
        return net.add("Mul", net.add("Mul", x, net.scalar(0.5)), net.add("Add", bell, net.scalar(1)))

    words = net.table(50257, features, features**-0.5)
    places = net.constant(np.random.default_rng(0).standard_normal((1, tokens, features), dtype=np.float32))
    x = net.add("Add", net.add("Gather", words, net.input("ids", (1, tokens), TensorProto.INT64), axis=0), places)
    later = np.triu(np.full((tokens, tokens), -1e4, np.float32), 1)
    x = _encoder(net, x, tokens, features, 12, net.constant(later), gelu)
    return net.onnx(net.add("MatMul", x, net.transpose(words, 1, 0)))


def vit_tiny() -> bytes:
    """Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), with the tiny size of Touvron et al. (2020)."""
    net, tokens, features = Network("vit_tiny"), 197, 192
    patches = net.conv(net.input("image", (1, 3, 224, 224)), 3, features, 16, 16, padding=0, gain=1.0)
    patches = net.transpose(net.reshape(patches, 1, features, tokens - 1), 0, 2, 1)
    rng = np.random.default_rng(0)
    first, places = (rng.standard_normal((1, count, features), dtype=np.float32) for count in (1, tokens))
    x = net.add("Add", net.add("Concat", net.constant(first), patches, axis=1), net.constant(places))
    x = _encoder(net, x, tokens, features, 3, None, net.gelu)
    token = net.add("Gather", x, net.constant(np.array(0, np.int64)), axis=1)
    return net.onnx(net.gemm(token, features, 1000))


def lstm_tagger() -> bytes:
    """Huang et al., "Bidirectional LSTM-CRF Models" (2015), without the CRF: 32 words, two layers, 32 tags."""
    net, words, hidden = Network("lstm_tagger"), 32, 256
    x = net.add("Gather", net.table(5000, 128), net.input("ids", (1, words), TensorProto.INT64), axis=0)
    x = net.transpose(x, 1, 0, 2)
    for inputs in (128, 2 * hidden):
        x = net.both_ways(x, words, inputs, hidden)
    return net.onnx(net.linear(net.transpose(x, 1, 0, 2), 2 * hidden, 32))


def mlp() -> bytes:
    """A perceptron for digits of 28 x 28: so small that calling it costs more than computing it."""
    net = Network("mlp")
    x = net.input("digit", (1, 784))
    for inputs, outputs in ((784, 128), (128, 64)):
        x = net.add("Relu", net.gemm(x, inputs, outputs, sqrt(2)))
    return net.onnx(net.add("Softmax", net.gemm(x, 64, 10), axis=-1))

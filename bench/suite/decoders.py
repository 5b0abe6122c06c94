"""Blocks of a decoder for language as PyTorch's exporter writes them: small nodes, or the ops of opset 23."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from onnx import TensorProto

from .network import BRANCH_GAIN, PLAIN, Network, NetworkForm


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The sizes of a decoder, and how many tokens it sees at once and has seen. Those of Qwen2.5-0.5B."""

    tokens: int
    past: int
    layers: int = 1
    features: int = 896
    heads: int = 14
    groups: int = 2
    inner: int = 4864

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.features // self.heads


def decoder_blocks(sizes: DecoderSizes, opset: int, form: NetworkForm = PLAIN) -> bytes:
    """Hidden states and the positions of tokens to hidden states and the caches."""
    net = Network("decoder_blocks", form=form, opset=opset)
    x = net.input("hidden", (1, sizes.tokens, sizes.features))
    positions = net.input("positions", (1, sizes.tokens), TensorProto.INT64)
    block = _DecoderBlock(net, sizes, opset, _angles(net, sizes, positions), _visible(net, sizes, positions))
    caches: list[str] = []
    for number in range(sizes.layers):
        shape = (1, sizes.groups, sizes.past, sizes.size)
        past = [net.input(f"past.{number}.{name}", shape) for name in ("key", "value")] if sizes.past else []
        mixed, present = block.attend(block.norm(x), past)
        caches += present
        x = net.add("Add", x, mixed)
        x = net.add("Add", x, block.perceptron(block.norm(x)))
    return net.onnx(block.norm(x), *caches)


def _angles(net: Network, sizes: DecoderSizes, positions: str) -> tuple[str, str]:
    """Cosines and sines, [1, 1, tokens, size]: positions times frequencies as a product of matrices."""
    rates = 1e6 ** -(np.arange(0, sizes.size, 2, dtype=np.float32) / np.float32(sizes.size))
    places = net.add("Cast", net.add("Unsqueeze", positions, net.integers(1)), to=TensorProto.FLOAT)
    rates_constant = net.exact(rates.reshape(1, -1, 1).astype(np.float32))
    angles = net.transpose(net.add("MatMul", rates_constant, places), 0, 2, 1)
    both = net.add("Concat", angles, angles, axis=-1)
    cosines, sines = (
        net.add("Cast", net.add("Mul", net.add(op, both), net.exact(np.array(1, np.float32))), to=net.form.onnx_type)
        for op in ("Cos", "Sin")
    )
    return net.add("Unsqueeze", cosines, net.integers(1)), net.add("Unsqueeze", sines, net.integers(1))


def _visible(net: Network, sizes: DecoderSizes, positions: str) -> str:
    """Which keys a query sees: those at its position and before. [1, 1, tokens, past + tokens], bools."""
    keys = net.integers(*range(sizes.past + sizes.tokens))
    return net.add("LessOrEqual", keys, net.add("Unsqueeze", positions, net.integers(1, 3)))


@dataclass(frozen=True, slots=True)
class _DecoderBlock:
    net: Network
    sizes: DecoderSizes
    opset: int
    angles: tuple[str, str]
    visible: str

    def norm(self, x: str) -> str:
        """By the root of the mean of squares, in float32."""
        net = self.net
        scale = net.constant(np.linspace(0.9, 1.1, self.sizes.features, dtype=np.float32))
        wide = net.add("Cast", x, to=TensorProto.FLOAT)
        if self.opset >= 23:
            one = net.exact(np.ones(self.sizes.features, np.float32))
            return net.add("Mul", scale, self._narrow(net.add("RMSNormalization", wide, one, epsilon=1e-6)))
        squares = net.add("Pow", wide, net.exact(np.array(2, np.float32)))
        mean = net.add("Add", net.mean(squares, -1), net.exact(np.array(1e-6, np.float32)))
        inverse = net.add("Reciprocal", net.add("Sqrt", mean))
        return net.add("Mul", scale, self._narrow(net.add("Mul", wide, inverse)))

    def _narrow(self, x: str) -> str:
        return self.net.add("Cast", x, to=self.net.form.onnx_type)

    def _linear(self, x: str, outputs: int, gain: float = 1.0, inputs: int = 0) -> str:
        """A product with a weight that is kept transposed."""
        inputs = inputs or self.sizes.features
        weight = self.net.weight((outputs, inputs), inputs, gain)
        return self.net.add("MatMul", x, self.net.transpose(weight, 1, 0))

    def _project(self, x: str, heads: int) -> str:
        net, sizes = self.net, self.sizes
        biased = net.add("Add", self._linear(x, heads * sizes.size), net.shift(heads * sizes.size))
        return net.transpose(net.reshape(biased, 1, sizes.tokens, heads, sizes.size), 0, 2, 1, 3)

    def _rotate(self, x: str) -> str:
        """x * cos + (the second half, negative, before the first) * sin."""
        net, half = self.net, self.sizes.size // 2
        first, second = (
            net.add("Slice", x, net.integers(start), net.integers(end), net.integers(3), net.integers(1))
            for start, end in ((0, half), (half, 2**63 - 1))
        )
        turned = net.add("Concat", net.add("Neg", second), first, axis=-1)
        return net.add("Add", net.add("Mul", x, self.angles[0]), net.add("Mul", turned, self.angles[1]))

    def attend(self, x: str, past: Sequence[str]) -> tuple[str, list[str]]:
        """Attention with its projections, and the keys and values."""
        net, sizes = self.net, self.sizes
        query = self._rotate(self._project(x, sizes.heads))
        new = [self._rotate(self._project(x, sizes.groups)), self._project(x, sizes.groups)]
        if past:
            new = [net.add("Concat", old, fresh, axis=-2) for old, fresh in zip(past, new, strict=True)]
        attend = self._attention if self.opset >= 23 else self._small_attention
        mixed = net.reshape(net.transpose(attend(query, *new), 0, 2, 1, 3), 1, sizes.tokens, -1)
        return self._linear(mixed, sizes.features, BRANCH_GAIN), new

    def _attention(self, query: str, keys: str, values: str) -> str:
        return self.net.add("Attention", query, keys, values, self.visible, scale=self.sizes.size**-0.5)

    def _small_attention(self, query: str, keys: str, values: str) -> str:
        """Keys and values repeated, and both operands of the scores scaled."""
        net, sizes = self.net, self.sizes
        keys, values = (self._repeat(name) for name in (keys, values))
        flat = net.transpose(net.reshape(keys, -1, sizes.past + sizes.tokens, sizes.size), 0, 2, 1)
        turned = net.reshape(flat, 1, sizes.heads, sizes.size, sizes.past + sizes.tokens)
        root = net.add("Sqrt", net.scalar(1 / sqrt(sizes.size)))
        scores = net.add("MatMul", net.add("Mul", query, root), net.add("Mul", turned, root))
        bias = net.add("Where", self.visible, net.scalar(0), net.scalar(-inf))
        return net.add("MatMul", net.add("Softmax", net.add("Add", scores, bias), axis=-1), values)

    def _repeat(self, x: str) -> str:
        """Each head of keys or values for each of its queries."""
        net, sizes = self.net, self.sizes
        length, times = sizes.past + sizes.tokens, sizes.heads // sizes.groups
        apart = net.add("Unsqueeze", x, net.integers(2))
        copies = net.add("Expand", apart, net.integers(1, sizes.groups, times, length, sizes.size))
        return net.reshape(copies, 1, sizes.heads, length, sizes.size)

    def perceptron(self, x: str) -> str:
        net, inner = self.net, self.sizes.inner
        gate = net.silu(self._linear(x, inner))
        return self._linear(net.add("Mul", gate, self._linear(x, inner)), self.sizes.features, BRANCH_GAIN, inner)


def qwen_export_prefill() -> bytes:
    """Qwen Team, "Qwen2.5 Technical Report" (2024), a layer of the size of 0.5 B, of 128 tokens, in small nodes."""
    return decoder_blocks(DecoderSizes(tokens=128, past=0), 18)


def qwen_export_step() -> bytes:
    """The same after 128 tokens, of the next one, with the ops of opset 23."""
    return decoder_blocks(DecoderSizes(tokens=1, past=128), 23)

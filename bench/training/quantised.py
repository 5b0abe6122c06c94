"""Random quantised layers that the base cost model learns from: products, convolutions and windows of bytes.

Activations are unsigned bytes with one scale, weights signed ones with a scale for each column, channels come last; the
result is quantised again, as between the layers of a network, or a float32 where the scale is known to a run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import TensorProto

from tunewright.bench.suite.byte_network import ByteNetwork
from tunewright.codegen.expr.dtype import WORD_BYTES

from .tasks import KERNELS, Rng, draw_size

ZEROS = 0, 121
"""Zero points: behind a rectifier, and elsewhere."""


def random_layers(rng: Rng) -> Iterator[bytes]:
    """Endless models of one quantised layer: the families in turn."""
    while True:
        for make in LAYERS.values():
            yield make(rng)


class _Layer(ByteNetwork):
    """A layer in the making, whose result is rectified or not before it is quantised."""

    def __init__(self, rng: Rng) -> None:
        seed, zero_point = int(rng.integers(1 << 30)), ZEROS[int(rng.random() < 0.4)]
        super().__init__("layer", rng, seed=seed, zero_point=zero_point)

    def bytes_of(self, y: str) -> bytes:
        """The model of a result."""
        y = self.quantise(self.add("Relu", y) if self.rng.random() < 0.5 else y)
        return self.onnx(y)

    def image_of(self, y: str) -> bytes:
        """As `bytes_of`, channels last."""
        y = self.quantise(self.add("Relu", y) if self.rng.random() < 0.5 else y)
        return self.onnx(self.transpose(y, 0, 2, 3, 1))


def _product(rng: Rng) -> bytes:
    rows, inner, columns = (draw_size(rng, low, high, 16) for low, high in ((1, 1024), (16, 2048), (16, 2048)))
    net = _Layer(rng)
    product = net.add("MatMul", net.bytes_input("x", rows, inner), net.bytes_weight((inner, columns), 1))
    return net.bytes_of(net.add("Add", product, net.shift(columns)))


def _dynamic_product(rng: Rng) -> bytes:
    """A product whose scale only a run knows, of float32 results."""
    rows, inner, columns = (draw_size(rng, low, high, 16) for low, high in ((1, 512), (16, 2048), (16, 2048)))
    net = _Layer(rng)
    p, scale, zero = net.add_split("DynamicQuantizeLinear", net.input("x", (rows, inner)), count=3)
    known = net.exact(rng.integers(-127, 128, (inner, columns)).astype(np.int8))
    sums = net.add("MatMulInteger", p, known, zero, net.exact(np.array(0, np.int8)))
    scaled = net.add("Mul", net.add("Cast", sums, to=TensorProto.FLOAT), net.add("Mul", scale, net.scalar(0.002)))
    y = net.add("Add", scaled, net.shift(columns))
    return net.onnx(net.gelu(y) if rng.random() < 0.3 else y)


def _conv(rng: Rng) -> bytes:
    kernels, chances = zip(*KERNELS, strict=True)
    kernel, stride = int(rng.choice(kernels, p=chances)), 1 + int(rng.random() < 0.25)
    inputs, outputs, extent = _channels(rng, 4, 768), draw_size(rng, 16, 768, 16), draw_size(rng, 7, 112, 7)
    net = _Layer(rng)
    return net.image_of(net.convolution(net.image("x", inputs, extent), (outputs, inputs, kernel, kernel), stride))


def _residual(rng: Rng) -> bytes:
    """A pointwise convolution whose result other bytes are added to."""
    inputs, outputs, extent = _channels(rng, 16, 512), draw_size(rng, 16, 768, 16), draw_size(rng, 7, 56, 7)
    net = _Layer(rng)
    y = net.convolution(net.image("x", inputs, extent), (outputs, inputs, 1, 1), 1)
    return net.image_of(net.add("Add", net.dequantise(net.quantise(y)), net.image("skip", outputs, extent)))


def _depthwise(rng: Rng) -> bytes:
    channels, extent = draw_size(rng, 16, 1152, 16), draw_size(rng, 7, 112, 7)
    kernel, stride = int(rng.choice((3, 3, 5, 7))), 1 + int(rng.random() < 0.3)
    net = _Layer(rng)
    x = net.image("x", channels, extent)
    return net.image_of(net.convolution(x, (channels, 1, kernel, kernel), stride, group=channels))


def _channels(rng: Rng, low: int, high: int) -> int:
    """Whole words of them."""
    return max(draw_size(rng, low, high, 16) // WORD_BYTES, 1) * WORD_BYTES


LAYERS: Mapping[str, Callable[[Rng], bytes]] = {
    "product": _product,
    "convolution": _conv,
    "residual": _residual,
    "dynamic product": _dynamic_product,
    "convolution again": _conv,
    "depthwise": _depthwise,
}
"""Functions that make a random layer; convolutions come twice, as networks are mostly these."""

"""Random quantised layers that the base cost model learns from: products, convolutions and windows of bytes.

Activations are unsigned bytes with one scale, weights signed ones with a scale for each column, channels come last; the
result is quantised again, as between the layers of a network, or a float32 where the scale is known to a run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import TensorProto

from tunewright.bench.suite.network import Network
from tunewright.codegen.expr.dtype import WORD_BYTES

from .tasks import KERNELS, Rng, draw_size

SCALE = np.array(0.05, np.float32)
"""Of activations."""

ZEROS = 0, 121
"""Zero points: behind a rectifier, and elsewhere."""


def random_layers(rng: Rng) -> Iterator[bytes]:
    """Endless models of one quantised layer: the families in turn."""
    while True:
        for make in LAYERS.values():
            yield make(rng)


class _Layer(Network):
    """A layer in the making: what there is about bytes."""

    def __init__(self, rng: Rng) -> None:
        super().__init__("layer", int(rng.integers(1 << 30)))
        self.rng = rng
        self._zero = np.array(ZEROS[int(rng.random() < 0.4)], np.uint8)

    def bytes_input(self, name: str, *shape: int) -> str:
        """Floats that an input of bytes stands for."""
        return self.dequantise(self.input(name, shape, TensorProto.UINT8))

    def image(self, name: str, channels: int, extent: int) -> str:
        """As `bytes_input`, of a square image, in the order of ONNX."""
        return self.dequantise(
            self.transpose(self.input(name, (1, extent, extent, channels), TensorProto.UINT8), 0, 3, 1, 2)
        )

    def quantise(self, x: str) -> str:
        return self.add("QuantizeLinear", x, self.exact(SCALE), self.exact(self._zero))

    def dequantise(self, x: str) -> str:
        return self.add("DequantizeLinear", x, self.exact(SCALE), self.exact(self._zero))

    def bytes_weight(self, shape: tuple[int, ...], axis: int) -> str:
        """Weights with a scale for each place along an axis."""
        known = self.exact(self.rng.integers(-127, 128, shape).astype(np.int8))
        scales = self.exact(self.rng.uniform(0.001, 0.003, shape[axis]).astype(np.float32))
        return self.add("DequantizeLinear", known, scales, self.exact(np.zeros(shape[axis], np.int8)), axis=axis)

    def convolution(self, x: str, shape: tuple[int, ...], stride: int, group: int = 1) -> str:
        """A convolution by weights of a shape, padded to keep the extent at stride 1."""
        outputs, _, *kernel = shape
        pads = [extent // 2 for extent in kernel] * 2
        form = {"kernel_shape": kernel, "strides": [stride] * 2, "pads": pads, "group": group}
        return self.add("Conv", x, self.bytes_weight(shape, 0), self.shift(outputs), **form)

    def bytes_of(self, y: str) -> bytes:
        """The model whose result is quantised, rectified before or not."""
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

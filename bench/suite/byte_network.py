"""ByteNetwork: a quantised ONNX model in the making.

Activations are unsigned bytes with one scale and one zero point, weights signed ones with a scale for each column.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .network import Network

SCALE = np.array(0.05, np.float32)
"""Of activations."""


class ByteNetwork(Network):
    """A network of bytes, whose weights `rng` draws. `zero_point`: of activations."""

    def __init__(self, name: str, rng: np.random.Generator, *, seed: int = 0, zero_point: int = 0) -> None:
        super().__init__(name, seed)
        self.rng = rng
        self._zero = np.array(zero_point, np.uint8)

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

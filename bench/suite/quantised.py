"""Models of few bits: `QUANTISED`.

Those of the suite in float32 and in eight bits, by ONNX Runtime's quantiser; products and convolutions of bytes alone;
products by weights of four bits, and a language model of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from .byte_network import ByteNetwork
from .convolutional import mobilenet_v2, resnet50
from .language import four_bits, qwen_q4, t5_encoder, t5_encoder_int8
from .network import Network
from .sequential import bert_base_s128

CALIBRATIONS = 4
"""Random inputs whose activations tell the scales."""


class _Pictures(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """Random inputs of a model that takes pictures."""

    def __init__(self, model: Path) -> None:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(0)
        self._feeds: Iterator[dict[str, Any]] = iter(
            [
                {port.name: rng.standard_normal(port.shape, dtype=np.float32) for port in session.get_inputs()}
                for _ in range(CALIBRATIONS)
            ]
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next input; None at the end."""
        return next(self._feeds, None)


def _static(build: Callable[[], bytes]) -> bytes:
    """Quantised in advance: QuantizeLinear and DequantizeLinear around each op, weights by output channel."""
    with TemporaryDirectory(prefix="tunewright-") as folder:
        given, folded, result = (Path(folder) / f"{name}.onnx" for name in ("given", "folded", "result"))
        given.write_bytes(build())
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # folds norms
        options.optimized_model_filepath = str(folded)
        onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        quantize_static(
            folded,
            result,
            _Pictures(folded),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return result.read_bytes()


def _dynamic(build: Callable[[], bytes]) -> bytes:
    """Weights quantised in advance, activations as they come."""
    with TemporaryDirectory(prefix="tunewright-") as folder:
        given, result = (Path(folder) / f"{name}.onnx" for name in ("given", "result"))
        given.write_bytes(build())
        quantize_dynamic(given, result, weight_type=QuantType.QInt8)
        return result.read_bytes()


PAIRS: Mapping[str, tuple[Callable[[], bytes], Callable[[], bytes]]] = {
    "resnet50": (resnet50, partial(_static, resnet50)),
    "mobilenet_v2": (mobilenet_v2, partial(_static, mobilenet_v2)),
    "bert_base_s128": (bert_base_s128, partial(_dynamic, bert_base_s128)),
    "t5_encoder": (t5_encoder, t5_encoder_int8),
}
"""Functions by name that give the ONNX bytes of a model in float32, and quantised."""


def byte_product(rows: int, inner: int, columns: int) -> bytes:
    """A product of bytes, between bytes."""
    net = ByteNetwork("byte_product", np.random.default_rng(0))
    y = net.add("MatMul", net.bytes_input("x", rows, inner), net.bytes_weight((inner, columns), 1))
    return net.onnx(net.quantise(net.add("Add", y, net.shift(columns))))


def byte_convolution(channels: int, outputs: int, extent: int, kernel: int) -> bytes:
    """A convolution of bytes, between bytes, padded to keep the extent. Channels are last outside."""
    net = ByteNetwork("byte_convolution", np.random.default_rng(0))
    y = net.convolution(net.image("x", channels, extent), (outputs, channels, kernel, kernel), 1)
    return net.onnx(net.transpose(net.quantise(y), 0, 2, 3, 1))


def packed_row(inner: int, columns: int) -> bytes:
    """One row by weights of four bits."""
    net = Network("packed_row")
    return net.onnx(net.declare(four_bits(net, net.input("x", (1, inner)), inner, columns, 1.0), (1, columns)))


PRODUCTS = (128, 768, 3072), (384, 768, 768), (512, 512, 512), (1024, 1024, 1024)
"""Rows, terms of a sum, columns."""

CONVOLUTIONS = (64, 64, 56, 3), (128, 128, 28, 3), (256, 256, 14, 3), (512, 256, 28, 1), (256, 64, 56, 1)
"""Channels, outputs, extent, kernel."""

BYTE_PRODUCTS: Mapping[str, tuple[Callable[[], bytes], int]] = {
    name: (build, operations)
    for name, build, operations in (
        *((f"bytes {m}x{k}x{n}", partial(byte_product, m, k, n), 2 * m * k * n) for m, k, n in PRODUCTS),
        *(
            (f"bytes conv {k}x{k} {c}->{n} {e}x{e}", partial(byte_convolution, c, n, e, k), 2 * (e * k) ** 2 * c * n)
            for c, n, e, k in CONVOLUTIONS
        ),
    )
}
"""Functions by name that give a product of bytes, and its operations, two for each product."""

PACKED_ROWS: Mapping[str, tuple[Callable[[], bytes], int]] = {
    f"four bits 1x{inner}x{columns}": (
        partial(packed_row, inner, columns),
        inner * columns // 2 + inner * columns // 32 * 2,
    )
    for inner, columns in ((4096, 4096), (4096, 11008))
}
"""Functions by name that give a product of one row, and the bytes of its weights and their scales, of bfloat16."""

QWEN_LAYERS, QWEN_WORDS, PREFILL_LAYERS = 24, 151_936, 4

LANGUAGE: Mapping[str, Callable[[], bytes]] = {
    "qwen decode": partial(qwen_q4, "qwen_decode", tokens=1, past=128, layers=QWEN_LAYERS, words=QWEN_WORDS),
    "qwen prefill": partial(qwen_q4, "qwen_prefill", tokens=512, past=0, layers=PREFILL_LAYERS),
}
"""A step of the whole model, and some of its layers over a text."""

QUANTISED: Mapping[str, Callable[[], bytes]] = {
    **{
        name: build for model, pair in PAIRS.items() for name, build in zip((model, f"{model}_int8"), pair, strict=True)
    },
    **{name: build for name, (build, _) in (*BYTE_PRODUCTS.items(), *PACKED_ROWS.items())},
    **LANGUAGE,
}
"""All of them by name."""

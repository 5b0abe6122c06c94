"""Models of the suite in float32 and in eight bits, by ONNX Runtime's quantiser: `QUANTISED`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from .convolutional import mobilenet_v2, resnet50
from .language import t5_encoder, t5_encoder_int8
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

QUANTISED: Mapping[str, Callable[[], bytes]] = {
    name: build for model, pair in PAIRS.items() for name, build in zip((model, f"{model}_int8"), pair, strict=True)
}
"""All of them by name."""

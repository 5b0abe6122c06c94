"""Models with control flow, and their runs compared with ONNX Runtime and with ONNX's evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
from onnx import ModelProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunewright.codegen.host import detect
from tunewright.graph.evaluation.fallback import CORRECTIONS
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.session.session import InferenceSession


def model_of(text: str, opset: int = 21, weights: dict[str, Any] | None = None) -> ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    return model


def opened(model: ModelProto) -> Model:
    return open_model(model.SerializeToString())


def session_of(model: ModelProto, threads: int = 1) -> InferenceSession:
    return InferenceSession.of(opened(model), detect(threads), {})


def onnxruntime_of(model: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def check(
    model: ModelProto, feeds: dict[str, Any], threads: int = 1, *, native: bool = True, runtime: bool = True
) -> None:
    """Compare two runs with ONNX Runtime, unless it refuses the model, and with the evaluator."""
    session = session_of(model, threads)
    assert not session.coverage().fallback or not native
    evaluated: Any = ReferenceEvaluator(model, new_ops=CORRECTIONS).run(None, feeds)
    expected = onnxruntime_of(model).run(None, feeds) if runtime else evaluated
    for _ in range(2):
        for result, wanted, other in zip(session.run(None, feeds), expected, evaluated, strict=True):
            assert result.shape == wanted.shape
            assert result.dtype == wanted.dtype
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)

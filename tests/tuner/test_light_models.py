"""The light models of the onnx package, weights refilled, give ONNX Runtime's outputs and run natively."""

from __future__ import annotations

import pytest

from tunewright.bench.agreement import compare
from tunewright.bench.light import LIGHT_MODELS, light_model
from tunewright.tuner.session.agreement import WHOLE_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*LIGHT_MODELS} - {"vgg19", "zfnet512"}))  # no op that alexnet lacks
def test_a_light_model_agrees(name: str) -> None:
    error, line = compare(light_model(name).SerializeToString(), {})
    assert error <= WHOLE_TOLERANCE, line
    assert line.startswith(" 100.0% native"), line

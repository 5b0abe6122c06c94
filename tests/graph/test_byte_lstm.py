"""LSTM of weights in bytes: what it reads is rounded as in ONNX Runtime, or it is that of real numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tunewright.tuner import InferenceSession

from .contrib_models import contrib_model, run_ours
from .correcting import normal
from .test_contrib_quantisation import scales, weights

STEPS, BATCH, FEATURES, HIDDEN = 6, 2, 5, 7
OUTPUTS = ["Y", "Y_h", "Y_c"]


def operands_of(directions: int, dtype: Any = np.int8, *, columns: bool = False) -> dict[str, Any]:
    shape = (directions, 4 * HIDDEN) if columns else (directions,)
    operands: dict[str, Any] = {"X": normal(STEPS, BATCH, FEATURES), "B": normal(directions, 8 * HIDDEN)}
    for name, rows in (("W", FEATURES), ("R", HIDDEN)):
        operands |= {name: weights(dtype, directions, rows, 4 * HIDDEN), f"{name}_scale": scales(*shape) * 0.01}
        operands |= {f"{name}_zero_point": np.full(shape, 128 if dtype == np.uint8 else 0, dtype)}
    return operands


def check(operands: Mapping[str, Any], atol: float = 1e-5, **attrs: Any) -> None:
    """Where what is rounded lies next to the middle between two bytes, it may become either: such steps are few.

    On more threads ONNX Runtime rounds parts of the batch by themselves.
    """
    model = contrib_model(
        "DynamicQuantizeLSTM", operands, OUTPUTS, operands.keys() - {"X"}, hidden_size=HIDDEN, **attrs
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs: Any = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"X": operands["X"]})
    with InferenceSession(model.SerializeToString(), threads=1) as session:
        native, fallback = session.run(None, {"X": operands["X"]}), session.coverage().fallback
    assert not fallback
    for ours in (run_ours(model, operands), native):
        for own, other in zip(ours, theirs, strict=True):
            assert own.shape == other.shape
            assert np.median(np.abs(own - other)) < atol and np.abs(own - other).max() < max(0.03, atol)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("dtype", "columns"), [(np.int8, False), (np.int8, True), (np.uint8, False)])
def test_input_and_state_are_rounded(dtype: Any, columns: bool, direction: str) -> None:
    check(operands_of(1 + (direction == "bidirectional"), dtype, columns=columns), direction=direction)


def test_states_before_the_first_step_and_peepholes() -> None:
    states = {"initial_h": normal(2, BATCH, HIDDEN), "initial_c": normal(2, BATCH, HIDDEN)}
    check(operands_of(2) | states | {"P": normal(2, 3 * HIDDEN)}, direction="bidirectional")
    activations = ["Sigmoid", "Tanh", "Tanh"] * 2
    check(
        {name: a for name, a in operands_of(2).items() if name != "B"},
        direction="bidirectional",
        activations=activations,
    )


@pytest.mark.parametrize(
    ("more", "attrs"),
    [
        ({"sequence_lens": np.array([6, 3], np.int32)}, {}),
        ({}, {"clip": 0.7}),
        ({}, {"input_forget": 1}),
        ({}, {"activations": ["Sigmoid", "Relu", "Tanh"]}),
    ],
    ids=["lengths", "clip", "input_forget", "activations"],
)
def test_others_are_those_of_the_weights_as_real_numbers(more: dict[str, Any], attrs: dict[str, Any]) -> None:
    """ONNX Runtime rounds there too, so its results are some percent away."""
    check(operands_of(1) | more, 0.05, **attrs)

"""The models of the benchmarks: built alike each time, sound, and with outputs that are neither tiny nor huge."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tunewright.bench.suite import MODELS
from tunewright.bench.suite.operators import OPERATORS
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.peers.runtimes import PEERS

SMALL = (
    "mlp", "lstm_tagger", "squeezenet", "mobilenet_v2", "unet_small", "vit_tiny",
    "yolo_nano_nms", "super_resolution", "qwen_step_q4", "qwen_export_step", "voice_activity", "mel_spectrum",
    "boosted_trees", "support_vectors",
)  # fmt: skip


def test_models_have_the_names_that_they_are_measured_by() -> None:
    assert {"resnet18", "resnet50", "vgg16_126x224", "bert_base_s128", "gpt2_prefill_s64"} < MODELS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_outputs_of_models_are_sane(name: str) -> None:
    pytest.importorskip("onnxruntime")
    data = MODELS[name]()
    onnx.checker.check_model(onnx.load_from_string(data))
    for output in PEERS["onnxruntime"](data, example_feeds(open_model(data)), 1, {}).run():
        assert output.size and 1e-2 < np.abs(output).max() < 1e3


def test_a_model_is_the_same_each_time() -> None:
    assert MODELS["squeezenet"]() == MODELS["squeezenet"]()


@pytest.mark.parametrize("category", sorted({operator.category for operator in OPERATORS.values()}))
def test_an_operator_of_each_category(category: str) -> None:
    name, operator = [(n, o) for n, o in OPERATORS.items() if o.category == category][-1]
    model = open_model(operator.build())
    assert not model.fallbacks, name
    assert model.tasks

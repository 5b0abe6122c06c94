"""Optimisers and n-grams, written in other ops: as ONNX's evaluator and ONNX Runtime have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

from tunewright.graph.contrib.optimisers import TRAINING
from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs
from .correcting import run_by_peer

RNG = np.random.default_rng(5)


def model_of_call(op: str, operands: list[np.ndarray], results: int, domain: str, **attrs: Any) -> ModelProto:
    names, outputs = [f"x{k}" for k in range(len(operands))], [f"y{k}" for k in range(results)]
    node = helper.make_node(op, names, outputs, domain=domain, **attrs)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, operands, strict=True)
    ]
    graph = helper.make_graph([node], "g", values, [ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(TRAINING, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: ModelProto, operands: list[np.ndarray]) -> list[np.ndarray]:
    """The results of kernels alone."""
    graph = rewrite(load(model.SerializeToString()))
    assert not any(isinstance(step, Fallback) for step in partition(graph))
    return Runs.steps(graph, {port.tensor: array for port, array in zip(graph.inputs, operands, strict=True)})


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize(
    ("op", "states", "attrs"),
    [
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.7, "mode": "standard", "norm_coefficient": 0.01}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.7, "mode": "nesterov", "norm_coefficient": 0.0}),
        ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.01}),
        ("Adam", 2, {"alpha": 0.9, "beta": 0.999, "norm_coefficient_post": 0.1}),
    ],
)
def test_optimisers(op: str, states: int, attrs: dict[str, Any], step: int) -> None:
    shapes = [(3, 5), (7,)]
    groups = [[RNG.random(shape).astype(np.float32) for shape in shapes] for _ in range(2 + states)]
    operands = [np.array(0.1, np.float32), np.array(step), *(array for group in groups for array in group)]
    model = model_of_call(op, operands, (1 + states) * len(shapes), TRAINING, **attrs)
    wanted = ReferenceEvaluator(model).run(None, {f"x{k}": array for k, array in enumerate(operands)})
    for result, other in zip(run(model, operands), wanted, strict=True):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, other, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(9,), (2, 11)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (3, 3)])
@pytest.mark.parametrize("skips", [0, 3])
def test_n_grams(shape: tuple[int, ...], mode: str, lengths: tuple[int, int], skips: int) -> None:
    pool = [0, 2, 1, *(1, 2, 2, 0), *(0, 0, 1, 2, 1, 0)]
    attrs = {
        "ngram_counts": [0, 3, 7],
        "ngram_indexes": [6, 0, 1, 2, 4, 5, 3],
        "pool_int64s": pool,
        "weights": [0.5, 2.0, 1.0, 3.0, 0.25, 1.5, 4.0],
        "min_gram_length": lengths[0],
        "max_gram_length": lengths[1],
        "max_skip_count": skips,
    }
    x = RNG.integers(0, 3, shape)
    x[..., :5] = 0, 0, 1, 2, 0
    model = model_of_call("TfIdfVectorizer", [x], 1, "", mode=mode, **attrs)
    [result], [wanted] = run(model, [x]), run_by_peer(model, {"x0": x})
    assert result.dtype == np.float32
    assert result.any()
    np.testing.assert_array_equal(result, wanted)


def test_n_grams_twice_in_a_pool_are_left_to_others() -> None:
    attrs = {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_int64s": [4, 4], "mode": "TF"}
    limits = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    model = model_of_call("TfIdfVectorizer", [np.arange(5)], 1, "", **attrs, **limits)
    assert [node.op for node in load(model.SerializeToString()).nodes] == ["TfIdfVectorizer"]

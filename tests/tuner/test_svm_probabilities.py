"""Probabilities of support vector machines: a session beside ONNX Runtime, the runtime's function beside numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tunewright.codegen.host import detect
from tunewright.graph.control.steps import Routine
from tunewright.graph.evaluation.coupling import couple_pairs
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session.session import InferenceSession

RNG = np.random.default_rng(11)


def svm(classes: int, rows: int, columns: int, scale: float) -> bytes:
    """Two vectors for each class."""

    def numbers(*shape: int) -> list[float]:
        return [float(value) for value in RNG.standard_normal(shape).astype(np.float32).reshape(-1)]

    pairs = classes * (classes - 1) // 2
    node = helper.make_node(
        "SVMClassifier", ["x"], ["label", "likely"], domain="ai.onnx.ml", kernel_type="RBF",
        kernel_params=[0.2, 0.0, 3.0], coefficients=numbers(classes - 1, 2 * classes),
        support_vectors=numbers(2 * classes, columns), vectors_per_class=[2] * classes, rho=numbers(pairs),
        prob_a=[scale * value for value in numbers(pairs)], prob_b=numbers(pairs),
        classlabels_ints=list(range(classes)),
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, columns))]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, (rows,)),
        helper.make_tensor_value_info("likely", TensorProto.FLOAT, (rows, classes)),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_beside_onnx_runtime(classes: int, threads: int) -> None:
    for scale in (1, 40):
        data = svm(classes, 67, 4, scale)
        opened, peer = open_model(data), onnxruntime.InferenceSession(data)
        assert not opened.fallbacks
        assert any(isinstance(step, Routine) for step in opened.steps)
        with InferenceSession.of(opened, detect(threads), {}) as own:
            for _ in range(3):
                feed = {"x": RNG.standard_normal((67, 4)).astype(np.float32)}
                for value, expected in zip(own.run(None, feed), peer.run(None, feed), strict=True):
                    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_numpy_says_the_same() -> None:
    """The op alone: on machines for which the runtime has no functions it is a node without a kernel."""
    node: Any = None
    likely = RNG.uniform(0.05, 0.95, (50, 3)).astype(np.float32)
    wins = np.zeros((50, 3, 3), np.float32)
    for place, (i, j) in enumerate(((0, 1), (0, 2), (1, 2))):
        wins[:, i, j], wins[:, j, i] = likely[:, place], 1 - likely[:, place]
    turned = np.swapaxes(wins, 1, 2)
    q = np.where(np.eye(3) > 0, (turned * turned).sum(2, keepdims=True), -turned * wins)
    results = couple_pairs(node, q.astype(np.float32))[0]
    np.testing.assert_allclose(results.sum(1), 1, rtol=1e-5)
    errors = np.einsum("rij,rj->ri", q, results)
    errors -= (errors * results).sum(1, keepdims=True)
    assert np.abs(errors).max() < 0.005 / 3 + 1e-6

"""Caches that are written to, in native code."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tunewright.tuner import InferenceSession


@pytest.mark.parametrize(
    ("length", "mode", "places"), [(2, "linear", [0, 4, 5]), (4, "circular", [6, 15, -9]), (7, "circular", [3, 0, 7])]
)
def test_tensor_scatter(length: int, mode: str, places: list[int]) -> None:
    """Places before the beginning and after the end go round; indices of kernels can't be negative."""
    rng = np.random.default_rng(5)
    past, update = (rng.standard_normal((3, extent, 5)).astype(np.float32) for extent in (7, length))
    feeds = {"past": past, "update": update, "places": np.array(places)}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    node = helper.make_node("TensorScatter", list(feeds), ["y"], axis=1, mode=mode)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    session = InferenceSession(model.SerializeToString())
    assert not session.coverage().fallback
    [expected] = list(ReferenceEvaluator(model).run(None, feeds))
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)

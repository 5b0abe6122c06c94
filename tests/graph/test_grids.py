"""Grids of affine maps as products: by ONNX Runtime's AffineGrid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs


@pytest.mark.parametrize("is_aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 7), (3, 1, 2, 13), (2, 1, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_affine_grid(size: tuple[int, ...], dtype: Any, is_aligned: int) -> None:
    rank = len(size) - 2
    theta = np.random.default_rng(1).standard_normal((size[0], rank, rank + 1)).astype(dtype)
    graph = helper.make_graph(
        [helper.make_node("AffineGrid", ["x", "size"], ["y"], align_corners=is_aligned)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(theta.dtype), theta.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(size), "size")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    rewritten = rewrite(load(model))
    assert not any(isinstance(step, Fallback) for step in partition(rewritten))
    result: Any = Runs.steps(rewritten, {rewritten.inputs[0].tensor: theta})[0]
    [expected] = onnxruntime.InferenceSession(model).run(None, {"x": theta})
    assert result.dtype == theta.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)

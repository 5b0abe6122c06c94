"""BatchNormalization and MeanVarianceNormalization as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .correcting import agree, imported, normal


@pytest.mark.parametrize("version", [7, 9, 13, 14, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization_learns_nothing(version: int, dtype: Any):
    parameters = [np.abs(normal(3, dtype=dtype)) + np.asarray(0.1, dtype) for _ in range(4)]
    agree("BatchNormalization", [normal(2, 3, 4, dtype=dtype), *parameters], version, 1, epsilon=0.01, momentum=0.8)


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_mean_variance_normalization(dtype: str, runs: Any):
    graph = imported(f"g ({dtype}[2,3,4,5] x) => ({dtype}[] y) {{ y = MeanVarianceNormalization(x) }}", 13)
    x = normal(2, 3, 4, 5, dtype=graph.types["v0"].dtype)
    [found] = runs.nodes(graph, {"v0": x})
    wide = x.astype(np.float64)
    right = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, right, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-3)


def test_mean_variance_normalization_does_not_cancel(runs: Any):
    graph = imported("g (float[1,1,2,1] x) => (float[] y) { y = MeanVarianceNormalization(x) }", 13)
    x = np.array([-1001.5, -1001.25], np.float32).reshape(1, 1, 2, 1)
    for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_allclose(found.reshape(-1), [-1, 1], rtol=1e-6)

"""Decoders as PyTorch's exporter writes them: all has kernels, and keys and values are not copied for their heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tunewright.bench.suite.decoders import DecoderSizes, decoder_blocks
from tunewright.bench.suite.network import NetworkForm
from tunewright.graph.fusion.fusion import Fallback, TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

SIZES = {"layers": 2, "features": 40, "heads": 5, "groups": 1, "inner": 33}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 0.03)])
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize(("tokens", "past"), [(7, 0), (3, 5), (1, 6)])
def test_blocks(tokens: int, past: int, opset: int, dtype: Any, tolerance: float, runs: Any) -> None:
    model = decoder_blocks(DecoderSizes(tokens, past, **SIZES), opset, NetworkForm(dtype=dtype))
    graph = rewrite(load(model))
    steps = partition(graph)
    assert not [step for step in steps if isinstance(step, Fallback)]
    assert not [step for step in steps if isinstance(step, TaskCall) and "Expand" in step.task.op.split("+")]
    assert [node.op for node in graph.nodes].count("RMSNormalization") == 5
    rng = np.random.default_rng(2)
    positions = np.arange(past, past + tokens)[None]
    kinds = {port.label: (port.tensor, graph.types[port.tensor]) for port in graph.inputs}
    feeds = {label: rng.standard_normal(kind.shape).astype(kind.dtype) for label, (_, kind) in kinds.items()}
    feeds["positions"] = positions
    ours = runs.steps(graph, {kinds[label][0]: array for label, array in feeds.items()}, steps)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    for result, expected in zip(ours, theirs, strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())

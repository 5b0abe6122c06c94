"""Composite ops in the form that ONNX writes for one call of them."""

from __future__ import annotations

import numpy as np
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs

RNG = np.random.default_rng(3)


def run(text: str, *feeds: np.ndarray) -> list[np.ndarray]:
    """The results of kernels alone."""
    graph = rewrite(load(parser.parse_model(text).SerializeToString()))
    assert not any(isinstance(step, Fallback) for step in partition(graph))
    return Runs.steps(graph, {port.tensor: array for port, array in zip(graph.inputs, feeds, strict=True)})


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_operands_that_are_absent():
    text = """<ir_version: 13, opset_import: ["" : 27]>
        g (float[2,3,5] x, float[3,1,4] w) => (float[2,3,5] y, float[2,3,3] state) {
            y, state = CausalConvWithState <activation = "silu"> (x, w)
        }"""
    x, w = f32(2, 3, 5), f32(3, 1, 4)
    wanted = ReferenceEvaluator(parser.parse_model(text)).run(None, {"x": x, "w": w})
    for result, other in zip(run(text, x, w), wanted, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)


def test_a_graph_in_a_call_reads_what_is_outside():
    text = """<ir_version: 13, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
        g (float[1,4,3,5] q, float[1,2,7,5] k, float[1,2,7,3] v, float[7] b) => (float[1,4,3,3] y) {
            c = Neg(b)
            y = ai.onnx.preview.FlexAttention <
                score_mod = m (float[B,H,L,S] s) => (float[B,H,L,S] t) { t = Add(s, c) }
            > (q, k, v)
        }"""
    q, k, v, b = f32(1, 4, 3, 5), f32(1, 2, 7, 5), f32(1, 2, 7, 3), f32(7)
    scores = q @ np.repeat(k, 2, axis=1).swapaxes(2, 3) / np.sqrt(5) - b
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ np.repeat(v, 2, axis=1)
    [result] = run(text, q, k, v, b)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_normalisation_in_training():
    text = """<ir_version: 10, opset_import: ["" : 15]>
        g (float[2,3,5,7] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[2,3,5,7] y, float[3] mean, float[3] var) {
            y, mean, var = BatchNormalization <training_mode = 1, momentum = 0.8, epsilon = 0.001> (x, s, b, m, v)
        }"""
    feeds = dict(zip("xsbmv", (f32(2, 3, 5, 7) + 3, f32(3), f32(3), f32(3), abs(f32(3))), strict=True))
    wanted = ReferenceEvaluator(parser.parse_model(text)).run(None, feeds)
    for result, other in zip(run(text, *feeds.values()), wanted, strict=True):
        np.testing.assert_allclose(result, other, rtol=2e-5, atol=1e-5)

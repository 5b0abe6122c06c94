"""Sequences and optional values whose items are known: their readers get the tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from tunewright.graph.onnx_import import load

from .conftest import Runs
from .correcting import run_by_peer

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
Y = X + 100


def ops_of(body: str) -> list[str]:
    """The ops of the graph, whose results are those of ONNX Runtime."""
    text = f'<ir_version: 10, opset_import: ["" : 18]> g (float[2,4,3] x, float[2,4,3] y, int64 n) => {body}'
    model = parser.parse_model(text)
    graph = load(model.SerializeToString())
    feeds: dict[str, Any] = {"x": X, "y": Y, "n": np.array(1)}
    ours = Runs.nodes(graph, {port.tensor: feeds[port.label] for port in graph.inputs})
    for result, wanted in zip(ours, run_by_peer(model, feeds), strict=True):
        assert np.asarray(result).dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(result, wanted)
    return [node.op for node in graph.nodes]


CONSTANTS = "m = Constant <value_int = -2> () o = Constant <value_int = 1> () t = Constant <value_int = 3> ()"


@pytest.mark.parametrize(
    "body",
    [
        "(float[2,4,3] z) { s = SequenceConstruct(x, y) z = SequenceAt(s, m) }",
        "(float[2,4,3] z) { s = SequenceConstruct(x) q = SequenceInsert(s, y, o) z = SequenceAt(q, o) }",
        "(float[2,N,3] z) { e = SequenceEmpty() s = SequenceInsert(e, x) q = SequenceInsert(s, y) z = SequenceAt(q,m)}",
        "(float[N,4,3] z) { s = SequenceConstruct(x, y, x) q = SequenceErase(s, o) z = ConcatFromSequence<axis=0>(q) }",
        "(float[2,4,3] z) { s = SequenceConstruct(x, y, x) q = SequenceErase(s) z = SequenceAt(q, o) }",
        "(float[2,4,K,3] z) { s = SequenceConstruct(x, y) z = ConcatFromSequence<axis=-2, new_axis=1>(s) }",
        """(float[K,L,M,N] z) { f = Constant <value_ints = [0]> () w = Constant <value_ints = [1]> ()
            e = Slice(x, f, f, w) s = SequenceConstruct(e, e) z = ConcatFromSequence<axis=1, new_axis=1>(s) }""",
        "(float[2,1,3] z, int64 k) { s = SplitToSequence<axis=1>(x) z = SequenceAt(s, o) k = SequenceLength(s) }",
        "(float[2,3] z) { s = SplitToSequence<axis=1, keepdims=0>(x) z = SequenceAt(s, m) }",
        "(float[2,K,3] z) { s = SplitToSequence<axis=1>(x, t) z = SequenceAt(s, o) }",
    ],
)
def test_what_reads_a_known_sequence(body: str) -> None:
    ops = ops_of(body.replace("{", "{ " + CONSTANTS))
    assert not any("Sequence" in op for op in ops)


def test_optional_values() -> None:
    assert ops_of("(bool a, bool b) { a = OptionalHasElement(x) b = OptionalHasElement() }") == []
    body = "(bool a, float[2,4,3] z) { p = Optional(x) a = OptionalHasElement(p) q = OptionalGetElement(p) z = Neg(q) }"
    assert ops_of(body) == ["Neg"]


def test_a_place_that_only_a_run_tells() -> None:
    assert "SequenceAt" in ops_of("(float[2,4,3] z) { s = SequenceConstruct(x, y) z = SequenceAt(s, n) }")
    outside = "(float[2,4,3] z) { c = Constant <value_int = 2> () s = SequenceConstruct(x, y) z = SequenceAt(s, c) }"
    text = f'<ir_version: 10, opset_import: ["" : 18]> g (float[2,4,3] x, float[2,4,3] y) => {outside}'
    assert "SequenceAt" in [node.op for node in load(parser.parse_model(text).SerializeToString()).nodes]

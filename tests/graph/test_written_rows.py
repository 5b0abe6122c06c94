"""Updates as rows that are written: the same bits, also for indices that are outside, which are for no place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites.written_rows import written_rows

from .correcting import RNG, normal, parsed


@pytest.mark.parametrize(
    ("op", "shape", "indices", "updates"),
    [
        ("ScatterElements <axis = 1>", (20, 60), (19, 80), (19, 80)),
        ("ScatterND", (20, 30), (300, 2), (300,)),
        ("ScatterND", (200, 30), (400, 1), (400, 30)),
    ],
)
def test_the_rows_are_those_that_were_asked_for(
    op: str, shape: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...], runs: Any
):
    types = [
        f"{kind}[{','.join(map(str, dims))}]"
        for kind, dims in (("float", shape), ("int64", indices), ("float", updates))
    ]
    text = f"({types[0]} x, {types[1]} i, {types[2]} u) => ({types[0]} y) {{ y = {op} (x, i, u) }}"
    graph = load(parsed(f"g {text}", 18).SerializeToString())
    changed = written_rows(graph)
    assert "WriteRows" in [node.op for node in changed.nodes]
    places = RNG.integers(-20, 20, indices)
    feeds = {"v0": normal(*shape), "v1": places, "v2": normal(*updates)}
    [expected], [result] = runs.nodes(graph, feeds), runs.nodes(changed, feeds)
    np.testing.assert_array_equal(result, expected)
    feeds["v1"] = np.full(indices, 2**40)
    np.testing.assert_array_equal(runs.nodes(changed, feeds)[0], feeds["v0"])
    feeds["v1"] = np.full(indices, -(2**40))
    np.testing.assert_array_equal(runs.nodes(changed, feeds)[0], feeds["v0"])


def test_few_updates_stay_with_their_kernel():
    text = "g (float[20] x, int64[3] i, float[3] u) => (float[20] y) { y = ScatterElements (x, i, u) }"
    graph = load(parsed(text, 18).SerializeToString())
    assert written_rows(graph) is graph

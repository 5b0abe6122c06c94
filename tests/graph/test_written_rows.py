"""Updates as rows that are written: the same bits, also for indices that are outside, which are for no place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites.written_rows import whole_rows, written_rows

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


@pytest.mark.parametrize("reduction", ["", ', reduction = "add"', ', reduction = "max"'])
def test_elements_of_whole_rows_are_rows(reduction: str, runs: Any):
    text = f"""g (float[20,3,4] x, int64[40,1,1] i, float[40,3,4] u) => (float[20,3,4] y) <int64[3] s = {{40,3,4}}>
        {{ e = Expand(i, s) y = ScatterElements <axis = 0{reduction}> (x, e, u) }}"""
    graph = load(parsed(text, 18 if reduction else 13).SerializeToString())
    changed = whole_rows(graph)
    assert [node.op for node in changed.nodes if node.op.startswith("Scatter")] == ["ScatterND"]
    feeds = {"v0": normal(20, 3, 4), "v1": RNG.integers(-20, 20, (40, 1, 1)), "v2": normal(40, 3, 4)}
    [expected], [result] = runs.nodes(graph, feeds), runs.nodes(changed, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "indices", "axis"), [((20, 5), "40,1", 0), ((20, 4), "1,4", 0), ((40, 4), "40,1", 1)]
)
def test_other_elements_stay(shape: tuple[int, int], indices: str, axis: int):
    body = f"e = Expand(i, s) y = ScatterElements <axis = {axis}> (x, e, u)"
    x = f"float[{shape[0]},{shape[1]}]"
    text = f"g ({x} x, int64[{indices}] i, float[40,4] u) => ({x} y) <int64[2] s = {{40,4}}> {{ {body} }}"
    graph = load(parsed(text, 18).SerializeToString())
    assert whole_rows(graph) is graph

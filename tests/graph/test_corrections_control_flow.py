"""Loops, scans and maps as they should be: bodies that run no time, and what bodies read around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.onnx_import import load

from .correcting import RNG, empty, imported, normal, parsed, run_by_peer

LOOP = """
    g (int64 n, bool go, float[2,3] x) => (float[] last, float[] all) <int64[2] turned = {{3, 2}}> {{
        last, all = Loop (n, go, x) <body = b (int64 i, bool c, float{state} s)
            => (bool k, float{state} d, float{out} e) {{ k = Identity(c) d = Add(s, x) e = {value} }}>
    }}
"""


@pytest.mark.parametrize(("trips", "condition"), [(0, True), (3, False), (-1, True)])
@pytest.mark.parametrize(
    ("state", "out", "value", "shape"),
    [
        ("[2,3]", "[2,3]", "Mul(d, d)", (0, 2, 3)),
        ("[2,3]", "[A,B]", "Transpose(s)", (0, 3, 2)),
        ("[2,3]", "[]", "Identity(s)", (0, 2, 3)),
        ("[]", "[]", "Mul(x, x)", (0, 2, 3)),  # what is read from around the body
        ("[]", "[A,3]", "Identity(s)", (0, 0, 3)),
        ("[]", "[]", "Identity(s)", (0,)),
        ("[2,3]", "[]", "Reshape(s, turned)", (0, 3, 2)),
        ("[2,3]", "[]", "ReduceMax<keepdims = 0>(s)", (0,)),
    ],
)
def test_a_loop_of_no_trip(
    state: str, out: str, value: str, shape: tuple[int, ...], trips: int, condition: bool, runs: Any
):
    model = parsed(LOOP.format(state=state, out=out, value=value))
    feeds = {"n": np.array(trips), "go": np.array(condition), "x": normal(2, 3)}
    graph = load(model.SerializeToString())
    last, every = runs.nodes(graph, {value.tensor: feeds[value.label] for value in graph.inputs})
    np.testing.assert_array_equal(last, feeds["x"])
    assert every.shape == shape
    assert [array.shape for array in run_by_peer(model, feeds)] == [(2, 3), shape]


def test_a_loop_of_no_trip_has_outputs_of_several_types(runs: Any):
    graph = imported("""
        g (int64 n, float[2,3] x)
            => (float[] last, int64[] count, bool[] flag, double[] wide, uint8[] bytes, string[] words)
        <string[2] names = {"a", "b"}> {
            last, count, flag, wide, bytes, words = Loop (n, , x) <body = b (int64 i, bool c, float[2,3] s)
                => (bool k, float[2,3] d, int64 i2, bool c2, double[2,3] w, uint8[3,2] u, string[2] t)
            { k = Identity(c) d = Identity(s) i2 = Identity(i) c2 = Identity(c) w = Cast<to = 11>(s)
              turned = Transpose(s) u = Cast<to = 2>(turned) t = Identity(names) }>
        }
    """)
    _, *scanned = runs.nodes(graph, {"v0": np.array(0), "v1": normal(2, 3)})
    assert [array.shape for array in scanned] == [(0,), (0,), (0, 2, 3), (0, 3, 2), (0, 2)]
    assert [array.dtype.name for array in scanned] == ["int64", "bool", "float64", "uint8", "object"]


@pytest.mark.parametrize(("outer", "inner"), [(0, 2), (2, 0), (0, 0), (2, 3)])
def test_nested_loops(outer: int, inner: int, runs: Any):
    model = parsed("""
        g (int64 n, int64 m, float[2,3] x) => (float[] last, float[] all) {
            last, all = Loop (n, , x) <body = b (int64 i, bool c, float[2,3] s) => (bool k, float[2,3] d, float[] e) {
                k = Identity(c)
                d, e = Loop (m, c, s) <body = bb (int64 j, bool cc, float[2,3] t)
                    => (bool kk, float[2,3] u, float[3,2] v) { kk = Identity(cc) u = Add(t, x) v = Transpose(u) }>
            }>
        }
    """)
    feeds = {"n": np.array(outer), "m": np.array(inner), "x": normal(2, 3)}
    graph = load(model.SerializeToString())
    results = runs.nodes(graph, {value.tensor: feeds[value.label] for value in graph.inputs})
    for ours, peer_result in zip(results, run_by_peer(model, feeds), strict=True):
        assert ours.shape == peer_result.shape
        np.testing.assert_allclose(ours, peer_result, rtol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), [(0, (0, 2, 3)), (1, (2, 0, 3)), (-1, (2, 3, 0))])
def test_a_scan_of_nothing(axis: int, shape: tuple[int, ...], runs: Any):
    extents = ",".join(map(str, shape))
    graph = imported(f"""
        g (float[3] start, float[{extents}] rows) => (float[] last, float[] out) {{
            last, out = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}],
                body = b (float[3] s, float[2,3] row) => (float[3] t, float[] u)
                {{ t = Identity(s) u = Transpose(row) }}>(start, rows)
        }}
    """)
    last, out = runs.nodes(graph, {"v0": normal(3), "v1": empty(*shape)})
    assert last.shape == (3,)
    assert out.shape == tuple(np.insert([3, 2], axis % 3, 0))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_sequence_maps_read_what_is_around_them(count: int, runs: Any):
    graph = imported(f"""
        g (float[{count},3] x, float[3] y) => (int64 n, float[] z) <float[1,3] none = {{0, 0, 0}}> {{
            items = SplitToSequence<axis = 0>(x)
            twice, shifted = SequenceMap<body = b (float[1,3] a, float[1,3] same) => (float[1,3] p, float[1,3] q)
                {{ p = Add(a, same) q = Add(a, y) }}>(items, items)
            n = SequenceLength(twice)
            some = SequenceInsert(shifted, none)
            z = ConcatFromSequence<axis = 0>(some)
        }}
    """)
    x, y = RNG.standard_normal((count, 3)).astype(np.float32), normal(3)
    n, z = runs.nodes(graph, {"v0": x, "v1": y})
    assert n == count
    np.testing.assert_allclose(z, [*(x + y), np.zeros(3)])

"""Which runs of calls are offered as one task, and that it computes what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from tunewright.graph.fusion import segments
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.fusion.segments import SegmentRole, chains, role
from tunewright.graph.ir import Array, Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small ones."""
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)


def graph_of(text: str, known: Sequence[str] = ()) -> tuple[Graph, dict[str, Array]]:
    """A graph from ONNX's text form, and values for its inputs; those in `known` are weights of the model."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)
    rng = np.random.default_rng(0)
    for value in [value for value in model.graph.input if value.name in known]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    graph = rewrite(load(model.SerializeToString()))
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        feeds[value.tensor] = rng.standard_normal(graph.types[value.tensor].shape).astype(np.float32)
    return graph, feeds


SEPARABLE = """
    g (float[1,8,6,6] x, float[16,8,1,1] a, float[16] b, float[16,1,3,3] w, float[8,16,1,1] c, float[8] d)
      => (float[1,8,6,6] y)
    {
        e = Conv(x, a, b) f = Clip(e) h = Conv <group = 16, pads = [1,1,1,1]> (f, w) i = Relu(h) j = Conv(i, c, d)
        y = Add(j, x)
    }
"""

ATTENTION = """
    g (float[5,12] q, float[5,12] k, float[5,12] v, float[5,5] mask) => (float[5,12] y)
    <int64[3] heads = {5, 3, 4}, int64[2] flat = {5, 12}, float scale = {0.5}>
    {
        q3 = Reshape(q, heads) k3 = Reshape(k, heads) v3 = Reshape(v, heads)
        qh = Transpose <perm = [1,0,2]> (q3) kh = Transpose <perm = [1,2,0]> (k3) vh = Transpose <perm = [1,0,2]> (v3)
        s = MatMul(qh, kh) t = Mul(s, scale) u = Add(t, mask) p = Softmax <axis = -1> (u) o = MatMul(p, vh)
        oh = Transpose <perm = [1,0,2]> (o) y = Reshape(oh, flat)
    }
"""

SEPARABLE_WEIGHTS = ("a", "b", "w", "c", "d")


def offered(text: str, known: Sequence[str] = ()) -> list[list[tuple[int, int]]]:
    """Where the segments of each chain are."""
    graph, _ = graph_of(text, known)
    return [[(s.start, s.stop) for s in chain.segments] for chain in chains(graph, partition(graph))]


def test_an_inverted_residual() -> None:
    assert offered(SEPARABLE, SEPARABLE_WEIGHTS) == [[(0, 3), (1, 3)]]


def test_attention() -> None:
    assert offered(ATTENTION) == [[(0, 3)]]


def test_what_is_read_twice_stays() -> None:
    result = SEPARABLE.replace("=> (float[1,8,6,6] y)", "=> (float[1,8,6,6] y, float[1,16,6,6] f)")
    assert offered(result, SEPARABLE_WEIGHTS) == [[(0, 2)]]
    middle = SEPARABLE.replace("=> (float[1,8,6,6] y)", "=> (float[1,8,6,6] y, float[1,16,6,6] i)")
    assert offered(middle, SEPARABLE_WEIGHTS) == []


def test_what_the_reference_evaluator_reads_stays() -> None:
    flat = "=> (float[1,8,6,6] y, float[?] z) <int64[1] all = {-1}>"
    text = SEPARABLE.replace("=> (float[1,8,6,6] y)", flat).replace(
        "y = Add", "k = Reshape(i, all) z = Unique(k) y = Add"
    )
    assert offered(text, SEPARABLE_WEIGHTS) == []


def test_what_is_small_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = 16 * 6 * 6 * 4
    monkeypatch.setattr(segments, "SMALLEST_BYTES", size_bytes)
    assert offered(SEPARABLE, SEPARABLE_WEIGHTS) == []
    monkeypatch.setattr(segments, "SMALLEST_BYTES", size_bytes - 1)
    assert len(offered(SEPARABLE, SEPARABLE_WEIGHTS)) == 1


def test_where_computing_takes_it_all_it_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three do 16 * 50 operations a pixel and a few, and 32 numbers pass; the last two 16 * 34, and 16 pass."""
    monkeypatch.setattr(segments, "MOST_FLOPS_ELEMENT", 32.0)
    assert offered(SEPARABLE, SEPARABLE_WEIGHTS) == [[(0, 3)]]


def test_columns_of_a_softmax_are_no_rows() -> None:
    assert offered(ATTENTION.replace("axis = -1", "axis = -2")) == []


def test_windows_over_all_channels_are_no_separable_convolution() -> None:
    text = """
    g (float[1,8,6,6] x, float[16,8,3,3] w, float[8,16,1,1] c) => (float[1,8,6,6] y)
    { e = Conv <pads = [1,1,1,1]> (x, w) f = Relu(e) y = Conv(f, c) }
    """
    assert offered(text, ("w", "c")) == []


def test_longer_chains_are_one(runs) -> None:
    text = """
    g (float[1,8,6,6] x, float[8,1,3,3] v, float[16,8,1,1] a, float[16,1,3,3] w, float[8,16,1,1] c)
      => (float[1,8,3,3] y)
    {
        e = Conv <group = 8, pads = [1,1,1,1]> (x, v) f = Relu(e) h = Conv(f, a) i = Relu(h)
        j = Conv <group = 16, pads = [1,1,1,1], strides = [2,2]> (i, w) y = Conv(j, c)
    }
    """
    known = ("v", "a", "w", "c")
    assert offered(text, known) == [[(0, 2), (1, 4), (2, 4)]]
    check(*graph_of(text, known), runs)


@pytest.mark.parametrize(
    ("text", "known"), [(SEPARABLE, SEPARABLE_WEIGHTS), (ATTENTION, ())], ids=["conv", "attention"]
)
def test_a_segment_computes_what_its_calls_do(text: str, known: Sequence[str], runs) -> None:
    check(*graph_of(text, known), runs)


def check(graph: Graph, feeds: Mapping[str, Array], runs) -> None:
    """Every segment alone in the place of its calls gives the outputs of the nodes."""
    steps = partition(graph)
    expected = runs.nodes(graph, feeds)
    for chain in chains(graph, steps):
        for segment in chain.segments:
            inside = chain.calls[segment.start : segment.stop]
            assert segment.call.task.flops >= sum(call.task.flops for call in inside)
            assert segment.call.outputs == inside[-1].outputs
            assert {node for call in inside for node in map(str, call.nodes)} == set(map(str, segment.call.nodes))
            merged = [s for s in steps if s not in inside[:-1]]
            merged[merged.index(inside[-1])] = segment.call
            for value, right in zip(runs.steps(graph, feeds, merged), expected, strict=True):
                runs.close(value, right)


def test_roles() -> None:
    graph, _ = graph_of(SEPARABLE, SEPARABLE_WEIGHTS)
    assert [role(call.task) for call in calls(graph)][1:] == [
        SegmentRole.PRODUCT,
        SegmentRole.WINDOW,
        SegmentRole.PRODUCT,
    ]
    graph, _ = graph_of(ATTENTION)
    assert [role(call.task) for call in calls(graph)] == [SegmentRole.PRODUCT, SegmentRole.ROWS, SegmentRole.PRODUCT]
    graph, _ = graph_of("g (float[4,6] x) => (float[4] y) { y = ReduceSum <keepdims = 0> (x) }")
    assert [role(call.task) for call in calls(graph)] == [None]


def calls(graph: Graph) -> list[TaskCall]:
    return [step for step in partition(graph) if isinstance(step, TaskCall)]

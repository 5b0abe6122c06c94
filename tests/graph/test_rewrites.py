"""Rewrites: each does what its docstring shows, and no graph computes anything else afterwards."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tunewright.graph import rewrites
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import STEPS, rewrite
from tunewright.graph.rewrites.recognition import gates, gelus, layer_norms, softmaxes
from tunewright.graph.rewrites.repetition import grouped_scores, repeated_operands
from tunewright.graph.rewrites.simplify import (
    common_subexpressions,
    constant_folding,
    dead_code,
    identities,
    reshapes,
    transposes,
)
from tunewright.graph.rewrites.weights import batch_norms, matrix_products, pads, scales, whole_pools
from tunewright.graph.rewrites.widening import narrow_floats

Rewrite = Callable[[Graph], Graph]


@pytest.fixture(autouse=True)
def no_rule_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A rule whose result doesn't fit is logged as a warning: none of these may."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def imported(body: str, opset: int = 18) -> Graph:
    return load(parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}').SerializeToString())


def settled(graph: Graph, *rewrites: Rewrite) -> Graph:
    """The rewrites in turn until none changes anything."""
    while True:
        before = graph
        for run in rewrites:
            graph = run(graph)
        if graph is before:
            return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    kinds = {value.tensor: graph.types[value.tensor] for value in graph.inputs}
    return {name: rng.standard_normal(kind.shape).astype(kind.dtype) for name, kind in kinds.items()}


@pytest.fixture
def rewritten(runs: Any) -> Callable[..., Graph]:
    """A model after some rewrites, found to compute the same as before."""

    def run(body: str, *rewrites: Rewrite, opset: int = 18) -> Graph:
        before = imported(body, opset)
        after = settled(before, *rewrites)
        feeds = feeds_of(before)
        for result, expected in zip(runs.nodes(after, feeds), runs.nodes(before, feeds), strict=True):
            runs.close(result, expected, 1e-4)
        assert set(after.types) >= {name for node in after.nodes for name in (*node.inputs, *node.outputs) if name}
        return after

    return run


S = "float one = {1}, float zero = {0}, float two = {2}, float half = {0.5}, float third = {0.333333}"

IDENTITIES: list[tuple[str, list[str]]] = [
    ("y = Mul(x, one)", []),
    ("y = Add(zero, x)", ["Add"]),  # -0 + 0 is 0
    ("y = Div(x, one)", []),
    ("y = Sub(x, zero)", []),
    ("y = Sub(x, two)", ["Add"]),
    ("y = Sub(two, x)", ["Sub"]),
    ("y = Div(x, two)", ["Mul"]),
    ("y = Div(x, third)", ["Div"]),
    ("y = Div(one, x)", ["Reciprocal"]),
    ("a = Neg(x) y = Neg(a)", []),
    ("y = Identity(x)", []),
    ("y = Cast<to = 1>(x)", []),
    ("a = Relu(x) y = Relu(a)", ["Relu"]),
    ("y = Clip(x, zero)", ["Relu"]),
    ("a = Clip(x, zero, two) y = Clip(a, half, one)", ["Clip"]),
    ("a = Clip(x, half, one) y = Clip(a, zero, two)", ["Clip", "Clip"]),
    ("a = Relu(x) y = Clip(a, zero, two)", ["Clip"]),
    ("y = Pow(x, one)", []),
    ("y = Pow(x, two)", ["Mul"]),
    ("y = Sum(x, z, x)", ["Add", "Add"]),
    ("y = Max(x, z, half)", ["Max", "Max"]),
    ("y = Mean(x, z)", ["Add", "Mul"]),
    ("y = Sum(x)", []),
    ("y = Concat<axis = 0>(x)", []),
    ("a = Concat<axis = 0>(x, z) y = Concat<axis = 0>(a, x)", ["Concat"]),
    ("p = Constant<value_ints = [0, 0, 0, 0]>() y = Pad(x, p)", []),
    ("a = Constant<value_ints = [0]>() b = Constant<value_ints = [9]>() y = Slice(x, a, b)", []),
    ("s = Constant<value_ints = [2, 6]>() y = Expand(x, s)", []),
    ("s = Constant<value_ints = [1, 1]>() y = Tile(x, s)", []),
    ("y = Split<axis = 0, num_outputs = 1>(x)", []),
    ("y = Dropout(x)", []),
]


@pytest.mark.parametrize(("nodes", "left"), IDENTITIES, ids=[nodes for nodes, _ in IDENTITIES])
def test_identities(nodes: str, left: list[str], rewritten: Callable[..., Graph]):
    body = f"g (float[2,6] x, float[2,6] z) => (float y) <{S}> {{ {nodes} }}"
    assert ops(rewritten(body, identities)) == left


def test_neutral_elements_that_broadcast_stay(rewritten: Callable[..., Graph]):
    body = "g (float[6] x) => (float[2,6] y) <float[2,1] ones = {1, 1}> { y = Mul(x, ones) }"
    assert ops(rewritten(body, identities)) == ["Mul"]


def test_dead_code(rewritten: Callable[..., Graph]):
    graph = imported("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert dead_code(graph) is graph
    larger = Graph(graph.inputs, graph.outputs, (*graph.nodes, graph.nodes[0]), {"v9": np.zeros(3)}, graph.types)
    assert dead_code(larger).constants == {}


def test_common_subexpressions(rewritten: Callable[..., Graph]):
    graph = rewritten(
        """
        g (float[2] x, float[2] z) => (float[2] y) <float[1] a = {3}, float[1] b = {3}>
        { p = Add(x, z) q = Add(z, x) r = Mul(p, a) s = Mul(q, b) t = Sub(x, z) u = Sub(z, x) v = Add(r, s)
          w = Add(t, u) y = Add(v, w) }
        """,
        common_subexpressions,
    )
    assert Counter(ops(graph)) == {"Add": 4, "Mul": 1, "Sub": 2}


def test_random_numbers_are_not_common():
    graph = imported("g (float[2] x) => (float y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }")
    assert len(common_subexpressions(graph).nodes) == 3


def test_constant_folding():
    graph = imported("g (float[2,3] x) => (float[2,3] y) <float[3,3] w = {0,1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }")
    known = Graph((), graph.outputs, graph.nodes, {**graph.constants, "v0": np.ones((2, 3), np.float32)}, graph.types)
    folded = constant_folding(known)
    assert folded.nodes == () and folded.constants[folded.outputs[0].tensor].tolist() == [[9, 12, 15]] * 2


def test_what_has_no_elements_is_known():
    graph = rewrite(imported("g (float[2,0,4] x) => (float y) { a = Exp(x) y = ReduceSum <keepdims = 0> (a) }"))
    assert graph.nodes == ()
    assert graph.constants[graph.outputs[0].tensor].tolist() == 0
    assert [value.label for value in graph.inputs] == ["x"]


MOVEMENT: list[tuple[str, list[str]]] = [
    ("a = Reshape(x, s6) y = Reshape(a, s32)", ["Reshape"]),
    ("a = Reshape(x, s6) y = Reshape(a, s123)", []),
    ("a = Unsqueeze(x, i0) b = Squeeze(a, i0) y = Flatten(b)", ["Reshape"]),
    ("a = Transpose<perm = [2, 0, 1]>(x) y = Transpose<perm = [1, 2, 0]>(a)", []),
    ("a = Transpose<perm = [2, 0, 1]>(x) y = Transpose<perm = [0, 2, 1]>(a)", ["Transpose"]),
    ("a = Transpose<perm = [2, 0, 1]>(x) y = Transpose<perm = [2, 0, 1]>(a)", ["Reshape"]),
    ("y = Transpose<perm = [1, 0, 2]>(x)", ["Reshape"]),
    ("y = Transpose<perm = [0, 1, 2]>(x)", []),
    ("a = Expand(r, s123) y = Add(x, a)", ["Add"]),
    ("a = Expand(r, s123) y = Relu(a)", ["Expand", "Relu"]),
    ("a = Expand(r, s123) b = Expand(r, s123) y = Add(a, b)", ["Expand", "Add"]),
]


@pytest.mark.parametrize(("nodes", "left"), MOVEMENT, ids=[nodes for nodes, _ in MOVEMENT])
def test_movement(nodes: str, left: list[str], rewritten: Callable[..., Graph]):
    body = f"""
        g (float[1,2,3] x, float[3] r) => (float y)
        <int64[1] s6 = {{6}}, int64[2] s32 = {{3, 2}}, int64[3] s123 = {{1, 2, 3}}, int64[1] i0 = {{0}}>
        {{ {nodes} }}
    """
    assert ops(rewritten(body, reshapes, transposes, common_subexpressions)) == left


COPIES = [
    ("r = Reshape(e, t) y = MatMul(q, r)", False),
    ("r = Reshape(e, t) h = Mul(r, half) a = Transpose<perm = [0, 2, 1]>(h) y = MatMul(p, a)", False),
    ("r = Reshape(e, t) y = MatMul(one, r)", True),  # the other operand broadcasts
    ("r = Reshape(e, t) h = Mul(r, wide) y = MatMul(q, h)", True),
    ("r = Reshape(e, t) a = Transpose<perm = [0, 2, 1]>(r) b = Softmax(a) y = MatMul(p, b)", True),
    ("r = Reshape(e, u) y = MatMul(o, r)", True),  # rows of two copies are one
]


@pytest.mark.parametrize(("nodes", "stay"), COPIES, ids=[nodes for nodes, _ in COPIES])
def test_copies(nodes: str, stay: bool, rewritten: Callable[..., Graph]):
    body = f"""
        g (float[6,5,7] q, float[6,5,4] p, float[1,5,7] one, float[3,5,7] o, float[6,7,4] wide, float[2,1,7,4] x)
        => (float y)
        <int64[4] s = {{2, 3, 7, 4}}, int64[3] t = {{6, 7, 4}}, int64[3] u = {{3, 7, 8}}, float half = {{0.5}}>
        {{ e = Expand(x, s) {nodes} }}
    """
    assert ("Expand" in ops(rewritten(body, repeated_operands, dead_code))) == stay


GROUPS = [
    ("y = Mul(s, half)", True),
    ("y = Add(s, keys)", True),
    ("y = Add(s, matrix)", True),
    ("y = Add(own, s)", True),
    ("y = Add(wide, s)", True),
    ("y = Softmax<axis = 2>(s)", True),
    ("t = Where(mask, s, half) y = Mul(t, half)", True),
    ("t = Where(mask, half, s) u = Max(t, half) v = Min(u, keys) w = Div(v, half) z = Sub(w, wide) y = Tanh(z)", True),
    ("c = Cast<to = 11>(s) d = Softmax<axis = 2>(c) y = Cast<to = 1>(d)", True),
    ("y = Softmax<axis = 1>(s)", False),
    ("t = Mul(s, half) u = Add(t, wide) y = Softmax<axis = -1>(u)", True),
    ("y = Add(s, several)", False),  # the result has a dimension more
    ("t = Reshape(x, six) y = Mul(t, half)", False),  # no product
]


@pytest.mark.parametrize(("nodes", "moves"), GROUPS, ids=[nodes for nodes, _ in GROUPS])
def test_scores_stay_in_groups(nodes: str, moves: bool, rewritten: Callable[..., Graph]):
    body = f"""
        g (float[2,3,5,7] q, float[2,1,7,4] k, float[4] keys, float[5,4] matrix, float[6,1,1] own, float[1,5,4] wide,
           float[2,6,5,4] several, float[2,3,5,4] x, bool[1,5,4] mask) => (float y)
        <int64[3] six = {{6, 5, 4}}, float half = {{0.5}}> {{ m = MatMul(q, k) s = Reshape(m, six) {nodes} }}
    """
    graph = rewritten(body, grouped_scores, dead_code)
    assert (graph.nodes[-1].op == "Reshape") == moves
    reshaped = [
        node for node in graph.nodes if node.op == "Reshape" and graph.types[node.outputs[0]].shape == (6, 5, 4)
    ]
    assert len(reshaped) == 1


def test_scores_of_other_groups_stay(rewritten: Callable[..., Graph]):
    body = """
        g (float[2,3,5,7] q, float[2,1,7,4] k, float[3,2,5,7] p, float[3,1,7,4] l) => (float[6,5,4] y)
        <int64[3] six = {6, 5, 4}>
        { m = MatMul(q, k) s = Reshape(m, six) n = MatMul(p, l) t = Reshape(n, six) y = Add(s, t) }
    """
    assert ops(rewritten(body, grouped_scores))[-1] == "Add"


WRITTEN_OUT = {
    "Softmax": "m = ReduceMax<keepdims = 1>(s, last) d = Sub(s, m) e = Exp(d) t = ReduceSum<keepdims = 1>(e, last)"
    " y = Div(e, t)",
    "Gelu": "d = Div(s, root) e = Erf(d) f = Add(e, one) g = Mul(s, f) y = Mul(g, half)",
}


@pytest.mark.parametrize("op", WRITTEN_OUT)
def test_what_is_made_of_products_is_recognised_first(op: str):
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,6,5,7] q, float[2,6,7,4] k) => (float[12,5,4] y)
        <int64[3] shape = {{12, 5, 4}}, int64[1] last = {{2}}, float root = {{1.4142135}}, float one = {{1.0}},
         float half = {{0.5}}> {{ p = MatMul(q, k) s = Reshape(p, shape) {WRITTEN_OUT[op]} }}"""
    graph = rewrite(load(parser.parse_model(text).SerializeToString()))
    assert op in ops(graph)


def test_gemm(rewritten: Callable[..., Graph]):
    graph = rewritten(
        """
        g (float[2,3] x) => (float[2,4] y) <float[4,3] w = {0,1,2,3,4,5,6,7,8,9,10,11}, float[4] b = {1,2,3,4}>
        { y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(x, w, b) }
        """,
        matrix_products,
    )
    assert ops(graph) == ["MatMul", "Add"]
    weight, bias = (graph.constants[node.inputs[1]] for node in graph.nodes)
    np.testing.assert_array_equal(weight, np.arange(12, dtype=np.float32).reshape(4, 3).T / 2)
    np.testing.assert_array_equal(bias, [2, 4, 6, 8])
    unknown = "g (float[3,2] x, float[4,3] w) => (float[2,4] y) { y = Gemm<transA = 1, transB = 1, alpha = 3.0>(x, w) }"
    assert sorted(ops(rewritten(unknown, matrix_products))) == ["MatMul", "Mul", "Transpose", "Transpose"]


def weights(**shapes: tuple[int, ...]) -> str:
    """Constants for the text of a model."""
    rng = np.random.default_rng(0)
    parts = []
    for name, shape in shapes.items():
        values = ", ".join(f"{v:.3f}" for v in rng.uniform(0.5, 1.5, shape).reshape(-1))
        parts.append(f"float[{','.join(map(str, shape))}] {name} = {{{values}}}")
    return ", ".join(parts)


W = weights(
    w=(4, 2, 3, 3), u=(4, 2, 2, 2), b=(4,), s=(4, 1, 1), t=(1, 4, 1, 1), p=(4,), q=(4,), m=(4,), v=(4,), k=(6, 6, 4)
)

FOLDS: list[tuple[str, list[str]]] = [
    ("c = Conv(x, w, b) y = BatchNormalization(c, p, q, m, v)", ["Conv"]),
    ("c = Conv(x, w) d = Mul(c, s) y = Add(d, t)", ["Conv"]),
    ("c = Conv(x, w) d = Add(c, t) e = Mul(s, d) y = Sub(e, t)", ["Conv", "Add"]),
    ("c = Conv(x, w) y = Add(c, k1)", ["Conv", "Add"]),
    ("c = Conv(x, w) d = Mul(c, s) n = Relu(c) y = Add(d, n)", ["Conv", "Mul", "Relu", "Add"]),
    ("c = ConvTranspose<group = 2>(z, u, b) d = Mul(c, s) y = Add(d, t)", ["ConvTranspose", "Add"]),
    ("c = BatchNormalization(z, p, q, m, v) d = Mul(c, s) y = Add(d, t)", ["Mul", "Add", "Mul", "Add"]),
    ("c = Add(z, s) d = Add(c, t) e = Mul(d, s) y = Mul(e, t)", ["Add", "Add", "Mul", "Mul"]),
    ("c = Conv(x, w) d = Add(c, t) y = BatchNormalization(d, p, q, m, v)", ["Conv"]),
    ("c = Conv(x, w) d = Div(c, s) y = Floor(d)", ["Conv", "Div", "Floor"]),
    ("c = Conv(x, w) y = Div(c, s)", ["Conv"]),
    ("c = BatchNormalization(z, p, q, m, r) y = Relu(c)", ["BatchNormalization", "Relu"]),
]


@pytest.mark.parametrize(("nodes", "left"), FOLDS, ids=[nodes for nodes, _ in FOLDS])
def test_constants_go_into_weights(nodes: str, left: list[str], rewritten: Callable[..., Graph]):
    if "k1" in nodes:
        nodes = "k1 = ReduceMax<keepdims = 0>(k, i2) " + nodes
    if ", r)" in nodes:
        nodes = "r = ReduceSumSquare<keepdims = 0>(z, i023) " + nodes
        left = ["ReduceSumSquare", *left]
    body = f"""
        g (float[1,2,8,8] x, float[1,4,5,5] z) => (float y) <{W}, int64[1] i2 = {{2}}, int64[3] i023 = {{0, 2, 3}}>
        {{ {nodes} }}
    """
    assert ops(rewritten(body, batch_norms, identities, scales)) == left


def test_scales_of_matrix_products(rewritten: Callable[..., Graph]):
    known = weights(w=(6, 4), b=(4,), s=(4,))
    body = f"g (float[3,6] x) => (float y) <{known}> {{ c = MatMul(x, w) d = Add(c, b) y = Mul(d, s) }}"
    assert ops(rewritten(body, scales)) == ["MatMul", "Add"]
    body = f"""
        g (float[1,3,6] x) => (float y) <{known}, float h = {{0.125}}, int64[4] n = {{1, 3, 2, 2}}>
        {{ c = MatMul(x, w) d = Add(c, b) e = Reshape(d, n) f = Transpose<perm = [0, 2, 1, 3]>(e) y = Mul(f, h) }}
    """
    assert ops(rewritten(body, scales)) == ["MatMul", "Add", "Reshape", "Transpose"]


def test_pools_over_everything(rewritten: Callable[..., Graph]):
    for pool, reduction in (
        ("GlobalAveragePool", "ReduceMean"),
        ("GlobalMaxPool", "ReduceMax"),
        ("AveragePool<kernel_shape = [3, 5]>", "ReduceMean"),
        ("MaxPool<kernel_shape = [3, 5], strides = [3, 5]>", "ReduceMax"),
    ):
        graph = rewritten(f"g (float[1,2,3,5] x) => (float y) {{ y = {pool}(x) }}", whole_pools)
        assert ops(graph) == [reduction] and graph.nodes[0].attrs == {"axes": (2, 3), "keepdims": 1}
    graph = rewritten("g (float[1,2,3,5] x) => (float y) { y = MaxPool<kernel_shape = [3, 4]>(x) }", whole_pools)
    assert ops(graph) == ["MaxPool"]


def test_padding_goes_into_windows(rewritten: Callable[..., Graph]):
    known = weights(w=(4, 2, 3, 3))
    body = f"""
        g (float[1,2,4,4] x) => (float y) <{known}, int64[8] p = {{0, 0, 1, 2, 0, 0, 0, 1}}>
        {{ a = Pad(x, p) y = Conv<pads = [1, 1, 1, 1]>(a, w) }}
    """
    graph = rewritten(body, pads)
    assert ops(graph) == ["Conv"] and graph.nodes[0].attrs["pads"] == (2, 3, 1, 2)
    average = body.replace("Conv<pads = [1, 1, 1, 1]>(a, w)", "AveragePool<kernel_shape = [3, 3]>(a)")
    assert rewritten(average, pads).nodes[0].attrs["count_include_pad"] == 1
    channels = body.replace("{0, 0, 1, 2, 0, 0, 0, 1}", "{0, 1, 0, 0, 0, 0, 0, 0}").replace("[1,2,4,4]", "[1,1,4,4]")
    assert ops(rewritten(channels, pads)) == ["Pad", "Conv"]


ROOT = "float r = {0.70710678}, float d = {1.41421356}, float h = {0.5}, float o = {1}, float tw = {2}"
TANH = "float c = {0.044715}, float e = {0.7978846}, float n = {3}"

GELUS = [
    "a = Div(x, d) b = Erf(a) c1 = Add(b, o) e1 = Mul(x, c1) y = Mul(e1, h)",
    "a = Mul(r, x) b = Erf(a) c1 = Add(o, b) e1 = Mul(x, h) y = Mul(c1, e1)",
    "a = Mul(x, r) b = Erf(a) c1 = Add(b, o) e1 = Mul(c1, h) y = Mul(x, e1)",
    "a = Mul(x, r) b = Erf(a) c1 = Add(b, o) e1 = Mul(c1, x) y = Div(e1, tw)",
    "a = Pow(x, n) b = Mul(a, c) f = Add(x, b) p = Mul(f, e) k = Tanh(p) l = Add(k, o) m = Mul(x, h) y = Mul(m, l)",
    """a = Mul(x, x) b = Mul(a, x) q = Mul(c, b) f = Add(q, x) p = Mul(e, f) k = Tanh(p) l = Add(o, k) m = Mul(x, l)
       y = Mul(h, m)""",
    """a = Mul(x, x) b = Mul(a, c) f = Add(b, o) q = Mul(f, x) p = Mul(q, e) k = Tanh(p) l = Add(k, o) m = Mul(x, l)
       y = Mul(m, h)""",
]


@pytest.mark.parametrize("nodes", GELUS)
def test_gelu(nodes: str, rewritten: Callable[..., Graph]):
    graph = rewritten(f"g (float[2,6] x) => (float y) <{ROOT}, {TANH}> {{ {nodes} }}", identities, gelus)
    assert ops(graph) == ["Gelu"]
    assert graph.nodes[0].attrs == {"approximate": "tanh" if "Tanh" in nodes else "none"}


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Mul(x, h) b = Erf(a) c1 = Add(b, o) e1 = Mul(x, c1) y = Mul(e1, h)",  # another slope
        "a = Mul(x, r) b = Erf(a) c1 = Add(b, o) e1 = Mul(z, c1) y = Mul(e1, h)",  # of another tensor
        "a = Mul(x, r) b = Erf(a) c1 = Add(b, o) y = Mul(x, c1)",  # twice as much
        "a = Mul(x, r) b = Erf(a) c1 = Add(b, tw) e1 = Mul(x, c1) y = Mul(e1, h)",  # 2 + erf
    ],
)
def test_what_is_no_gelu(nodes: str, rewritten: Callable[..., Graph]):
    graph = rewritten(f"g (float[2,6] x, float[2,6] z) => (float y) <{ROOT}> {{ {nodes} }}", identities, gelus)
    assert "Gelu" not in ops(graph)


GATES = [
    ("a = Sigmoid(x) y = Mul(x, a)", "Silu"),
    ("a = Sigmoid(x) y = Mul(a, x)", "Silu"),
    ("a = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(x, a)", "HardSwish"),
    ("a = Add(x, n) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)", "HardSwish"),
    ("a = Add(x, n) b = Clip(a, zero, six) c = Div(b, six) y = Mul(x, c)", "HardSwish"),
]


@pytest.mark.parametrize(("nodes", "op"), GATES)
def test_gates(nodes: str, op: str, rewritten: Callable[..., Graph]):
    known = "float n = {3}, float zero = {0}, float six = {6}, float one = {1}, float h = {0.5}, float f = {0.2}"
    assert ops(rewritten(f"g (float[2,6] x) => (float y) <{known}> {{ {nodes} }}", identities, gates)) == [op]


SOFTMAXES = [
    "m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) y = Div(e, s)",
    "m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) r = Reciprocal(s) y = Mul(r, e)",
]


@pytest.mark.parametrize("nodes", SOFTMAXES)
def test_softmax(nodes: str, rewritten: Callable[..., Graph]):
    body = f"g (float[2,5,3] x) => (float y) <int64[1] a = {{-2}}> {{ {nodes} }}"
    graph = rewritten(body, identities, softmaxes)
    assert ops(graph) == ["Softmax"] and graph.nodes[0].attrs["axis"] == 1


def test_a_softmax_without_the_maximum_may_overflow(rewritten: Callable[..., Graph]):
    body = "g (float[2,5,3] x) => (float y) <int64[1] a = {-2}> { e = Exp(x) s = ReduceSum(e, a) y = Div(e, s) }"
    assert ops(rewritten(body, identities, softmaxes)) == ["Exp", "ReduceSum", "Div"]


CENTRED = "m = ReduceMean(x, a) d = Sub(x, m)"
VARIANCE = "v = ReduceMean(s, a) w = Add(v, e)"

NORMS = [
    ("LayerNormalization", f"{CENTRED} s = Mul(d, d) {VARIANCE} q = Sqrt(w) y = Div(d, q)"),
    ("LayerNormalization", f"""{CENTRED} p = Sub(x, m) s = Pow(p, two) {VARIANCE} q = Sqrt(w)
                               r = Reciprocal(q) y = Mul(r, d)"""),
    ("LayerNormalization", f"""{CENTRED} s = Pow(d, two) {VARIANCE} q = Pow(w, half) n = Div(d, q)
                               o = Mul(n, g1) y = Add(o, b1)"""),
    ("LayerNormalization", f"""{CENTRED} s = Mul(d, d) {VARIANCE} q = Sqrt(w) r = Reciprocal(q) k = Mul(r, g1)
                               n = Mul(x, k) o = Mul(m, k) l = Sub(b1, o) y = Add(n, l)"""),
    ("RMSNormalization", f"s = Pow(x, two) {VARIANCE} q = Sqrt(w) r = Reciprocal(q) n = Mul(x, r) y = Mul(n, g1)"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "nodes"), NORMS)
def test_norms(op: str, nodes: str, rewritten: Callable[..., Graph]):
    body = f"""
        g (float[2,3,5] x) => (float y)
        <int64[1] a = {{-1}}, float e = {{0.01}}, float two = {{2}}, float half = {{0.5}}, {weights(g1=(5,), b1=(5,))}>
        {{ {nodes} }}
    """
    graph = rewritten(body, identities, common_subexpressions, layer_norms)
    assert ops(graph) == [op]
    assert graph.nodes[0].attrs["axis"] == 2 and graph.nodes[0].attrs["epsilon"] == pytest.approx(0.01)


def test_rewrites_say_what_they_did(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "tunewright.rewrites"):
        rewrite(imported("g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }"))
    assert "simplify: identities: 2 -> 1 nodes" in caplog.messages


def test_a_step_and_a_rewrite_have_a_name_of_their_own():
    steps = [step.name for step in STEPS]
    rewrites = {(item.name, item.run) for step in STEPS for item in step.rewrites}
    assert len(steps) == len(set(steps))
    assert len(rewrites) == len({name for name, _ in rewrites}) == len({run for _, run in rewrites})


def test_every_rewrite_shows_an_example():
    for step in STEPS:
        for item in step.rewrites:
            text = item.run.__doc__ or ""
            assert "Before:" in text and "After:" in text, item.name


def test_tensors_are_numbered_anew():
    graph = rewrite(imported("g (float[2] x) => (float[2] y) { a = Identity(x) b = Dropout(a) y = Relu(b) }"))
    assert str(graph) == "input v0: float32[2]\nv1 = Relu(v0)  # float32[2]\nreturn v1"


def test_a_model_may_return_its_input_and_constants(runs: Any):
    graph = rewrite(
        imported("g (float[2] x) => (float y, float z) { y = Identity(x) z = Constant<value_float = 2.0>() }")
    )
    assert graph.nodes == ()
    y, z = runs.nodes(graph, {"v0": np.ones(2, np.float32)})
    assert y.tolist() == [1, 1] and z == 2


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_models_compute_the_same(name: str, runs: Any):
    ort = pytest.importorskip("onnxruntime")
    from tunewright.bench.light import light_model

    model = light_model(name).SerializeToString()
    graph = rewrite(load(model))
    (label,), (tensor,) = ({v.label for v in graph.inputs}, {v.tensor for v in graph.inputs})
    x = np.random.default_rng(0).standard_normal(graph.types[tensor].shape).astype(np.float32)
    (expected,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {label: x})
    (result,) = runs.nodes(graph, {tensor: x})
    assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()


CHOSEN = """(bool c, float16[3, 4] x) => (float16 y) {
  a = Neg(x)
  b = If(c) <then_branch = t () => (float16 p) { p = Relu(a) }, else_branch = e () => (float16 p) { p = Exp(a) }>
  y = Add(a, b)
}"""

WIDENED = [
    ("(float16[3, 4] x) => (float16[3, 4] y) { a = Relu(x) y = Exp(a) }", ["Cast", "Relu", "Exp", "Cast"]),
    ("(float16[3, 4] x) => (float16 a, float y) { a = Relu(x) y = Cast<to = 1>(a) }", ["Cast", "Relu", "Cast", "Cast"]),
    ("(float[3, 4] x) => (float y) { a = Cast<to = 16>(x) y = Cast<to = 1>(a) }", ["Cast"] * 4),  # rounds
    (
        "(float16[3, 4] x) => (float16 y) { e = RandomUniformLike<dtype = 10, seed = 1.0>(x) y = Add(x, e) }",
        ["Cast", "RandomUniformLike", "Cast", "Add", "Cast"],
    ),
    (
        CHOSEN,
        ["Cast", "Neg", "Cast", "Cast", "If", "Cast", "Add", "Cast"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), WIDENED)
def test_narrow_floats_are_computed_in_float32(runs, body, expected):
    before = imported("m " + body)
    after = narrow_floats(before)
    assert ops(after) == expected
    feeds = feeds_of(before)
    for result, right in zip(runs.nodes(after, feeds), runs.nodes(before, feeds), strict=True):
        assert result.dtype == right.dtype
        np.testing.assert_allclose(result.astype(float), right.astype(float), rtol=1e-2, atol=1e-3)
    for node in after.nodes:
        if node.op not in ("Cast", "If", "RandomUniformLike"):
            assert {after.types[name].dtype for name in (*node.inputs, *node.outputs)} == {"float32"}


def test_weights_are_widened_once():
    graph = imported(
        "m (float16[2, 3] x) => (float16 y, float16 z) <float[3] v = {1, 2, 3}>"
        " { w = Cast<to = 10>(v) y = Add(x, w) z = Mul(x, w) }"
    )
    after = narrow_floats(graph)
    assert [array.dtype for array in after.constants.values()] == [np.float32]
    assert ops(after) == ["Cast", "Add", "Mul", "Cast", "Cast"]


def test_without_narrow_floats_nothing_is_widened():
    graph = imported("m (float[3] x) => (float y) { y = Relu(x) }")
    assert narrow_floats(graph) is graph


def test_no_rewrite_sees_again_what_it_left_alone(monkeypatch: pytest.MonkeyPatch):
    graph = imported("g (float[3,5] x) => (float[] y) { a = Identity(x) b = Tanh(a) c = Neg(b) d = Neg(c) y = Exp(d) }")
    expected = rewrite(graph)
    left: list[tuple[Rewrite, Graph]] = []

    def watched(run: Rewrite) -> Rewrite:
        def seen(source: Graph) -> Graph:
            assert not any(run is other and source is before for other, before in left)
            after = run(source)
            if after is source:
                left.append((run, source))
            return after

        return seen

    once = {item.run: watched(item.run) for step in STEPS for item in step.rewrites}
    steps = [replace(s, rewrites=tuple(replace(r, run=once[r.run]) for r in s.rewrites)) for s in STEPS]
    monkeypatch.setattr(rewrites, "STEPS", tuple(steps))
    assert str(rewrite(graph)) == str(expected)

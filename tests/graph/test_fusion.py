"""What becomes one task, and that every way of cutting a graph computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.expr import Load, Op, loads
from tunewright.graph.draft import Draft
from tunewright.graph.fusion.fusion import Fallback, TaskCall, TensorView, partition
from tunewright.graph.ir import Array, Graph, GraphPort, Node, TensorType
from tunewright.graph.onnx_import import load as import_model


def graph_of(text: str, known: Sequence[str] = (), seed: int = 0) -> tuple[Graph, dict[str, Array]]:
    """A graph from ONNX's text form without its header, and values for its inputs; those in `known` are constants."""
    header = '<ir_version: 10, opset_import: ["" : 20]>\n'
    graph = import_model(onnx.parser.parse_model(header + text).SerializeToString())
    rng = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for value in graph.inputs:
        kind = graph.types[value.tensor]
        assert kind.shape is not None
        if kind.dtype == "float32":
            values[value.tensor] = rng.standard_normal(kind.shape).astype(np.float32)
        else:
            values[value.tensor] = rng.integers(0, 3, kind.shape).astype(kind.dtype)
    fixed = {value.tensor for value in graph.inputs if value.label in known}
    graph = replace(
        graph,
        inputs=tuple(value for value in graph.inputs if value.tensor not in fixed),
        constants={**graph.constants, **{name: values[name] for name in fixed}},
    )
    return graph, {name: array for name, array in values.items() if name not in fixed}


def labels(graph: Graph) -> list[str]:
    """The ops of each call, in order."""
    steps = partition(graph)
    assert all(isinstance(step, TaskCall | TensorView) for step in steps)
    return [step.task.op for step in steps if isinstance(step, TaskCall)]


CASES = {
    # Pointwise work after a product, and before what follows.
    "bias, activation": (
        """
        g (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,8,8] y)
        { c = Conv <pads: ints = [1,1,1,1]> (x, w, b) y = Relu(c) }
        """,
        ["Conv+Relu"],
    ),
    "residual": (
        """
        g (float[1,3,8,8] x, float[3,3,3,3] w) => (float[1,3,8,8] y)
        { c = Conv <pads: ints = [1,1,1,1]> (x, w) s = Add(x, c) y = Relu(s) }
        """,
        ["Conv+Add+Relu"],
    ),
    "bytes between tasks": (
        """
        g (float[5,7] x, float[7,3] v, float[7,3] w) => (float[5,3] y) <float s = {0.5}, uint8 z = {3}>
        { a = MatMul(x, v) q = QuantizeLinear(a, s, z) b = MatMul(x, w) d = DequantizeLinear(q, s, z) y = Add(b, d) }
        """,
        ["MatMul+QuantizeLinear", "MatMul+DequantizeLinear+Add"],
    ),
    "bytes that a product reads": (
        """
        g (float[5,7] x, float[7,3] v, float[3,3] w) => (float[5,3] y) <float s = {0.5}, uint8 z = {3}>
        { a = MatMul(x, v) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) b = Relu(d) y = MatMul(b, w) }
        """,
        ["MatMul+QuantizeLinear+DequantizeLinear+Relu", "MatMul"],
    ),
    "bytes that rows are made of": (
        """
        g (float[5,7] x, float[7,3] v) => (float[5,3] y) <float s = {0.5}, uint8 z = {3}>
        { a = MatMul(x, v) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = Softmax(d) }
        """,
        ["MatMul+QuantizeLinear+DequantizeLinear", "Softmax"],
    ),
    "bytes that windows with a border read": (
        """
        g (float[1,3,18,18] x, float[4,3,3,3] v, float[4,1,3,3] w) => (float[1,4,16,16] y)
        <float s = {0.5}, uint8 z = {3}>
        {
          a = Conv(x, v) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)
          y = Conv <group = 4, pads = [1,1,1,1]> (d, w)
        }
        """,
        ["Conv+QuantizeLinear", "DequantizeLinear+Conv"],
    ),
    "bytes that are read twice": (
        """
        g (float[5,7] x, float[7,3] v) => (float[5,3] y, float[3,5] o) <float s = {0.5}, uint8 z = {3}>
        {
          a = MatMul(x, v) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)
          y = Exp(d) t = Exp(d) o = Transpose(t)
        }
        """,
        ["MatMul+QuantizeLinear+DequantizeLinear", "Exp", "Exp+Transpose"],
    ),
    "two products meet": (
        """
        g (float[5,7] x, float[7,3] v, float[7,3] w) => (float[5,3] y)
        { a = MatMul(x, v) b = MatMul(x, w) s = Add(a, b) y = Relu(s) }
        """,
        ["MatMul", "MatMul+Add+Relu"],
    ),
    "diamond": (
        """
        g (float[5,7] x, float[7,3] w) => (float[5,3] y) { a = MatMul(x, w) b = Sigmoid(a) y = Mul(b, a) }
        """,
        ["MatMul+Sigmoid+Mul"],
    ),
    "read twice": (
        """
        g (float[5,7] x, float[7,3] w) => (float[5,3] y, float[5,3] z) { a = MatMul(x, w) y = Relu(a) z = Neg(a) }
        """,
        ["MatMul", "Relu", "Neg"],
    ),
    "a result that is read": (
        """
        g (float[5,7] x, float[7,3] w) => (float[5,3] a, float[5,3] y) { a = MatMul(x, w) y = Relu(a) }
        """,
        ["MatMul", "Relu"],
    ),
    "no cycle": (
        """
        g (float[5,7] x) => (float[5,7] y)
        { a = Relu(x) s = ReduceMax <keepdims = 1> (a) e = Sub(a, s) f = Exp(e) y = Add(f, s) }
        """,
        ["Relu", "ReduceMax", "Sub+Exp+Add"],
    ),
    "pointwise tree": (
        """
        g (float[5,7] x, float[7] b) => (float[5,7] y)
        { a = Relu(x) c = Add(x, b) d = Mul(a, c) e = Tanh(d) y = Sub(e, b) }
        """,
        ["Relu+Add+Mul+Tanh+Sub"],
    ),
    "costly work is not repeated": (
        """
        g (float[7] x, float[5,7] z) => (float[5,7] y) { a = Exp(x) y = Mul(a, z) }
        """,
        ["Exp", "Mul"],
    ),
    "neighbours at places that data tells stay neighbours": (
        """
        g (float[8,35] x, int64[3] i, int64[3] j) => (float[3,8] y)
        { a = Transpose <perm = [1,0]> (x) b = Gather(a, i) c = Gather(a, j) y = Add(b, c) }
        """,
        ["Transpose", "Gather+Gather+Add"],
    ),
    "one element at a place that data tells": (
        """
        g (float[8,35] x, int64[3] i) => (float[3,8] y) { a = Transpose <perm = [1,0]> (x) y = Gather(a, i) }
        """,
        ["Transpose+Gather"],
    ),
    # Reshapes.
    "reshape between": (
        """
        g (float[1,8,7] x, float[7,6] w, float[6] b, float[1,8,6] r) => (float[1,8,6] y)
        <int64[2] flat = {8, 7}, int64[3] back = {1, 8, 6}>
        { a = Reshape(x, flat) c = MatMul(a, w) d = Add(c, b) e = Reshape(d, back) y = Add(e, r) }
        """,
        ["MatMul+Add+Add"],
    ),
    "reshape that splits": (
        """
        g (float[8,7] x, float[7,6] w) => (float[8,2,3] y) <int64[3] parts = {8, 2, 3}>
        { a = MatMul(x, w) b = Reshape(a, parts) y = Relu(b) }
        """,
        ["MatMul+Relu"],
    ),
    "reshape that mixes": (
        """
        g (float[4,6] x, float[8,3] z) => (float[8,3] y) <int64[2] other = {8, 3}, int64[2] back = {4, 6}>
        { a = Exp(x) b = Reshape(a, other) y = Add(b, z) }
        """,
        ["Exp+Add"],
    ),
    # Movement.
    "transposed operand": (
        """
        g (float[5,7] x, float[3,7] w) => (float[5,3] y) { t = Transpose(w) y = MatMul(x, t) }
        """,
        ["Transpose+MatMul"],
    ),
    "transposed result": (
        """
        g (float[5,7] x, float[7,3] w) => (float[3,5] y) { a = MatMul(x, w) b = Relu(a) y = Transpose(b) }
        """,
        ["MatMul+Relu+Transpose"],
    ),
    "transposed result, more after": (
        """
        g (float[5,7] x, float[7,3] w, float[5] b) => (float[3,5] y)
        { a = MatMul(x, w) t = Transpose(a) y = Add(t, b) }
        """,
        ["MatMul+Transpose+Add"],
    ),
    "pad before a window": (
        """
        g (float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,7,6] y) <int64[8] p = {0,0,1,2,0,0,2,0}>
        { a = Pad(x, p) y = Conv(a, w) }
        """,
        ["Pad+Conv"],
    ),
    "work before padding": (
        """
        g (float[1,3,8,8] x, float[1,3,1,1] s, float[4,3,3,3] w) => (float[1,4,8,8] y)
        { a = Mul(x, s) b = Relu(a) y = Conv <pads: ints = [1,1,1,1]> (b, w) }
        """,
        ["Mul+Relu+Conv"],
    ),
    "work before an unpadded product": (
        """
        g (float[1,3,8,8] x, float[1,3,1,1] s, float[4,3,1,1] w) => (float[1,4,8,8] y)
        { a = Mul(x, s) b = Relu(a) y = Conv(b, w) }
        """,
        ["Mul+Relu", "Conv"],
    ),
    "concatenation": (
        """
        g (float[1,3,8] x, float[1,2,8] z, float[1,5,1] s) => (float[1,5,8] y)
        { a = Relu(x) b = Concat <axis = 1> (a, z) c = Mul(b, s) y = Tanh(c) }
        """,
        ["Relu+Concat+Mul+Tanh"],
    ),
    "padding after concatenation": (
        """
        g (float[1,3,8,8] x, float[1,1,8,8] z, float[2,4,3,3] w) => (float[1,2,8,8] y)
        { a = Relu(z) b = Concat <axis = 1> (x, a) y = Conv <pads: ints = [1,1,1,1]> (b, w) }
        """,
        ["Relu+Concat+Conv"],
    ),
    "padding along the concatenated dimension": (
        """
        g (float[1,3,8,5] x, float[1,3,8,3] z, float[2,3,3,3] w) => (float[1,2,8,8] y)
        { b = Concat <axis = 3> (x, z) y = Conv <pads: ints = [1,1,1,1]> (b, w) }
        """,
        ["Concat", "Conv"],
    ),
    "parts stored where they belong": (
        """
        g (float[1,3,8,8] x, float[4,3,1,1] w, float[2,3,3,3] v) => (float[1,6,8,8] y)
        { a = Conv(x, w) b = Relu(a) c = Conv <pads: ints = [1,1,1,1]> (x, v) y = Concat <axis = 1> (c, b) }
        """,
        ["Conv+Relu+Concat", "Conv+Concat"],
    ),
    "work on parts stored where they belong": (
        """
        g (float[5,3] x, float[3,4] w) => (float[5,8] y) <float[1,8] s = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0}>
        {
          a = Softmax(x) b = MatMul(x, w) d = MatMul(a, w)
          c = Concat <axis = 1> (b, d) m = Mul(c, s) y = Relu(m)
        }
        """,
        ["Softmax", "MatMul+Concat+Mul+Relu", "MatMul+Concat+Mul+Relu"],
    ),
    "a part that others read": (
        """
        g (float[5,3] x, float[3,4] w, float[3,4] v) => (float[5,8] y, float[5] z) <int64[1] axes = {1}>
        { a = MatMul(x, w) b = MatMul(x, v) y = Concat <axis = 1> (a, b) z = ReduceMax <keepdims = 0> (a, axes) }
        """,
        ["MatMul", "MatMul", "Concat", "ReduceMax"],
    ),
    "a part that is a result": (
        """
        g (float[5,3] x, float[3,4] w, float[3,4] v) => (float[5,8] y, float[5,4] b)
        { a = MatMul(x, w) b = MatMul(x, v) y = Concat <axis = 1> (a, b) }
        """,
        ["MatMul", "MatMul", "Concat"],
    ),
    "a part that is given": (
        """
        g (float[5,3] x, float[3,4] w) => (float[5,7] y) { a = MatMul(x, w) y = Concat <axis = 1> (a, x) }
        """,
        ["MatMul", "Concat"],
    ),
    "one part twice": (
        """
        g (float[5,3] x, float[3,4] w) => (float[10,4] y) { a = MatMul(x, w) y = Concat <axis = 0> (a, a) }
        """,
        ["MatMul", "Concat"],
    ),
    "a scaled operand read twice": (
        """
        g (float[5,7] x) => (float[5,5] y) <float s = {0.5}>
        { a = Mul(x, s) b = Transpose(a) y = MatMul(a, b) }
        """,
        ["Mul+Transpose+MatMul"],
    ),
    "groups shuffled": (
        """
        g (float[9,2,7] x, float[2,7,3] w) => (float[9,3,2] y)
        { a = Transpose <perm = [1,0,2]> (x) b = MatMul(a, w) y = Transpose <perm = [1,2,0]> (b) }
        """,
        ["Transpose+MatMul+Transpose"],
    ),
    # Reductions.
    "scale and mask before softmax": (
        """
        g (float[3,5,7] x, float[5,7] m) => (float[3,5,7] y)
        { s = Constant <value = float {0.5}> () a = Mul(x, s) b = Add(a, m) y = Softmax(b) }
        """,
        ["Mul+Add+Softmax"],
    ),
    "embedding before a norm": (
        """
        g (int64[5] i, int64[5] j, float[9,7] v, float[4,7] w, float[7] s, float[7] b) => (float[5,7] y)
        { a = Gather(v, i) c = Gather(w, j) d = Add(a, c) y = LayerNormalization(d, s, b) }
        """,
        ["Gather+Gather+Add+LayerNormalization"],
    ),
    "work around a reduction": (
        """
        g (float[5,7] x) => (float[5] y) <int64[1] axes = {1}>
        { a = Exp(x) b = ReduceSum <keepdims = 0> (a, axes) y = Log(b) }
        """,
        ["Exp+ReduceSum+Log"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_one_task(name: str, runs) -> None:
    text, expected = CASES[name]
    graph, feeds = graph_of(text)
    assert labels(graph) == expected
    runs.agree(graph, feeds)


ATTENTION = """
g (float[1,5,12] x, float[12,36] w, float[36] b, float[5,5] mask, float[12,12] o) => (float[1,5,12] y)
<int64[4] heads = {1, 5, 3, 4}, int64[3] joined = {1, 5, 12}, float scale = {0.5}>
{
  a = MatMul(x, w) qkv = Add(a, b)
  q, k, v = Split <axis = 2, num_outputs = 3> (qkv)
  q1 = Reshape(q, heads) k1 = Reshape(k, heads) v1 = Reshape(v, heads)
  q2 = Transpose <perm = [0,2,1,3]> (q1) k2 = Transpose <perm = [0,2,3,1]> (k1) v2 = Transpose <perm = [0,2,1,3]> (v1)
  q3 = Mul(q2, scale)
  s = MatMul(q3, k2) s1 = Add(s, mask) p = Softmax(s1) c = MatMul(p, v2)
  c1 = Transpose <perm = [0,2,1,3]> (c) c2 = Reshape(c1, joined) d = MatMul(c2, o) y = Add(d, x)
}
"""


def test_attention_moves_nothing(runs) -> None:
    """Splits and transpositions become part of the products, the scale moves behind the sum."""
    graph, feeds = graph_of(ATTENTION, known=["w", "b", "o"])
    assert labels(graph) == [
        "MatMul+Add",
        "Split+Transpose+Transpose+Mul+MatMul+Add",
        "Softmax",
        "Split+Transpose+MatMul+Transpose",
        "MatMul+Add",
    ]
    for step in partition(graph):
        assert isinstance(step, TaskCall)
        for stage in step.task.stages:
            if stage.combiner == "sum" and "MatMul" in step.task.op:
                assert isinstance(stage.body, Op)
                assert [type(arg) for arg in stage.body.args] == [Load, Load]
    runs.agree(graph, feeds)


@given(
    axis=st.integers(0, 2),
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    rest=st.tuples(*[st.integers(1, 3)] * 3),
    kinds=st.lists(st.sampled_from(["product", "softmax", "flat", "turned", "sum"]), min_size=4, max_size=4),
    result=st.sampled_from(["none", "flat", "tanh", "turned", "sum"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_parts_of_any_kind_come_together(
    axis: int, sizes: list[int], rest: tuple[int, ...], kinds: list[str], result: str, seed: int, runs
) -> None:
    """Whoever makes a part, whatever shape it is seen under, and whatever is done with the whole."""
    inputs, lines, shapes = [], [], []
    for n, (size, kind) in enumerate(zip(sizes, kinds, strict=False)):
        extents = [*rest[:axis], size, *rest[axis + 1 :]]
        a, b, c = extents
        match kind:
            case "product":
                declared, line = f"float[{a},{b},5] x{n}, float[{a},5,{c}] w{n}", f"p{n} = MatMul(x{n}, w{n})"
            case "softmax":
                declared, line = f"float[{a},{b},{c}] x{n}", f"p{n} = Softmax <axis = {n % 3}> (x{n})"
            case "flat":
                declared = f"float[{a * b},5] x{n}, float[5,{c}] w{n}"
                line = f"q{n} = MatMul(x{n}, w{n}) p{n} = Reshape(q{n}, s{n})"
            case "turned":
                declared = f"float[{b},{c},5] x{n}, float[{b},5,{a}] w{n}"
                line = f"q{n} = MatMul(x{n}, w{n}) p{n} = Transpose <perm = [2,0,1]> (q{n})"
            case _:
                declared, line = f"float[{a},{b},{c},4] x{n}", f"p{n} = ReduceSum <keepdims = 0> (x{n}, last)"
        inputs.append(declared)
        lines.append(line)
        shapes.append(f"int64[3] s{n} = {{{a},{b},{c}}}")
    then = {
        "none": "y = Identity(t)",
        "flat": "y = Reshape(t, line)",
        "tanh": "y = Tanh(t)",
        "turned": "y = Transpose <perm = [2,0,1]> (t)",
        "sum": "y = ReduceSum <keepdims = 0> (t, first)",
    }[result]
    parts = ", ".join(f"p{n}" for n in range(len(sizes)))
    known = [*shapes, "int64[1] last = {3}", "int64[1] line = {-1}", "int64[1] first = {0}"]
    graph, feeds = graph_of(
        f"g ({', '.join(inputs)}) => (float y) <{', '.join(known)}>"
        f" {{ {' '.join(lines)} t = Concat <axis = {axis}> ({parts}) {then} }}",
        seed=seed,
    )
    runs.agree(graph, feeds)


def channels_last_conv(pads: tuple[int, ...]) -> tuple[Graph, dict[str, Array]]:
    """NCHW in, as models have it, and a convolution in the layout of the normal form."""
    rng = np.random.default_rng(0)
    image, weights = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 8, 8), (3, 3, 3, 5)))
    spatial = 6 + pads[0] + pads[2]
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "kernel_shape": (3, 3), "group": 1}
    shapes = {"v0": (1, 3, 8, 8), "v1": (3, 3, 3, 5), "v2": (1, 8, 8, 3), "v3": (1, spatial, spatial, 5)}
    graph = Graph(
        inputs=(GraphPort("x", "v0"),),
        outputs=(GraphPort("y", "v3"),),
        nodes=(
            Node("Transpose", ("v0",), ("v2",), {"perm": (0, 2, 3, 1)}, version=20),
            Node("Conv", ("v2", "v1"), ("v3",), {**attrs, "channels_last": True}, version=20),
        ),
        constants={"v1": weights},
        types={name: TensorType("float32", shape) for name, shape in shapes.items()},
    )
    return graph, {"v0": image}


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0)])
def test_layout_of_the_input_is_read_in_place(pads: tuple[int, ...], runs) -> None:
    graph, feeds = channels_last_conv(pads)
    assert labels(graph) == ["Transpose+Conv"]
    (step,) = partition(graph)
    assert isinstance(step, TaskCall)
    assert len(step.task.stages) == 1 + any(pads)
    runs.agree(graph, feeds)


def test_a_1x1_convolution_is_a_product(runs) -> None:
    """The same task, key and all, as a matrix product of that size."""
    conv, _ = channels_last_conv((0, 0, 0, 0))
    shapes = {"v0": (1, 4, 6, 3), "v1": (1, 1, 3, 5), "v2": (1, 4, 6, 5)}
    node = replace(
        conv.nodes[1], inputs=("v0", "v1"), outputs=("v2",), attrs={**conv.nodes[1].attrs, "kernel_shape": (1, 1)}
    )
    rng = np.random.default_rng(0)
    graph = Graph(
        inputs=(GraphPort("x", "v0"),),
        outputs=(GraphPort("y", "v2"),),
        nodes=(node,),
        constants={"v1": rng.standard_normal(shapes["v1"]).astype(np.float32)},
        types={name: TensorType("float32", shape) for name, shape in shapes.items()},
    )
    product, _ = graph_of("g (float[24,3] x, float[3,5] w) => (float[24,5] y) { y = MatMul(x, w) }", known=["w"])
    keys = {step.task.key for g in (graph, product) for step in partition(g) if isinstance(step, TaskCall)}
    assert len(keys) == 1
    runs.agree(graph, {"v0": rng.standard_normal(shapes["v0"]).astype(np.float32)})


def test_constant_scalars_are_written_into_the_task(runs) -> None:
    graph, feeds = graph_of(
        "g (float[5] x, float s, float[1] t) => (float[5] y) { a = Mul(x, s) y = Add(a, t) }", ["s", "t"]
    )
    (step,) = partition(graph)
    assert isinstance(step, TaskCall)
    assert len(step.inputs) == 1
    runs.agree(graph, feeds)


def test_an_index_that_is_known_makes_a_slice(runs) -> None:
    text = """
    g (float[1,5,7] x, float[7,3] w, int64 first) => (float[1,3] y)
    { a = Gather <axis = 1> (x, first) y = MatMul(a, w) }
    """
    graph, feeds = graph_of(text, known=["first"])
    (step,) = partition(graph)
    assert isinstance(step, TaskCall)
    assert len(loads(*(stage.body for stage in step.task.stages))) == 2
    runs.agree(graph, feeds)


def test_what_has_no_kernel_falls_back(runs) -> None:
    text = """
    g (float[4,36] x) => (float[2,2] y, float[4] z)
    <int64[1] flat = {4}, int64[3] squares = {4, 6, 6}, int64[2] shape = {2, 2}>
    { a = Relu(x) b = Reshape(a, squares) c = Det(b) d = Reshape(c, shape) y = Neg(d) z = Reshape(y, flat) }
    """
    graph, feeds = graph_of(text)
    steps = partition(graph)
    assert [type(step) for step in steps] == [TaskCall, TensorView, Fallback, TaskCall, TensorView]
    fallback = steps[2]
    assert isinstance(fallback, Fallback)
    assert (fallback.node.op, fallback.reason) == ("Det", "Det: more than 5 rows")
    runs.agree(graph, feeds)


def test_unread_outputs_are_not_computed() -> None:
    graph, _ = graph_of("g (float[6] x) => (float[2] y) { a, y, c = Split <axis = 0, num_outputs = 3> (x) }")
    (step,) = partition(graph)
    assert isinstance(step, TaskCall)
    assert len(step.outputs) == 1


def test_outputs_of_one_node_may_differ_in_kind(runs) -> None:
    text = """
    g (float[5,7] x, float[7] s, float[7] b) => (float[5,7] y, float[5,1] m)
    { n, m, d = LayerNormalization(x, s, b) y = Relu(n) }
    """
    graph, feeds = graph_of(text)
    assert labels(graph) == ["LayerNormalization", "Relu"]
    runs.agree(graph, feeds)


def test_places_beside_a_comparison_are_seen(runs) -> None:
    """With 0 for what is loaded the clip made the comparison constant, and the place that it chooses seemed unread."""
    low = "Constant <value = float {0.5}> ()"
    text = f"""
    g (float[1,1,2,2] x) => (int64[1,1,1,1] at)
    {{ low = {low} c = Clip (x, low) y, at = MaxPool <kernel_shape = [2, 2]> (c) }}
    """
    graph, feeds = graph_of(text)
    assert labels(graph) == ["Clip+MaxPool"]
    runs.agree(graph, feeds)


def test_names_do_not_reach_keys() -> None:
    text, _ = CASES["residual"]
    graph, _ = graph_of(text)
    other, _ = graph_of(
        text.replace(" x", " other").replace("(x", "(other").replace("c)", "_c)").replace("{ c", "{ _c")
    )
    keys = [[step.task.key for step in partition(g) if isinstance(step, TaskCall)] for g in (graph, other)]
    assert keys[0] == keys[1]
    assert [v.label for v in graph.inputs] != [v.label for v in other.inputs]


def test_a_scalar_is_a_vector_of_one_element(runs) -> None:
    """For kernels, that is: so there is one task, whatever the rank, for reading and for writing."""
    keys = set()
    for scalar in ("float", "float[1]", "float[1,1]"):
        text = f"g (float[4,6] x, {scalar} s) => (float[4,6] y, {scalar} z) {{ y = Mul(x, s) z = Exp(s) }}"
        graph, feeds = graph_of(text)
        keys.add(tuple(step.task.key for step in partition(graph) if isinstance(step, TaskCall)))
        runs.agree(graph, feeds)
    assert len(keys) == 1


def test_views_of_one_tensor_meet_in_a_task(runs) -> None:
    """Two shapes of the same memory are one input of the task where indices allow."""
    text = """
    g (float[4,6] x) => (float[4,6] y) <int64[2] other = {24, 1}, int64[2] back = {4, 6}>
    { a = Reshape(x, other) b = Relu(a) c = Reshape(b, back) y = Mul(c, x) }
    """
    graph, feeds = graph_of(text)
    (step,) = partition(graph)
    assert isinstance(step, TaskCall)
    assert len(step.inputs) == 1
    runs.agree(graph, feeds)


SHAPES = ((2, 3, 4), (1, 3, 4), (4,), (2, 1, 1), (6, 4), (4, 6), (24,))
"""What random graphs are made over: few shapes, so that tensors meet."""


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of a dozen nodes: pointwise work, movement, products and reductions, read once or often."""
    draft = Draft()
    inputs = [draft.new_tensor(TensorType("float32", shape)) for shape in SHAPES[:4]]
    tensors = list(inputs)
    for _ in range(draw(st.integers(1, 12))):
        recent = st.integers(max(0, len(tensors) - 4), len(tensors) - 1)
        x = tensors[draw(recent if draw(st.booleans()) else st.integers(0, len(tensors) - 1))]
        tensors += _drawn_node(draw, draft, tensors, x)
    outputs = {tensors[-1], *(name for name in tensors if draw(st.integers(0, 9)) == 0)} - set(inputs)
    values = [GraphPort(name, name) for name in sorted(outputs)] or [GraphPort("x", draft.emit("Relu", inputs[0]))]
    return draft.finish([GraphPort(name, name) for name in inputs], values)


def _drawn_node(draw: st.DrawFn, draft: Draft, tensors: Sequence[str], x: str) -> list[str]:
    shape = draft.shape(x) or ()
    kind = draw(
        st.sampled_from(["unary", "binary", "binary", "reshape", "transpose", "reduce", "cut", "join", "product"])
    )
    match kind:
        case "unary":
            return [draft.emit(draw(st.sampled_from(["Relu", "Sigmoid", "Neg", "Tanh"])), x)]
        case "binary":
            fits = [name for name in tensors if _broadcasts(draft.shape(name) or (), shape)]
            other = draw(st.sampled_from([*fits, draft.scalar_like(x, 0.5)]))
            operands = (x, other) if draw(st.booleans()) else (other, x)
            return [draft.emit(draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), *operands)]
        case "reshape":
            same = [s for s in SHAPES if np.prod(s) == np.prod(shape)]
            return [draft.emit("Reshape", x, shape=draw(st.sampled_from(same)))] if same else []
        case "transpose":
            perm = tuple(draw(st.permutations(range(len(shape)))))
            return [draft.emit("Transpose", x, perm=perm)]
        case "reduce" if shape:
            axis = draw(st.integers(0, len(shape) - 1))
            if draw(st.booleans()):
                return [draft.emit("Softmax", x, axis=axis)]
            op = draw(st.sampled_from(["ReduceMean", "ReduceMax", "ReduceSumSquare"]))
            return [draft.emit(op, x, axes=(axis,), keepdims=1)]
        case "cut" if shape and shape[-1] > 1:
            at = draw(st.integers(0, shape[-1] - 1))
            cut = draft.emit("Slice", x, starts=(at,), ends=(shape[-1],), axes=(len(shape) - 1,), steps=(1,))
            wide = draft.emit(
                "Pad", cut, pads=(0,) * (len(shape) - 1) + (at,) + (0,) * len(shape), mode="constant", value=0.5
            )
            return [cut, wide]
        case "join" if shape:
            axis = draw(st.integers(0, len(shape) - 1))
            return [draft.emit("Concat", x, draft.emit("Neg", x), axis=axis)]
        case "product" if len(shape) > 1:
            other = draft.emit("Transpose", x, perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
            return [draft.emit("MatMul", x, other)]
    return []


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1], strict=False))


@settings(max_examples=150)
@given(graph=random_graphs(), seed=st.integers(0, 5))
def test_fusion_changes_no_result(graph: Graph, seed: int, runs) -> None:
    rng = np.random.default_rng(seed)
    feeds = {v.tensor: rng.standard_normal(graph.types[v.tensor].shape or ()).astype(np.float32) for v in graph.inputs}
    assert not any(isinstance(step, Fallback) for step in partition(graph))
    runs.agree(graph, feeds, tolerance=1e-4)


STEPPED = {
    "Floor": "y = Floor(c)",
    "behind movement": "r = Relu(c) t = Transpose(r) y = Ceil(t)",
    "in another task": "m = MaxPool <kernel_shape = [2,2]> (c) y = Round(m)",
    "comparison": "b = Greater(c, k) y = Where(b, x, k)",
    "Sign": "n = Neg(c) y = Sign(n)",
    "truth": "y = Cast <to = 9> (c)",
    "cut off to a byte": "y = Cast <to = 2> (c)",
    "whole numbers": "y = Cast <to = 6> (c)",
    "ThresholdedRelu": "y = ThresholdedRelu <alpha = 3.0> (c)",
    "Shrink": "y = Shrink <lambd = 3.0> (c)",
    "a large constant": "a = Add(c, k) y = Sub(a, k)",
    "the evaluator's": "y = ArgMax <axis = 1> (c)",
}
UNSTEPPED = {
    "small offsets": "a = Add(c, one) y = Add(a, one)",
    "activation": "y = Relu(c)",
    "bytes": "y = QuantizeLinear(c, k, z)",
    "another sum": "p = MatMul(c, v) y = Floor(p)",
    "an edge": "y = Sqrt(c)",
    "an edge behind a sum": "p = MatMul(c, v) y = Log(p)",
}
SHORT = {"another sum", "an edge", "an edge behind a sum"}
"""What convolutions must know of if sums may be exact, since all weights are short."""


@pytest.mark.parametrize("are_short", [False, True])
@pytest.mark.parametrize("rest", [*STEPPED, *UNSTEPPED])
def test_a_convolution_knows_the_steps_that_read_it(rest: str, are_short: bool) -> None:
    """However far behind it: its sums may not be those of Winograd's method then."""
    kinds = {
        "bytes": "uint8",
        "cut off to a byte": "uint8",
        "truth": "bool",
        "whole numbers": "int32",
        "the evaluator's": "int64",
    }
    numbers = [-3, 0.5, 2, 0, 40] if are_short else [0.1, -0.7, 1 / 3]
    w, v = (str(np.resize(numbers, n).tolist())[1:-1] for n in (144, 64))
    text = f"""
        g (float[1,4,8,8] x) => ({kinds.get(rest, "float")}[a,b,d,e] y)
        <float k = {{12582912}}, float one = {{1}}, uint8 z = {{0}}, float[4,4,3,3] w = {{{w}}}, float[8,8] v = {{{v}}}>
        {{ c = Conv <pads: ints = [1,1,1,1]> (x, w) {(STEPPED | UNSTEPPED)[rest]} }}
        """
    calls = [step for step in partition(graph_of(text)[0]) if isinstance(step, TaskCall)]
    expected = rest in STEPPED or (are_short and rest in SHORT)
    assert [call.task.is_decisive for call in calls if "Conv" in call.task.op] == [expected]
    plain = replace(calls[0].task, is_decisive=False)
    assert (plain.key != calls[0].task.key) is expected


def test_a_quotient_of_integers_is_no_factor() -> None:
    """It is looked at for being one, as what reads it is no fallback."""
    text = """
        g (int32[3,2] x) => (int32[n] y) <int32[1,1] five = {5}, bool[1] go = {1}> {
            a = ReduceMax<keepdims = 1>(x) b = Div(a, five) y = Compress(b, go)
        }
        """
    assert len(partition(graph_of(text)[0])) > 1


def test_a_convolution_of_an_unknown_rank_is_left_alone() -> None:
    """What it slides over is known when it runs."""
    text = """
        g (float[1,4,8,8] x, bool b) => (float[i,j,k,l] y) <float[1,4,1,1] w = {1, 1, 1, 1}> {
            z = If (b) <
                then_branch = t () => (float[1,4,8,8] p) { p = Relu(x) },
                else_branch = e () => (q) { q = Squeeze(x) }
            >
            y = Conv(z, w)
        }
        """
    assert all(isinstance(step, Fallback) for step in partition(graph_of(text)[0]))

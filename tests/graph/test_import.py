"""Import: what a model becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tunewright.graph.ir import Graph, Node, TensorType
from tunewright.graph.onnx_import import load, open_signature, read_model
from tunewright.graph.onnx_import.structure import strip
from tunewright.graph.rewrites import rewrite

HOSTILE = 'x"\n\x1b[31m../../etc\u202e' + "y" * 200


def parsed(body: str, opset: int = 18, ir: int = 10) -> ModelProto:
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> {body}')


def imported(body: str, opset: int = 18, **dims: int) -> Graph:
    return load(parsed(body, opset).SerializeToString(), dims)


def only(graph: Graph) -> Node:
    (node,) = graph.nodes
    return node


def test_tensors_are_renamed_and_labels_kept():
    model = parsed("g (float[2,3] a) => (float[2,3] b) { c = Relu(a) b = Neg(c) }")
    graph = load(model.SerializeToString())
    assert [v.label for v in graph.inputs] == ["a"] and [v.label for v in graph.outputs] == ["b"]
    assert [v.tensor for v in graph.inputs] == ["v0"]
    assert (
        str(graph)
        == "input v0: float32[2, 3]\nv1 = Relu(v0)  # float32[2, 3]\nv2 = Neg(v1)  # float32[2, 3]\nreturn v2"
    )


def test_names_change_nothing_else():
    plain = parsed("g (float[2,3] a) => (float[2,3] b) { c = Relu(a) b = Neg(c) }")
    renamed = ModelProto.FromString(plain.SerializeToString())
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = HOSTILE
    renamed.graph.node[0].name = HOSTILE
    renamed.graph.node[0].output[0] = renamed.graph.node[1].input[0] = "'; DROP TABLE trials; --"
    graph = load(renamed.SerializeToString())
    assert str(graph) == str(load(plain.SerializeToString()))
    assert graph.inputs[0].label == HOSTILE


def test_paths_and_bytes_give_the_same(tmp_path: Path):
    model = parsed("g (float[2] a) => (float[2] b) { b = Relu(a) }")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert str(load(path)) == str(load(str(path))) == str(load(model.SerializeToString()))


def test_a_shape_computed_in_the_model_vanishes():
    graph = imported("""
        g (float[2,3,4] x) => (float[A,B] y) <int64[1] zero = {0}, int64[1] minus = {-1}, int64 first = {0}>
        { s = Shape(x) n = Gather(s, first) r = Unsqueeze(n, zero) t = Concat<axis = 0>(r, minus) y = Reshape(x, t) }
    """)
    assert only(graph).attrs == {"shape": (2, 12)}
    assert graph.constants == {}


def test_open_dimensions_are_bound():
    body = "g (float[batch,3,N] x) => (float[batch,3,N] y) { y = Relu(x) }"
    assert imported(body, batch=2, N=5).types["v0"].shape == (2, 3, 5)
    assert load(parsed(body).SerializeToString(), {"batch": 2, "x:2": 7}).types["v0"].shape == (2, 3, 7)


def test_initializers_that_are_inputs_too_are_constants():
    model = parsed("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", opset=8, ir=3)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = load(model.SerializeToString())
    assert [v.label for v in graph.inputs] == ["x"]
    assert list(graph.constants) == ["v1"]


def test_what_is_said_twice_alike():
    model = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)
    model.opset_import.extend([onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx", 17)])
    model.graph.output.append(model.graph.output[0])
    for source in (model.SerializeToString(), strip(model.SerializeToString()).data):
        graph = load(source)
        assert [(v.label, v.tensor) for v in graph.outputs] == [("y", only(graph).outputs[0])] * 2


def test_nodes_may_come_in_any_order():
    model = parsed("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert [n.op for n in load(model.SerializeToString()).nodes] == ["Relu", "Neg"]


def test_functions_of_the_model_are_expanded():
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "mine" : 1]>
        g (float[2] x) => (float[2] y) { y = mine.twice(x) }
        <domain: "mine", opset_import: ["" : 18]>
        twice (a) => (b) { c = Relu(a) b = Add(c, a) }
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "unused"))
    assert [n.op for n in load(model.SerializeToString()).nodes] == ["Relu", "Add"]


def test_composite_ops_are_expanded_and_their_shapes_fold():
    graph = imported(
        """
        g (float[1,4,6] x, float[4] s, float[4] b) => (float[1,4,6] y)
        { y = GroupNormalization<num_groups = 2>(x, s, b) }
        """,
        opset=21,
    )
    ops = {n.op for n in graph.nodes}
    assert "GroupNormalization" not in ops and not ops & {"Shape", "Concat", "Constant"}


@pytest.mark.parametrize("opset", [18, 20])
def test_group_normalization_by_groups(runs: Any, opset: int):
    """ONNX declared it deprecated when it came: as of 21 scale and bias are of channels."""
    x = np.random.default_rng(0).standard_normal((2, 6, 5)).astype(np.float32)
    parts = x.reshape(2, 3, 10).astype(np.float64)
    s, b = np.array([1, -2, 3], np.float32), np.array([0.5, 0, -1], np.float32)
    normed = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    expected = (normed * s[:, None] + b[:, None]).reshape(x.shape)
    for condition in ("", ", bool c"):
        normalise = "{} = GroupNormalization<num_groups = 3>(x, s, b)"
        body = normalise.format("y")
        if condition:
            body = f"""y = If (c) <then_branch = t () => (float[2,6,5] r) {{ {normalise.format("r")} }},
                                   else_branch = e () => (float[2,6,5] q) {{ q = Neg(x) }}>"""
        graph = imported(
            f"g (float[2,6,5] x, float[3] s, float[3] b{condition}) => (float[2,6,5] y) {{ {body} }}", opset
        )
        feeds = {"v0": x, "v1": s, "v2": b, "v3": np.asarray(True)}
        (result,) = runs.nodes(graph, {value.tensor: feeds[value.tensor] for value in graph.inputs})
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


IF_BODY = """
    g (float[2] x{condition}) => (float[2] y) {{
        {compute}
        y = If (c) <then_branch = t () => (float[2] r) {{ r = Relu(x) }},
                    else_branch = e () => (float[2] q) {{ z = Neg(x) q = Neg(z) }}>
    }}
"""


@pytest.mark.parametrize(("value", "ops"), [(1, ["Relu"]), (0, ["Neg", "Neg"])])
def test_a_known_condition_takes_its_branch(value: int, ops: list[str]):
    body = IF_BODY.format(condition="", compute=f"k = Constant<value_int = {value}>() c = Cast<to = 9>(k)")
    assert [n.op for n in imported(body).nodes] == ops


def test_an_unknown_condition_stays_with_what_it_captures(runs: Any):
    graph = imported(IF_BODY.format(condition=", bool c", compute=""))
    node = only(graph)
    assert node.op == "If" and node.inputs == ("v1", "v0") and node.attrs["captures"] == ("c0",)
    assert b"x" not in node.attrs["then_branch"] and graph.types[node.outputs[0]].shape == (2,)
    x = np.array([-1, 2], np.float32)
    for condition, expected in ((True, [0, 2]), (False, [-1, 2])):
        (result,) = runs.nodes(graph, {"v0": x, "v1": np.asarray(condition)})
        assert result.tolist() == expected


def test_constant_weights_made_by_nodes_take_no_memory():
    graph = imported("""
        g (float[1,4096] x) => (float[1,4096] y) <int64[2] shape = {4096, 4096}>
        { w = ConstantOfShape<value = float[1] {0.5}>(shape) y = MatMul(x, w) }
    """)
    (weight,) = graph.constants.values()
    assert weight.shape == (4096, 4096) and weight.strides == (0, 0) and weight[7, 9] == 0.5


def test_folding_does_not_explode():
    graph = imported("""
        g (float[1] x) => (float[A,B] y) <float[1] one = {1}, int64[2] shape = {40000, 40000}>
        { w = Expand(one, shape) y = Add(x, w) }
    """)
    assert [n.op for n in graph.nodes] == ["Expand", "Add"]


def test_optional_results_that_nobody_reads_are_dropped():
    graph = imported("g (float[2,4] x, float[4] s) => (float[2,4] y) { y, m, d = LayerNormalization(x, s) }")
    assert len(only(graph).outputs) == 1


@pytest.mark.parametrize(
    ("body", "opset", "shape"),
    [
        # Its axes need not be in order, and none has to be.
        ("g (float[1,2,1,1] x) => (float[...] y) { y = Squeeze <axes = [3, 2]> (x) }", 10, (1, 2)),
        ("g (float[1,2,1,3] x) => (float[...] y) { y = Squeeze <axes = [-2, 0]> (x) }", 11, (2, 3)),
        ("g (float[1,2,1,1] x) => (float[...] y) { y = Squeeze(x) }", 12, (2,)),
        (
            """g (float[1,1,2,2] x, float[1,2,1,2] w) => (float[...] y)
            { y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [3,3], output_padding = [2,2]> (x, w) }""",
            17,
            (1, 2, 6, 6),
        ),
    ],
)
def test_extents_that_inference_does_not_tell_right(body: str, opset: int, shape: Any, runs: Any):
    graph = rewrite(imported(body.replace("float[...]", "float"), opset))
    assert graph.types[graph.outputs[0].tensor].shape == shape
    rng = np.random.default_rng(0)
    feeds = {
        value.tensor: rng.standard_normal(graph.types[value.tensor].shape).astype(np.float32) for value in graph.inputs
    }
    runs.agree(graph, feeds)


def test_an_axis_that_a_scalar_does_not_have():
    graph = imported("g (float x) => (float y) { y = Squeeze <axes = [0]> (x) }", 11)
    assert graph.types[graph.outputs[0].tensor].shape == ()


def test_an_operand_may_be_given_twice(runs: Any):
    """Of a vector times itself each side has another shape, and one of them was taken for both."""
    for body in (
        "g (float[3] x) => (float y) { y = MatMul(x, x) }",
        "g (float[2,3,3] x) => (float[2,3,3] y) { y = MatMul(x, x) }",
        "g (float[3,3,3,3] x) => (float[3,3,1,1] y) { y = Conv(x, x) }",
        "g (float[3,3,3,3] x) => (float[3,3,5,5] y) { y = ConvTranspose(x, x) }",
        "g (float[3,3] x) => (float[3,3] y) { y = Gemm(x, x, x) }",
        "g (float[4] x) => (float[4] y) { y = PRelu(x, x) }",
    ):
        graph = rewrite(imported(body))
        (value,) = graph.inputs
        x = np.random.default_rng(0).standard_normal(graph.types[value.tensor].shape).astype(np.float32)
        runs.agree(graph, {value.tensor: x})


def test_a_mean_over_axes_that_are_computed_is_no_norm():
    graph = imported(
        """g (float[2,3] x, int64[1] a) => (float[2,3] y)
        { p = Mul(x, x) m = ReduceMean(p, a) e = Constant <value_float = 0.1> () s = Add(m, e)
          r = Sqrt(s) y = Div(x, r) }""",
        18,
    )
    assert "RMSNormalization" not in [node.op for node in rewrite(graph).nodes]


def test_an_extent_of_minus_one_is_open():
    """Paddle's exporter writes a batch of any size so, in inputs, outputs and between."""
    value, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [-1, 3]) for name in "xy")
    between = helper.make_tensor_value_info("t", TensorProto.FLOAT, [-1, -1])
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value], [out], value_info=[between])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    model, _ = read_model(data)
    signature = open_signature(model, {})
    assert [tensor.extents for tensor in (*signature.inputs, *signature.outputs)] == [(None, 3)] * 2
    bound = load(data, {"x:0": 5})
    assert bound.type(bound.inputs[0].tensor) == TensorType("float32", (5, 3))

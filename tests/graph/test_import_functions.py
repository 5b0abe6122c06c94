"""Functions of the model: what a call means is what its nodes mean where they stand in the function."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper, parser

from tunewright.graph.ir import Array, Graph
from tunewright.graph.onnx_import import ModelError, load, plain
from tunewright.graph.onnx_import.structure import strip

X = np.array([-2, -1, 0, 3], np.float32)


def parsed(body: str, *written: str, opset: int = 17) -> ModelProto:
    """A model whose functions are written as "name (inputs) => (outputs) { ... }"."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]> g {body}'
    for function in written:
        text += f'\n<domain: "my", opset_import: ["" : {opset}, "my" : 1]> {function}'
    return parser.parse_model(text)


def result(model: ModelProto, runs: Any, *feeds: Any) -> Array:
    """What a model gives, the same as its structure; feeds in the order of its inputs."""
    data = model.SerializeToString()
    first, second = (_run(load(source), runs, feeds) for source in (data, strip(data).data))
    np.testing.assert_array_equal(first, second)
    return first


def _run(graph: Graph, runs: Any, feeds: Any) -> Array:
    [result] = runs.nodes(graph, {f"v{k}": np.asarray(value) for k, value in enumerate(feeds)})
    return np.asarray(result)


def leaky(alpha: float) -> list[float]:
    values: list[float] = np.where(X < 0, np.float32(alpha) * X, X).tolist()
    return values


LEAKY = "leaky <alpha: float = 0.5> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
BARE = "bare <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
OUTER = "outer <slope: float = 0.25> (a) => (b) { b = my.leaky <alpha: float = @slope> (a) }"
OPEN = "open <slope> (a) => (b) { b = my.leaky <alpha: float = @slope> (a) }"
IN_BODY = """
    body <alpha: float = 0.5> (c, a) => (b) {
        b = If (c) <then_branch = t () => (float[4] r) { r = LeakyRelu <alpha: float = @alpha> (a) },
                    else_branch = e () => (float[4] q) { q = my.leaky (a) }>
    }
"""


@pytest.mark.parametrize(
    ("call", "alpha"),
    [
        ("my.leaky (x)", 0.5),
        ("my.leaky <alpha = 0.125> (x)", 0.125),
        ("my.bare (x)", 0.01),
        ("my.bare <alpha = 0.125> (x)", 0.125),
        ("my.outer (x)", 0.25),
        ("my.outer <slope = 0.125> (x)", 0.125),
        ("my.open (x)", 0.5),
        ("my.open <slope = 0.125> (x)", 0.125),
    ],
)
def test_attributes_that_a_call_leaves_out_have_the_defaults(runs: Any, call: str, alpha: float):
    functions = (LEAKY, BARE, OUTER, OPEN)
    plain = parsed(f"(float[4] x) => (float[4] y) {{ y = {call} }}", *functions)
    assert result(plain, runs, X).tolist() == leaky(alpha)
    branch = parsed(
        f"""(float[4] x, bool c) => (float[4] y) {{
            y = If (c) <then_branch = t () => (float[4] r) {{ r = {call} }},
                        else_branch = e () => (float[4] q) {{ q = Neg(x) }}>
        }}""",
        *functions,
    )
    assert result(branch, runs, X, True).tolist() == leaky(alpha)
    loop = parsed(
        f"""(float[4] x, int64 m) => (float[4] y) <bool go = {{1}}> {{
            y = Loop (m, go, x) <body = b (int64 i, bool o, float[4] s) => (bool p, float[4] r)
                {{ p = Identity(o) r = {call.replace("(x)", "(s)")} }}>
        }}""",
        *functions,
    )
    assert result(loop, runs, X, 1).tolist() == leaky(alpha)


@pytest.mark.parametrize(
    ("condition", "attribute", "alpha"), [(True, "", 0.5), (True, "<alpha = 0.125>", 0.125), (False, "", 0.5)]
)
def test_defaults_in_the_bodies_of_a_function(runs: Any, condition: bool, attribute: str, alpha: float):
    model = parsed(f"(float[4] x, bool c) => (float[4] y) {{ y = my.body {attribute} (c, x) }}", IN_BODY, LEAKY)
    assert result(model, runs, X, condition).tolist() == leaky(alpha)


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> NodeProto:
    return helper.make_node(op, ["" if name == "_" else name for name in inputs.split()], outputs.split(), **attrs)


IMAGE = np.random.default_rng(0).standard_normal((1, 6, 3, 5)).astype(np.float32)
CHANNELS = {name: np.arange(1, 7, dtype=np.float32) for name in "sbmv"}
GROUPS = {name: np.arange(1, 4, dtype=np.float32) for name in "sb"}
DOUBLED = {"n": np.array([1, 1, 2, 2], np.float32)}
AXIS = {"a": np.array([0])}

MEANINGS: list[tuple[int, list[NodeProto], dict[str, Any]]] = [
    (11, [node("Softmax", "x", axis=1)], {}),
    (17, [node("Softmax", "x", axis=1)], {}),
    (9, [node("Clip", "x", min=-0.5)], {}),
    (13, [node("Clip", "x low")], {"low": np.float32(-0.5)}),
    (11, [node("Squeeze", "x", "z", axes=[0]), node("Unsqueeze", "z", axes=[2])], {}),
    (22, [node("Squeeze", "x a", "z"), node("Unsqueeze", "z a")], AXIS),
    (11, [node("ReduceSum", "x", axes=[1])], {}),
    (18, [node("ReduceMean", "x a")], AXIS),
    (9, [node("Dropout", "x", ratio=0.5)], {}),
    (9, [node("BatchNormalization", "x s b m v")], CHANNELS),
    (15, [node("BatchNormalization", "x s b m v")], CHANNELS),
    (10, [node("Resize", "x n", mode="linear")], DOUBLED),
    (9, [node("Upsample", "x n")], DOUBLED),
    (11, [node("Split", "x", "y z", axis=1, split=[2, 4])], {}),
    (18, [node("Split", "x", "y z", axis=1, num_outputs=2)], {}),
    (10, [node("Pad", "x", pads=[0, 1, 0, 0, 0, 0, 2, 0])], {}),
    (18, [node("Pad", "x p _ a")], {"p": np.array([1, 2]), "a": np.array([3])}),
    (9, [node("TopK", "x", "y z", k=2, axis=1)], {}),
    (9, [node("Scatter", "x i u", axis=1)], {"i": np.zeros((1, 1, 1, 1), np.int64), "u": np.ones((1, 1, 1, 1), "f")}),
    (18, [node("GroupNormalization", "x s b", num_groups=3)], GROUPS),
    (21, [node("GroupNormalization", "x s b", num_groups=3)], CHANNELS),
]


def with_nodes(opset: int, nodes: list[NodeProto], weights: dict[str, Any], *inlined: Any) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, IMAGE.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=inlined, ir_version=10)


@pytest.mark.parametrize(
    ("opset", "of_function", "nodes", "weights"),
    [(opset, *meaning) for opset, meaning in product((9, 13, 24), MEANINGS) if opset != meaning[0]],
)
def test_a_function_of_another_opset_keeps_its_meaning(
    runs: Any, opset: int, of_function: int, nodes: list[NodeProto], weights: dict[str, Any]
):
    names = ["x", *(name for name in weights if any(name in each.input for each in nodes))]
    weights = {name: weights[name] for name in names[1:]}
    expected = result(with_nodes(of_function, nodes, weights), runs, IMAGE)
    function = helper.make_function("my", "f", names, ["y"], nodes, [helper.make_opsetid("", of_function)])
    call = helper.make_node("f", names, ["y"], domain="my")
    np.testing.assert_array_equal(result(with_nodes(opset, [call], weights, function), runs, IMAGE), expected)


@pytest.mark.parametrize(
    ("opset", "of_function", "nodes", "weights"),
    [
        (17, 11, [node("ReduceSum", "x", axes=[1])], {}),
        (11, 17, [node("ReduceSum", "x a")], AXIS),
        (24, 11, [node("Softmax", "x", "z", axis=1), node("Squeeze", "z", axes=[0])], {}),
        (9, 20, [node("Gelu", "x", "z"), node("Identity", "z")], {}),
        (24, 18, [node("GroupNormalization", "x s b", num_groups=3)], GROUPS),
        (18, 22, [node("GroupNormalization", "x s b", num_groups=3)], CHANNELS),
    ],
)
def test_a_function_of_another_opset_in_a_body_that_stays(
    runs: Any, opset: int, of_function: int, nodes: list[NodeProto], weights: dict[str, Any]
):
    expected = np.asarray(result(with_nodes(of_function, nodes, weights), runs, IMAGE), np.float32)
    names = ["x", *weights]
    function = helper.make_function("my", "f", names, ["y"], nodes, [helper.make_opsetid("", of_function)])
    call = helper.make_node("f", names, ["r"], domain="my")
    shapeless = [helper.make_tensor_value_info("r", 1, None)]
    branches = [helper.make_graph([each], "b", [], shapeless) for each in (call, node("Neg", "x", "r"))]
    model = with_nodes(opset, [node("If", "c", then_branch=branches[0], else_branch=branches[1])], weights, function)
    model.graph.input.append(helper.make_tensor_value_info("c", 9, []))
    np.testing.assert_allclose(np.asarray(result(model, runs, IMAGE, True), np.float32), expected, rtol=1e-5, atol=1e-5)
    assert result(model, runs, IMAGE, False).tolist() == (-IMAGE).tolist()


def test_names_inside_hit_none_outside(runs: Any):
    model = parsed(
        "(float[4] x, float[4] t_0) => (float[4] y) { t = my.f (x, t_0) t_1 = my.f (t, x) y = my.f (t_1, t) }",
        "f (a, b) => (t) { t_1 = Neg(a) t_0 = Mul(t_1, b) t = Add(t_0, a) }",
    )
    z, once = np.array([1, 2, 3, 4], np.float32), lambda a, b: a - a * b
    t = once(X, z)
    assert result(model, runs, X, z).tolist() == once(once(t, X), t).tolist()


def test_operands_that_are_absent_or_handed_on(runs: Any):
    model = parsed(
        "(float[4] x) => (float[4] y) { p, q = my.f (x) _, r = my.f (p) y = Add(q, r) }",
        "f (a, low) => (a, b, rest) { b = Clip(a, low) rest = Neg(b) }",
    )
    assert result(model, runs, X).tolist() == (2 * X).tolist()


def test_overloads(runs: Any):
    model = parsed("(float[4] x) => (float[4] y) { t = my.f (x) y = my.f (t) }", "f (a) => (b) { b = Neg(a) }")
    other = model.functions.add()
    other.CopyFrom(model.functions[0])
    other.overload, other.node[0].op_type = "second", "Relu"
    model.graph.node[1].overload = "second"
    assert result(model, runs, X).tolist() == np.maximum(-X, 0).tolist()


def refused(model: ModelProto, *words: str) -> None:
    for use in (load, strip):
        with pytest.raises(ModelError) as error:
            use(model.SerializeToString())
        line = str(error.value)
        assert line.isprintable() and all(word in line for word in words)


def test_calls_and_functions_that_are_wrong():
    body = "(float[4] x) => (float[4] y) {{ y = {} }}"
    simple = "f (a) => (b) { b = Neg(a) }"
    refused(parsed(body.format("my.f (x, x)"), simple), "node 'y' (f): 2 inputs", "more than the 1", "function 'f'")
    refused(parsed("(float[4] x) => (float[4] y) { y, z = my.f (x) }", simple), "2 outputs")
    refused(
        parsed(body.format("my.f (x)"), "f (a) => (b) { b = Neg(x) }"), "node 'b' (Neg) in function 'f'", "reads 'x'"
    )
    model = parsed(body.format("my.f (x)"), simple)
    for version, words in ((5, "opset 5 of function 'f'"), (999, "opset 999 of function 'f'")):
        model.functions[0].opset_import[0].version = version
        refused(model, words)
    model.functions[0].opset_import[0].version = 17
    model.functions[0].opset_import.append(helper.make_opsetid("ai.onnx", 18))
    refused(model, "function 'f' gives versions")
    model = parsed(body.format("LeakyRelu (x)"))
    model.graph.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=1)
    with pytest.raises(ModelError, match="refers to a function's"):
        load(model.SerializeToString())
    missing = parsed(body.format("my.f (x)"), simple)
    missing.functions[0].opset_import[0].version = 9
    missing.functions[0].node[0].op_type = "Gelu"
    with pytest.raises(ModelError, match="opset 9 has no op 'Gelu'"):
        load(missing.SerializeToString())


def test_what_is_handed_down_twice_does_not_explode(monkeypatch: pytest.MonkeyPatch):
    """Each function gives the graph that it gets to two calls: a few bytes would become 2 to the 30 nodes."""
    graph = helper.make_graph([node("Neg", "x")], "b", [], [helper.make_tensor_value_info("y", 1, None)])
    model = parsed("(float[4] x, bool c) => (float[4] y) { y = my.f0 (c) }")
    model.graph.node[0].attribute.append(helper.make_attribute("body", graph))
    for level in range(30):
        calls = [node(f"f{level + 1}", "c", f"y{k}") for k in range(2)]
        for call in calls:
            call.domain = "my"
            call.attribute.add(name="body", ref_attr_name="body", type=5)
        model.functions.append(helper.make_function("my", f"f{level}", ["c"], ["y1"], calls, [], ["body"]))
    last = helper.make_node("If", ["c"], ["y1"])
    for name in ("then_branch", "else_branch"):
        last.attribute.add(name=name, ref_attr_name="body", type=5)
    model.functions.append(helper.make_function("my", "f30", ["c"], ["y1"], [last], [], ["body"]))
    monkeypatch.setattr(plain, "MAX_NODES", 1000)
    refused(model, "nodes")
    monkeypatch.setattr(plain, "MAX_EXPANDED_BYTES", 200)
    small = parsed("(float[4] x) => (float[4] y) { t = my.f (x) y = my.f (t) }", "f (a) => (b) { b = Neg(a) }")
    load(small.SerializeToString())
    monkeypatch.setattr(plain, "MAX_EXPANDED_BYTES", 10)
    refused(small, "more than 10 bytes when expanded")


def test_depth_of_calls_and_bodies_together():
    """Sixty calls, each inside of eight bodies: deeper than Python recurses."""
    model = parsed("(float[4] x, bool c) => (float[4] y) { y = my.f0 (x, c) }")
    for level in range(60):
        inner = helper.make_node(f"f{level + 1}", ["a", "c"], ["r"], domain="my")
        for _ in range(8):
            output = [helper.make_tensor_value_info("r", 1, None)]
            branches = [helper.make_graph([each], "b", [], output) for each in (inner, node("Neg", "a", "r"))]
            inner = node("If", "c", "r", then_branch=branches[0], else_branch=branches[1])
        opsets = list(model.opset_import)
        model.functions.append(helper.make_function("my", f"f{level}", ["a", "c"], ["r"], [inner], opsets))
    last = [node("Neg", "a", "r")]
    model.functions.append(helper.make_function("my", "f60", ["a", "c"], ["r"], last, list(model.opset_import)))
    refused(model, "nested more than 16 deep")

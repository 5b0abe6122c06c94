"""What is said of models that are wrong: one line with the node, the value, what it must be, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, parser

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.onnx_import.check import MAX_OPERANDS, MAX_SUBGRAPH_DEPTH
from tunewright.graph.onnx_import.protobuf import StructuralFault
from tunewright.graph.onnx_import.signature import ML_WORDS, WORDS, check_attributes
from tunewright.graph.rewrites import rewrite

JARGON = ("schema(", "single", "unification", "merge", "typestr", "ParseData", "Error", "don't go together", "__")
"""Words of the insides of onnx and Python."""


def parsed(body: str, opset: int = 18, functions: str = "") -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]> g {body} {functions}')


def refused(model: ModelProto, *words: str, dims: Mapping[str, int] | None = None) -> None:
    with pytest.raises(ModelError) as error:
        load(model.SerializeToString(), dims)
    line = str(error.value)
    assert line.isprintable() and len(line) < 500
    assert not [word for word in JARGON if word in line]
    assert not [word for word in words if word not in line], line


IMAGE, WEIGHT = "float[1,4,8,8] x", "float[4,4,3,3] w"
BOXES = "float[1,4] r, int64[1] b"
STEPS = "float[3,1,2] x, float[1,8,2] w, float[1,8,2] r"


@pytest.mark.parametrize(
    ("inputs", "node", "words"),
    [
        (
            f"{IMAGE}, {WEIGHT}",
            'Conv<auto_pad="SAME">(x, w)',
            "auto_pad is 'SAME'; it must be one of NOTSET, SAME_UPPER",
        ),
        (f"{IMAGE}, {WEIGHT}", 'ConvTranspose<auto_pad="SAME">(x, w)', "SAME_LOWER, VALID"),
        (IMAGE, 'AveragePool<kernel_shape=[2,2],auto_pad="foo">(x)', "auto_pad is 'foo'"),
        (f"{IMAGE}, float[4] s", 'Resize<nearest_mode="foo">(x, , s)', "floor, ceil, round_prefer_floor"),
        (
            f"{IMAGE}, float[4] s",
            'Resize<mode="foo">(x, , s)',
            "mode is 'foo'; it must be one of nearest, linear, cubic",
        ),
        (f"{IMAGE}, float[4] s", 'Resize<coordinate_transformation_mode="foo">(x, , s)', "half_pixel, "),
        (f"{IMAGE}, int64[4] s", 'Resize<keep_aspect_ratio_policy="foo">(x, , , s)', "stretch, not_larger"),
        (f"{IMAGE}, int64[8] p", 'Pad<mode="mirror">(x, p)', "constant, reflect, edge, wrap"),
        (IMAGE, 'DepthToSpace<blocksize=2,mode="foo">(x)', "DCR, CRD"),
        (IMAGE, 'Gelu<approximate="foo">(x)', "none, tanh"),
        ("float[3] x, int64[1] i, float[1] u", 'ScatterElements<reduction="foo">(x, i, u)', "none, add, mul, max, min"),
        ("float[3] x, int64[1,1] i, float[1] u", 'ScatterND<reduction="foo">(x, i, u)', "none, add, mul, max, min"),
        (f"{IMAGE}, float[1,2,2,2] q", 'GridSample<mode="foo">(x, q)', "linear, nearest, cubic"),
        (f"{IMAGE}, float[1,2,2,2] q", 'GridSample<padding_mode="foo">(x, q)', "zeros, border, reflection"),
        (f"{IMAGE}, {BOXES}", 'RoiAlign<mode="foo">(x, r, b)', "avg, max"),
        (STEPS, 'LSTM<hidden_size=2,direction="foo">(x, w, r)', "forward, reverse, bidirectional"),
        (STEPS, 'LSTM<hidden_size=2,activations=["foo","Tanh","Tanh"]>(x, w, r)', "activations is 'foo'"),
        (STEPS, 'LSTM<hidden_size=2,activations=["Tanh"]>(x, w, r)', "activations names 1; 3 are needed"),
        ("uint8[3] x, uint8[3] z", 'BitShift<direction="foo">(x, z)', "LEFT, RIGHT"),
        ("float[3,4] x, int64[3] z", 'NegativeLogLikelihoodLoss<reduction="foo">(x, z)', "none, sum, mean"),
        ("float[3,4] x", 'Einsum<equation="i?j->i">(x)', "'i?j->i'"),
    ],
)
def test_words_that_an_attribute_does_not_have(inputs: str, node: str, words: str):
    refused(parsed(f"({inputs}) => (float y) {{ y = {node} }}", 20), "node 'y' (", words)


def test_all_words_that_onnx_has_by_default_are_known():
    """The tables name attributes that there are, and every word that a model has where it says nothing."""
    names = {"": WORDS, "ai.onnx.ml": ML_WORDS}
    for schema in onnx.defs.get_all_schemas():
        known = names.get(schema.domain, {}).get(schema.name, {})
        words = [name for name, item in schema.attributes.items() if item.default_value.s]
        assert set(words) <= {*known, "round_mode", "default_string", "locale"} or schema.domain, schema.name
        attrs = {name: schema.attributes[name].default_value.s.decode() for name in words}
        check_attributes(schema.name, schema.domain, attrs)
    for domain, table in names.items():
        for op, attributes in table.items():
            newest = onnx.defs.get_schema(op, domain) if domain else onnx.defs.get_schema(op)
            assert set(attributes) <= set(newest.attributes), op
            for name in attributes:
                with pytest.raises(StructuralFault, match=f"attribute {name} is 'foo'"):
                    check_attributes(op, domain, {name: "foo"})


def test_capital_letters_of_activations_and_padding_that_is_not_set():
    check_attributes("GRU", "", {"activations": ("Sigmoid", "tanh")})
    check_attributes("Conv", "", {"auto_pad": ""})


@pytest.mark.parametrize(
    ("inputs", "node", "words"),
    [
        (IMAGE, "LRN<size=0>(x)", "attribute size is 0; it must be 1 to"),
        (IMAGE, "LRN<size=-1>(x)", "attribute size is -1"),
        (IMAGE, "LpPool<kernel_shape=[2,2],p=0>(x)", "attribute p is 0"),
        (IMAGE, "MaxPool<kernel_shape=[2147483648,1]>(x)", "kernel_shape is [2147483648, 1]; each must be 1 to 2,147"),
        (IMAGE, "MaxPool<kernel_shape=[2,200]>(x)", "a window of 200 does not fit into 8, the extent of axis 3"),
        ("float[1,4,6] x", "Col2Im(x, i, i) i = Constant<value_int = 2>()", "must have one dimension each"),
        (IMAGE, "MaxPool<kernel_shape=[2,2],strides=[1]>(x)", "strides has 1 values; 2 spatial dimensions need 2"),
        (IMAGE, "MaxPool<kernel_shape=[2,2],pads=[1,1]>(x)", "pads has 2 values; 2 spatial dimensions need 4"),
        (f"{IMAGE}, {WEIGHT}", "Conv<strides=[-1,1]>(x, w)", "strides is [-1, 1]; each must be 1 to"),
        (f"{IMAGE}, {WEIGHT}", "Conv<pads=[9999999999,0,0,0]>(x, w)", "pads is [9999999999, 0, 0, 0]; each must be"),
        (f"{IMAGE}, {WEIGHT}", "Conv<group=-1>(x, w)", "group is -1"),
        (f"{IMAGE}, {WEIGHT}", "Conv<group=2>(x, w)", "the input has 4 channels, and the weight is for 8 (2 groups)"),
        (f"{IMAGE}, {WEIGHT}", "Conv<kernel_shape=[5,5]>(x, w)", "kernel_shape is [5, 5], and the weight has [3, 3]"),
        (f"{IMAGE}, float[3,2,3,3] w", "Conv<group=2>(x, w)", "3 features can't be divided into 2 groups"),
        (f"{IMAGE}, {WEIGHT}, float[9] b", "Conv(x, w, b)", "the bias has shape [9]; the result has 4 channels"),
        (f"{IMAGE}, {WEIGHT}", "ConvTranspose<output_padding=[-1,0]>(x, w)", "output_padding is [-1, 0]; each"),
        (f"{IMAGE}, {BOXES}", "RoiAlign<output_height=0>(x, r, b)", "output_height is 0"),
        (f"{IMAGE}, float[1,5] r, int64[1] b", "RoiAlign(x, r, b)", "regions [R, 4]"),
        ("float[3] x, int64[1,1] i, float[1,1] u", "ScatterElements(x, i, u)", "data of 1 dimensions and indices of 2"),
        ("float[3] x, int64[1] i, float[2] u", "ScatterElements(x, i, u)", "different shapes (operands [3], [1], [2])"),
        ("float[3] x, int64[1,1] i, float[2] u", "ScatterND(x, i, u)", "updates must have shape [1]"),
        (f"{IMAGE}, float[4] s", 'Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, , s)', "roi with 8"),
        (f"{IMAGE}, float[2] a", "Clip(x, a)", "input min has shape [2]; it must be one number"),
        ("float[2,3] x, int64[2] a", "CumSum(x, a)", "input axis has shape [2]; it must be one number"),
        ("float[3] x, bool[2,2] c", "Compress(x, c)", "condition has shape [2, 2]"),
    ],
)
def test_numbers_and_shapes_out_of_range(inputs: str, node: str, words: str):
    refused(parsed(f"({inputs}) => (float y) {{ y = {node} }}"), "node 'y' (", words)


@pytest.mark.parametrize(
    ("inputs", "node", "words"),
    [
        ("int64[2] a = {0, 1}", "CumSum(x, a)", "input axis has shape [2]"),
        ("float a = {0}, float b = {5}, float c = {0}", "Range(a, b, c)", "delta is 0"),
        (
            "int64[2] s = {7, 5}, int64[2] b = {2, 2}",
            "Col2Im(columns, s, b)",
            "12 columns where the image has room for 24",
        ),
        (
            "int64[2] s = {7, 5}, int64[2] b = {3, 1}",
            "Col2Im(columns, s, b)",
            "8 rows of columns can't be divided by the 3",
        ),
    ],
)
def test_constants_out_of_range(inputs: str, node: str, words: str):
    body = f"(float[2,3] x, float[1,8,12] columns) => (float y) <{inputs}> {{ y = {node} }}"
    refused(parsed(body), "node 'y' (", words)


@pytest.mark.parametrize(
    ("opset", "scale", "words"), [(21, 4, "4 channels can't be divided into 3"), (18, 3, "groups")]
)
def test_groups_of_channels(opset: int, scale: int, words: str):
    body = f"({IMAGE}, float[{scale}] s) => (float y) {{ y = GroupNormalization<num_groups = 3>(x, s, s) }}"
    refused(parsed(body, opset), "node 'y' (GroupNormalization): ", words)
    refused(parsed(body.replace("= 3", "= 2").replace(f"[{scale}]", "[7]"), opset), "input scale has shape [7]")


INNER = '<domain: "my", opset_import: ["" : 18]> inner (a, c) => (b) { qq = Relu(a) rr = Add(qq, c) b = Neg(rr) }'
OUTER = '<domain: "my", opset_import: ["" : 18, "my" : 1]> outer (a, c) => (b) { t = Neg(a) b = my.inner(t, c) }'


@pytest.mark.parametrize(("call", "function"), [("inner", ""), ("outer", OUTER)])
def test_nodes_in_functions_have_the_names_that_they_have_there(call: str, function: str):
    model = parsed(f"(float[2,3] x, float[2,4] z) => (float y) {{ y = my.{call}(x, z) }}", 18, INNER + function)
    refused(model, "node 'rr' (Add) in function 'inner', called by node 'y': the shapes don't fit together")
    missing = INNER.replace("Neg(rr)", "Neg(gone)")
    model = parsed(f"(float[2,3] x, float[2,3] z) => (float y) {{ y = my.{call}(x, z) }}", 18, missing + function)
    refused(model, "node 'b' (Neg) in function 'inner'", "reads 'gone'")


def test_nodes_of_a_definition_are_told_as_the_op_that_the_user_wrote():
    body = "(float[1,2,3,4] q, float[1,2,3,5] k, float[1,2,3,4] v) => (float y) { y = Attention(q, k, v) }"
    refused(parsed(body, 23), "node 'y' (Attention), in its definition at")


@pytest.mark.parametrize(
    ("inputs", "node", "words"),
    [
        ("float[2,3] x", "Relu(x, x)", "2 inputs where Relu of opset 18 has 1"),
        ("float[2,3] x", "Add(x)", "1 input where Add of opset 18 has 2"),
        ("float[2,3] x, int64[1] i", "Gather(, i)", "input 0 (data) is left out; Gather of opset 18 needs it"),
        ("float[2,3] x", "Relu<foo=1>(x)", "Relu of opset 18 has no attribute 'foo'; its attributes: none"),
        ("float[2,3] x", "LeakyRelu<alpha=1>(x)", "attribute 'alpha' is an integer; LeakyRelu of opset 18 has a float"),
        ("float[2,3] x", "Concat(x, x)", "attribute axis is missing; Concat of opset 18 needs it"),
        ("float[2,3] x", "Concat<axis=0, axis=1>(x, x)", "attribute 'axis' is given twice"),
        ("string[2,3] x", "Add(x, x)", "input 0 (A) holds string; Add of opset 18 takes bfloat16, float16, float32"),
        ("float[2,3] x, int64[3] z", "Add(x, z)", "input 0 (A) holds float32 and input 1 (B) int64"),
        ("float[3,4] x, float[3,4] z", "Gemm(x, z)", "extents 3 and 4 where they must be equal"),
    ],
)
def test_what_onnx_declares_is_said_in_plain_words(inputs: str, node: str, words: str):
    refused(parsed(f"({inputs}) => (float y) {{ y = {node} }}"), "node 'y' (", words)


R, Q = "float[2] r", "float[2] q"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (f"If(c) <then_branch = t () => ({R}) {{ r = Relu(x) }}>", "attribute else_branch is missing"),
        (
            (
                f"If(c) <then_branch = t () => ({R}) {{ r = Relu(x) }}, "
                f"else_branch = e () => ({Q}, float[2] p) {{ q = Neg(x) p = Neg(x) }}>"
            ),
            "2 outputs of else_branch where 1 are needed",
        ),
        (
            (
                f"If(c) <then_branch = t () => ({R}) {{ r = Relu(x) }}, "
                "else_branch = e () => (int32[2] q) { q = Cast<to = 6>(x) }>"
            ),
            "one branch makes float32, the other int32",
        ),
        (
            f"Loop(m, c, x) <body = t (int64 i, bool d) => (bool e, {R}) {{ e = Identity(d) r = Relu(x) }}>",
            "2 inputs of the body where 3 are given",
        ),
        (
            "Loop(m, c, x) <body = t (int64 i, bool d, float[2] s) => (bool e) { e = Identity(d) }>",
            "1 outputs of the body where 2 are needed",
        ),
        (f"Scan<num_scan_inputs = 5, body = t (float s) => ({R}) {{ r = Relu(s) }}>(x)", "num_scan_inputs is 5 of 1"),
    ],
)
def test_control_flow_whose_parts_do_not_match(node: str, words: str):
    refused(parsed(f"(int64 m, bool c, float[2] x) => (float y) {{ y = {node} }}"), "node 'y' (", words)


def test_too_many_operands_and_too_deep_are_told_with_the_node_and_what_to_do():
    x, y = helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("y", 1, None)
    many = helper.make_node("Concat", ["x"] * (MAX_OPERANDS + 1), ["y"], axis=0, name="big")
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph([many], "g", [x], [y]), opset_imports=opset)
    refused(model, "node 'big' (Concat): 10,001 inputs are more than 10,000", "use several")
    result = [helper.make_empty_tensor_value_info("r")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "g", [], result)
    for k in range(MAX_SUBGRAPH_DEPTH + 1):
        node = helper.make_node("If", ["c"], ["r"], name=f"if{k}", then_branch=graph)
        graph = helper.make_graph([node], "g", [], result)
    refused(helper.make_model(graph, opset_imports=opset), "node 'if0' (If): ", "more than 16 deep; move")


def test_an_output_of_another_type_than_is_declared():
    body = "(float[2] x) => ({} y) {{ y = Relu(x) }}"
    refused(parsed(body.format("int64")), "output 'y' is declared as int64, but float32 is computed", "Cast")
    other_shape = parsed(body.format("float[7]"))
    assert load(other_shape.SerializeToString()).types["v1"].shape == (2,)


def test_dimensions_that_contradict_each_other():
    model = parsed("(float[b,3] x, float[b,3] z) => (float y) { y = Add(x, z) }")
    refused(model, "'b' is bound to 2 by 'b' and to 5 by 'x:0'", dims={"b": 2, "x:0": 5})
    refused(model, "'b' is bound to 5 by 'x:0' and to 2 by 'z:0'", dims={"z:0": 2, "x:0": 5})
    assert load(model.SerializeToString(), {"b": 2, "x:0": 2}).types["v0"].shape == (2, 3)


@pytest.mark.parametrize("opset", [18, 21])
def test_pads_of_axes_in_32_bits(runs: Any, opset: int):
    body = "(float[2,3] x) => (float y) <int64[2] p = {0, 1}, int32[1] a = {-1}> { y = Pad(x, p, , a) }"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    [result] = runs.nodes(load(parsed(body, opset).SerializeToString()), {"v0": x})
    np.testing.assert_array_equal(result, np.pad(x, ((0, 0), (0, 1))))


def test_normalisation_of_each_element_of_a_sample(runs: Any):
    body = """(float[2,3,4] x, float[{0}] s, float[{0}] b, float[{0}] m, float[{0}] v) => (float y)
        {{ y = BatchNormalization<spatial = 0>(x, s, b, m, v) }}"""
    rng = np.random.default_rng(0)
    x, (s, b, m, v) = rng.random((2, 3, 4), np.float32), rng.random((4, 3, 4), np.float32)
    graph = load(parsed(body.format("3,4"), 7).SerializeToString())
    [result] = runs.nodes(graph, dict(zip(("v0", "v1", "v2", "v3", "v4"), (x, s, b, m, v), strict=True)))
    np.testing.assert_allclose(result, (x - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-5)
    refused(parsed(body.format("3"), 7), "must have shape [3, 4]")


@pytest.mark.parametrize(
    ("inputs", "node", "feeds", "words"),
    [
        ("float[3] x, int64[1] i", "Gather(x, i)", [np.ones(3, np.float32), np.array([9])], "index 9 is out of bounds"),
        ("float a, float b, float c", "Range(a, b, c)", [np.float32(0)] * 3, "float32[], float32[], float32[]: "),
    ],
)
def test_nodes_that_fail_at_run_time_are_named(inputs: str, node: str, feeds: list[Any], words: str, runs: Any):
    graph = load(parsed(f"({inputs}) => (float y) {{ y = {node} }}").SerializeToString())
    with pytest.raises(EvaluationError, match=r"node 'y' \(\w+\) can't be computed from float32") as error:
        runs.nodes(graph, {f"v{k}": np.asarray(value) for k, value in enumerate(feeds)})
    assert words in str(error.value)
    assert "opset" not in str(error.value)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "size"), [(3, 6, 2, 0), (3, 5, 2, 0), (3, 3, 2, 1), (2, 3, 3, 1)]
)
def test_windows_larger_than_what_they_slide_over(op: str, extent: int, kernel: int, stride: int, size: int):
    """By less than a step if they are counted up, by a step else: the result is empty."""
    node = f"{op}<kernel_shape = [{kernel}], strides = [{stride}], ceil_mode = 1>(x)"
    graph = load(parsed(f"(float[1,1,{extent}] x) => (float[a,b,c] y) {{ y = {node} }}").SerializeToString())
    assert graph.types[graph.outputs[0].tensor].shape == (1, 1, size)


def test_parts_of_a_split_that_nobody_wants():
    text = "(float[5] x) => (float[a] y) <int64[2] sizes = {2, 3}> { y, z = Split(x, sizes) }"
    model = parsed(text)
    model.graph.node[0].output[1] = ""
    graph = load(model.SerializeToString())
    assert graph.types[graph.outputs[0].tensor].shape == (2,)


def test_metadata_of_nodes_is_of_no_matter():
    model = parsed("(float[5] x) => (float[5] y) { y = Foo(x) }")
    for key in ("caller", "tunewright.caller"):
        model.graph.node[0].metadata_props.add(key=key, value="z")
    refused(model, "node 'y' (Foo)")


def test_a_name_that_is_an_input_and_is_computed():
    for read in ("x", "w"):
        text = f"(float[5] x) => (float[5] y) <float w = {{1}}> {{ y = Neg({read}) {read} = Abs(y) }}"
        refused(parsed(text), f"'{read}' is defined twice", "(Abs) computes it")


def test_a_carried_value_of_another_type_after_a_trip():
    body = "body = b (int64 i, bool c, float[5] s) => (bool k, int64[5] t) { k = Identity(c) t = Cast<to = 7>(s) }"
    text = f"(float[5] x, int64 n) => (int64[5] y) {{ y = Loop (n, , x) <{body}> }}"
    refused(parsed(text), "carried value 0 is float before the body and int64 after it")


@pytest.mark.parametrize("shape", [[2, 4], [3, 3], [5, 4]])
def test_an_expand_that_does_not_fit_fails_when_it_runs(shape: list[int], runs: Any):
    graph = load(parsed("(float[3,4] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }").SerializeToString())
    for run in (runs.nodes, runs.steps):
        with pytest.raises(EvaluationError, match=r"node 'y' \(Expand\)"):
            run(rewrite(graph), {"v0": np.ones((3, 4), np.float32), "v1": np.array(shape)})

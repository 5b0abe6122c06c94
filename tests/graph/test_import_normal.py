"""The normal form: one way to write each op, whatever opset a model has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load

from .conftest import Runs


def parsed(body: str, opset: int = 18) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}')


def imported(body: str, opset: int = 18, **dims: int) -> Graph:
    return load(parsed(body, opset).SerializeToString(), dims)


CASES: list[tuple[int, str, str, dict[str, Any]]] = [
    (11, 'y = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)', "Conv",
     {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 1, 1), "group": 1}),
    (11, "y = ConvTranspose<output_shape = [17, 17], strides = [2, 2]>(x, u)", "ConvTranspose",
     {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "output_padding": (0, 0),
      "group": 1}),
    (12, "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", "MaxPool",
     {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 1, 1)}),
    (7, "y = AveragePool<kernel_shape = [2, 2]>(x)", "AveragePool",
     {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "count_include_pad": 0}),
    (9, "y = Slice<axes = [3], starts = [-3], ends = [100]>(x)", "Slice",
     {"starts": (5,), "ends": (8,), "axes": (3,), "steps": (1,)}),
    (13, "y = Slice(x, minus1, minus100, three, minus2)", "Slice",
     {"starts": (7,), "ends": (-9,), "axes": (3,), "steps": (-2,)}),
    (10, "y = Pad<pads = [0, 0, 1, 1, 0, 0, 2, 2], value = 3.0>(x)", "Pad",
     {"pads": (0, 0, 1, 1, 0, 0, 2, 2), "mode": "constant", "value": 3.0}),
    (18, "y = Pad(x, pair, half, minus1)", "Pad",
     {"pads": (0, 0, 0, 2, 0, 0, 0, 6), "mode": "constant", "value": 0.5}),
    (13, "y = ReduceMean<axes = [-1, 2]>(x)", "ReduceMean", {"axes": (2, 3), "keepdims": 1}),
    (13, "y = ReduceSum<keepdims = 0>(x, three)", "ReduceSum", {"axes": (3,), "keepdims": 0}),
    (18, "y = ReduceMax(x)", "ReduceMax", {"axes": (0, 1, 2, 3), "keepdims": 1}),
    (7, "y = Clip<min = 0.0>(x)", "Clip", {"min": 0.0, "max": float(np.finfo(np.float32).max)}),
    (13, "y = Clip(x, , half)", "Clip", {"max": 0.5}),
    (9, "s = ReduceMax<axes = [0]>(x) y = Squeeze<axes = [0]>(s)", "Reshape", {"shape": (3, 8, 8)}),
    (13, "y = Unsqueeze(x, minus1)", "Reshape", {"shape": (2, 3, 8, 8, 1)}),
    (13, "y = Flatten<axis = 2>(x)", "Reshape", {"shape": (6, 64)}),
    (13, "y = Reshape(x, free)", "Reshape", {"shape": (2, 96, 2)}),
    (13, "y = Transpose(x)", "Transpose", {"perm": (3, 2, 1, 0)}),
    (11, "y = Softmax<axis = -1>(x)", "Softmax", {"axis": 3}),
    (7, "y = Dropout(x)", "Identity", {}),
    (9, "y = Upsample(x, twice)", "Resize",
     {"scales": (1.0, 1.0, 2.0, 2.0), "mode": "nearest", "coordinate_transformation_mode": "asymmetric",
      "nearest_mode": "floor"}),
    (13, "y = Resize(x, , , small)", "Resize",
     {"sizes": (2, 3, 4, 4), "mode": "nearest", "coordinate_transformation_mode": "half_pixel"}),
    (13, "y, z = Split<axis = -1>(x, pair)", "Split", {"axis": 3, "split": (2, 6)}),
    (18, "y, z = Split<axis = 2, num_outputs = 2>(x)", "Split", {"axis": 2, "split": (4, 4)}),
    (11, "y, z = TopK(x, three)", "TopK", {"k": (3,), "axis": 3, "largest": 1, "sorted": 1}),
    (8, "y = Expand(x, whole)", "Expand", {"shape": (2, 3, 8, 8)}),
    (17, "y = LayerNormalization<epsilon = 0.5>(x, row)", "LayerNormalization", {"axis": 3, "epsilon": 0.5}),
    (24, "y = Swish(x)", "Silu", {}),
    (15, "y = CastLike(x, three)", "Cast", {"to": TensorProto.INT64}),
]  # fmt: skip

MODEL = """
    g (float[2,3,8,8] x, float[4,3,3,3] w, float[3,4,3,3] u, float[8] row) => ({kind} y{outputs})
    <int64[1] minus1 = {{-1}}, int64[1] minus2 = {{-2}}, int64[1] minus100 = {{-100}}, int64[1] three = {{3}},
     int64[2] pair = {{2, 6}}, float half = {{0.5}}, int64[3] free = {{0, -1, 2}}, float[4] twice = {{1, 1, 2, 2}},
     int64[4] small = {{2, 3, 4, 4}}, int64[4] whole = {{2, 3, 8, 8}}>
    {{ {nodes} }}
"""


@pytest.mark.parametrize("op", ["GreaterOrEqual", "LessOrEqual"])
def test_comparisons_of_old_opsets_have_types(op: str) -> None:
    graph = imported(f"g (float[2,3] x, float[3] z) => (bool[2,3] y) {{ a = {op} (x, z) y = Not (a) }}", opset=12)
    assert {str(graph.types[name]) for node in graph.nodes for name in node.outputs} == {"bool[2, 3]"}


@pytest.mark.parametrize(("opset", "nodes", "op", "attrs"), CASES, ids=[f"{case[2]}-{case[0]}" for case in CASES])
def test_normal_form(opset: int, nodes: str, op: str, attrs: dict[str, Any], runs: Any):
    outputs = f", {'int64' if op == 'TopK' else 'float'} z" if "y, z" in nodes else ""
    kind = "int64" if op == "Cast" else "float"
    graph = imported(MODEL.format(nodes=nodes, kind=kind, outputs=outputs), opset)
    node = graph.nodes[-1]
    assert node.op == op
    assert {name: value for name, value in node.attrs.items() if name in attrs or op != "Resize"} == attrs
    rng = np.random.default_rng(0)
    feeds = {v.tensor: rng.standard_normal(graph.types[v.tensor].shape).astype(np.float32) for v in graph.inputs}
    for result, output in zip(runs.nodes(graph, feeds), graph.outputs, strict=True):
        assert result.shape == graph.types[output.tensor].shape


def test_old_softmax_flattens(runs: Any):
    graph = imported("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", opset=11)
    assert [n.op for n in graph.nodes] == ["Reshape", "Softmax", "Reshape"]
    (result,) = runs.nodes(graph, {"v0": np.zeros((2, 3, 4), np.float32)})
    np.testing.assert_allclose(result, 1 / 12)


def test_negative_pads_crop_first(runs: Any):
    graph = imported("g (float[4] x) => (float[A] y) <int64[2] p = {-1, 2}> { y = Pad(x, p) }")
    assert [n.op for n in graph.nodes] == ["Slice", "Pad"]
    (result,) = runs.nodes(graph, {"v0": np.arange(4, dtype=np.float32)})
    assert result.tolist() == [1, 2, 3, 0, 0]


def test_averages_that_count_pads_and_round_up(runs: Any):
    graph = imported("""
        g (float[1,1,4] x) => (float[1,1,A] y)
        { y = AveragePool<kernel_shape = [2], strides = [2], pads = [1, 0], ceil_mode = 1, count_include_pad = 1>(x) }
    """)
    assert [n.op for n in graph.nodes] == ["Pad", "AveragePool"]
    (result,) = runs.nodes(graph, {"v0": np.array([[[1, 2, 3, 4]]], np.float32)})
    np.testing.assert_allclose(result, [[[0.5, 2.5, 4.0]]])


def test_windows_that_start_behind_the_input_are_left_out():
    for opset in (12, 22):
        graph = imported(
            """
            g (float[1,1,2,2] x) => (float[1,1,1,1] y)
            { y = MaxPool<kernel_shape = [1, 1], strides = [2, 2], ceil_mode = 1>(x) }
            """,
            opset,
        )
        assert graph.types[graph.outputs[0].tensor].shape == (1, 1, 1, 1)


def test_opset_6_broadcasts_from_an_axis(runs: Any):
    graph = imported(
        "g (float[2,3,4] x, float[3] b) => (float[2,3,4] y) { y = Add<broadcast = 1, axis = 1>(x, b) }", opset=6
    )
    x, b = np.zeros((2, 3, 4), np.float32), np.arange(3, dtype=np.float32)
    (result,) = runs.nodes(graph, {"v0": x, "v1": b})
    np.testing.assert_array_equal(result, np.broadcast_to(b[:, None], (2, 3, 4)))


def test_dropout_with_a_seed_is_drawn_once() -> None:
    body = "g (float[3,40] x) => (float[3,40] y, bool[3,40] m) { y, m = Dropout<seed = 7>(x, share, yes) }"
    model = parsed(body)
    values = {"share": np.array(0.3, np.float32), "yes": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    graph = load(model.SerializeToString())
    assert [node.op for node in graph.nodes] == ["Mul"]
    x = np.ones((3, 40), np.float32)
    for result, wanted in zip(Runs.nodes(graph, {"v0": x}), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(result.astype(float), wanted, rtol=1e-6)
    model.graph.node[0].ClearField("attribute")
    assert [node.op for node in load(model.SerializeToString()).nodes] == ["Dropout"]


@pytest.mark.parametrize("body", ["y = EyeLike<k = -1, dtype = 11>(x)", "y = EyeLike(x)"])
def test_eyes_are_constants(body: str) -> None:
    model = parsed(f"g (float[3,5] x) => (float[3,5] y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.elem_type = 11 if "11" in body else 1
    graph = load(model.SerializeToString())
    [wanted] = ReferenceEvaluator(model).run(None, {"x": np.zeros((3, 5), np.float32)})
    assert not graph.nodes
    np.testing.assert_array_equal(graph.constants[graph.outputs[0].tensor], wanted)


def test_reductions_of_no_axes() -> None:
    body = "g (float[3,5] x) => (float[3,5] y) { y = ReduceMean<noop_with_empty_axes = 1>(x) }"
    assert [node.op for node in imported(body).nodes] == ["Identity"]


@pytest.mark.parametrize("op", ["L1", "L2", "LogSum", "LogSumExp", "Max", "Prod", "SumSquare"])
def test_what_folds_compute_of_each_element(op: str, runs: Any) -> None:
    body = f"g (float[3,5] x) => (float[3,5] y) {{ y = Reduce{op}<noop_with_empty_axes = 1>(x) }}"
    x = np.linspace(0.5, 9, 15, dtype=np.float32).reshape(3, 5)
    [wanted] = ReferenceEvaluator(parsed(body)).run(None, {"x": x})
    graph = imported(body)
    assert not any("Reduce" in node.op for node in graph.nodes)
    [result] = runs.nodes(graph, {"v0": x})
    np.testing.assert_allclose(result, np.asarray(wanted), rtol=1e-6)


def test_a_number_of_elements_is_an_array() -> None:
    """ONNX Runtime takes no numbers of numpy's."""
    graph = imported("g (float[3,5] x) => (int64 n) { n = Size(x) }")
    count = graph.constants[graph.outputs[0].tensor]
    assert isinstance(count, np.ndarray) and count.shape == () and count == 15

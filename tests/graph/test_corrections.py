"""What the evaluator gets wrong by itself, against ONNX Runtime, numpy and the shapes that ONNX says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper, parser

from tunewright.graph.fallback import EvaluationError, evaluate
from tunewright.graph.ir import Graph, Node
from tunewright.graph.onnx_import import load

RNG = np.random.default_rng(11)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: Any = np.float32) -> Any:
    assert 0 in shape
    return np.zeros(shape, dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def computed(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> list[Any]:
    names = tuple(f"v{k}" if array is not None else "" for k, array in enumerate(operands))
    results = tuple(f"y{k}" for k in range(outputs))
    return evaluate(Node(op, names, results, attrs, version=version), operands)


def by_peer(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> list[Any]:
    """The outputs by ONNX Runtime, which leaves the graph as it is."""
    given = {f"x{k}": array for k, array in enumerate(operands) if array is not None}
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(operands)]
    results = [f"y{k}" for k in range(outputs)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph([node], "g", inputs, [ValueInfoProto(name=name) for name in results])
    return run_by_peer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10), given)


def run_by_peer(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds)))


def agree(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> None:
    found = computed(op, operands, version, outputs, **attrs)
    for ours, theirs in zip(found, by_peer(op, operands, version, outputs, **attrs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# Bodies that run no time


def parsed(body: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}')


def imported(body: str, opset: int = 17) -> Graph:
    return load(parsed(body, opset).SerializeToString())


LOOP = """
    g (int64 n, bool go, float[2,3] x) => (float[] last, float[] all) <int64[2] turned = {{3, 2}}> {{
        last, all = Loop (n, go, x) <body = b (int64 i, bool c, float{state} s)
            => (bool k, float{state} d, float{out} e) {{ k = Identity(c) d = Add(s, x) e = {value} }}>
    }}
"""


@pytest.mark.parametrize(("trips", "going"), [(0, True), (3, False), (-1, True)])
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
    state: str, out: str, value: str, shape: tuple[int, ...], trips: int, going: bool, runs: Any
):
    model = parsed(LOOP.format(state=state, out=out, value=value))
    feeds = {"n": np.array(trips), "go": np.array(going), "x": normal(2, 3)}
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
    found = runs.nodes(graph, {value.tensor: feeds[value.label] for value in graph.inputs})
    for ours, theirs in zip(found, run_by_peer(model, feeds), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


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


# Folds


REDUCTIONS: dict[str, Any] = {
    "ReduceL1": lambda x, **over: np.sum(abs(x), **over),
    "ReduceL2": lambda x, **over: np.sqrt(np.sum(x * x, **over)),
    "ReduceLogSum": lambda x, **over: np.log(np.sum(x, **over)),
    "ReduceLogSumExp": np.logaddexp.reduce,
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **over: np.sum(x * x, **over),
}


def reduced(op: str, x: Any, version: int, axes: tuple[int, ...] | None, **attrs: Any) -> Any:
    """By the opset's own way to give the axes."""
    if version < 18 and not (op == "ReduceSum" and version >= 13):
        (found,) = computed(op, [x], version, **({} if axes is None else {"axes": axes}), **attrs)
    else:
        (found,) = computed(op, [x] if axes is None else [x, ints(*axes)], version, **attrs)
    return found


@pytest.mark.parametrize("version", [11, 13, 18, 20])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, version: int):
    positive = np.abs(normal(2, 3, 5)) + 0.5
    for axes in (None, (1,), (-1, 0)):
        for keepdims in (0, 1):
            found = reduced(op, positive, version, axes, keepdims=keepdims)
            over = {"axis": axes if axes is not None else (0, 1, 2), "keepdims": bool(keepdims)}
            wanted = REDUCTIONS[op](positive.astype(np.float64), **over)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    scalar = reduced(op, np.float32(3), version, None, keepdims=0)
    np.testing.assert_allclose(scalar, REDUCTIONS[op](np.array([3.0]), axis=0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_keep_their_type(op: str, dtype: Any):
    x = RNG.integers(1, 5, (3, 7)).astype(dtype)
    found = reduced(op, x, 18, (1,))
    assert found.dtype == dtype
    wanted = REDUCTIONS[op](x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(found, np.trunc(wanted) if dtype != np.float16 else wanted.astype(np.float16), rtol=1e-3)
    assert reduced(op, x, 18, None, noop_with_empty_axes=1).dtype == dtype


def test_without_axes_nothing_is_folded_if_asked_for():
    x = normal(2, 3)
    np.testing.assert_allclose(reduced("ReduceSumSquare", x, 18, None, noop_with_empty_axes=1), x * x, rtol=1e-6)
    np.testing.assert_allclose(reduced("ReduceLogSumExp", x, 18, (), noop_with_empty_axes=1), x, rtol=1e-5)
    np.testing.assert_allclose(reduced("ReduceSum", x, 18, ()), x.sum(keepdims=True), rtol=1e-5)


NOTHING = {
    "ReduceL1": 0, "ReduceL2": 0, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf, "ReduceMax": -np.inf,
    "ReduceMean": np.nan, "ReduceMin": np.inf, "ReduceProd": 1, "ReduceSum": 0, "ReduceSumSquare": 0,
}  # fmt: skip
"""What ONNX says a fold over no values gives."""


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_of_nothing(op: str):
    for version in (11, 20):
        found = reduced(op, empty(2, 0, 3), version, (-2,), keepdims=0)
        np.testing.assert_array_equal(found, np.full((2, 3), NOTHING[op], np.float32))
        assert reduced(op, empty(2, 0, 3), version, (0, -1)).shape == (1, 0, 1)
    if op in ("ReduceMax", "ReduceMin"):
        bounds = np.iinfo(np.int32)
        whole = reduced(op, empty(0, dtype=np.int32), 20, None, keepdims=0)
        assert whole == (bounds.min if op == "ReduceMax" else bounds.max)
        assert reduced(op, empty(0, dtype=np.bool_), 20, None, keepdims=0) == (op == "ReduceMin")


@pytest.mark.parametrize("version", [11, 13, 18])
def test_log_sum_exp_of_extremes(version: int):
    inf, huge, tiny = np.inf, 3e38, 1e-45
    rows = np.array(
        [[-inf] * 3, [-inf, 0, -inf], [inf, 0, -inf], [inf] * 3, [np.nan, inf, 0], [huge, huge, 0],
         [-huge, -huge, -inf], [1e3] * 3, [-1e3] * 3, [tiny, -tiny, 0]], np.float32,
    )  # fmt: skip
    found = reduced("ReduceLogSumExp", rows, version, (1,), keepdims=0)
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp.reduce(rows.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(axis: int, p: int):
    agree("LpNormalization", [normal(2, 3, 5)], axis=axis, p=p)
    assert not computed("LpNormalization", [np.zeros((2, 3), np.float32)], axis=axis, p=p)[0].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_layer_normalization_gives_moments_in_single_precision(dtype: Any):
    x, gain, bias = 30 * normal(2, 3, 5, dtype=dtype), normal(3, 5, dtype=dtype), normal(3, 5, dtype=dtype)
    y, mean, scale = computed("LayerNormalization", [x, gain, bias], 17, 3, axis=1, epsilon=0.1)
    assert (y.dtype, mean.dtype, scale.dtype) == (dtype, np.float32, np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=(1, 2), keepdims=True) + 0.1)
    np.testing.assert_allclose(mean, wide.mean(axis=(1, 2), keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(scale, 1 / deviation, rtol=1e-4)
    np.testing.assert_allclose(y, centred / deviation * gain + bias, rtol=3e-3, atol=3e-3)


# Windows


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": (2, 3)},
        {"kernel_shape": (3, 2), "pads": (1, 0, 2, 1), "strides": (2, 3)},
        {"kernel_shape": (3, 2), "dilations": (2, 3)},
        {"kernel_shape": (2, 2), "strides": (3, 2), "ceil_mode": 1},
        {"kernel_shape": (3, 2), "auto_pad": "SAME_LOWER", "strides": (2, 2)},
    ],
)
def test_max_pool_tells_where(attrs: dict[str, Any], storage_order: int):
    agree("MaxPool", [normal(2, 3, 7, 5)], 12, 2, storage_order=storage_order, **attrs)
    agree("MaxPool", [RNG.integers(0, 9, (2, 3, 7, 5)).astype(np.uint8)], 12, 2, **attrs)


def test_max_pool_rounded_up_tells_where(runs: Any):
    body = """g (float[1,3,7,5] x) => (float[] y, int64[] at)
        { y, at = MaxPool<kernel_shape = [3, 2], pads = [1, 0, 2, 1], strides = [4, 4], ceil_mode = 1>(x) }"""
    x, graph = normal(1, 3, 7, 5), imported(body, 12)
    for name, found, wanted in zip(
        graph.outputs, runs.nodes(graph, {"v0": x}), run_by_peer(parsed(body, 12), {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
        assert graph.types[name.tensor].shape == wanted.shape


def test_max_pool_of_other_ranks():
    agree("MaxPool", [normal(2, 3, 9)], 12, 2, kernel_shape=(4,), strides=(3,), pads=(1, 2))
    agree("MaxPool", [normal(1, 2, 5, 4, 3)], 12, 2, kernel_shape=(2, 1, 3), pads=(0, 0, 1, 1, 0, 0))
    indices = computed("MaxPool", [np.full((1, 1, 3), -np.inf, np.float32)], 12, 2, kernel_shape=(2,), pads=(1, 0))[1]
    assert indices.tolist() == [[[0, 0, 1]]]


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": (2, 3), "output_padding": (1, 2)},
        {"strides": (2, 3), "dilations": (2, 1), "pads": (1, 0, 2, 1)},
        {"strides": (2, 2), "auto_pad": "SAME_UPPER"},
        {"strides": (2, 3), "auto_pad": "SAME_LOWER"},  # a stride of more than the kernel
        {"strides": (2, 3), "output_shape": (9, 13), "auto_pad": "SAME_UPPER"},
    ],
)
def test_conv_transpose(attrs: dict[str, Any], runs: Any):
    x, w, b = normal(2, 4, 5, 5), normal(4, 3, 3, 2), normal(6)
    agree("ConvTranspose", [x, w, b], 11, group=2, **attrs)
    given = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {list(v)}" for k, v in attrs.items())
    body = f"g (float[2,4,5,5] x, float[4,3,3,2] w) => (float[] y) {{ y = ConvTranspose<group = 2, {given}>(x, w) }}"
    (found,) = runs.nodes(imported(body), {"v0": x, "v1": w})
    np.testing.assert_allclose(found, by_peer("ConvTranspose", [x, w], 11, group=2, **attrs)[0], rtol=1e-4, atol=1e-5)


def test_col2im():
    agree("Col2Im", [normal(2, 12, 12), ints(4, 5), ints(2, 2)])
    agree("Col2Im", [normal(2, 12, 9), ints(5, 5), ints(2, 2)], strides=(2, 2), pads=(1, 0, 0, 1))
    agree("Col2Im", [normal(1, 10, 12), ints(4, 5), ints(1, 5)], dilations=(1, 1), pads=(0, 1, 0, 1))


# Pictures


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding_mode: str, align_corners: int):
    attrs = {"padding_mode": padding_mode, "align_corners": align_corners}
    x, grid = normal(2, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 7, 2))).astype(np.float32)
    grid[0, 0, :5] = [[-1, 1], [1, -1], [-1, -1], [0, 0], [5, -9]]
    agree("GridSample", [x, grid], 20, mode=mode, **attrs)
    agree("GridSample", [x, grid], 16, mode={"nearest": mode}.get(mode, f"bi{mode}"), **attrs)
    if mode != "cubic":
        volume, places = normal(2, 1, 3, 5, 4), (1.7 * RNG.standard_normal((2, 3, 2, 3, 3))).astype(np.float32)
        agree("GridSample", [volume, places], 20, mode=mode, **attrs)


def test_grid_sample_of_one_element():
    x, grid = np.full((1, 1, 1, 1), 3, np.float32), np.array([[[[0, 0], [9, -9], [np.inf, np.nan]]]], np.float32)
    for mode in ("linear", "nearest", "cubic"):
        for border in ("border", "reflection"):
            (found,) = computed("GridSample", [x, grid], 20, mode=mode, padding_mode=border, align_corners=1)
            np.testing.assert_allclose(found, np.full((1, 1, 1, 3), 3))
    assert computed("GridSample", [x, grid], 20, mode="linear")[0].tolist() == [[[[3, 0, 0]]]]


COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize")


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest(rounding: str, coordinates: str):
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "extrapolation_value": 9.0}
    roi = np.array([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.3], np.float32) if coordinates == "tf_crop_and_resize" else None
    for x, sizes in ((normal(1, 2, 5, 7), (3, 11)), (normal(1, 2, 5, 7), (1, 4)), (normal(1, 1, 1, 13), (3, 5))):
        agree("Resize", [x, roi, None, ints(*x.shape[:2], *sizes)], 13, **attrs)
    if coordinates in COORDINATES[:3]:
        agree("Resize", [normal(1, 2, 5, 7), None, np.array([1, 1, 1.7, 0.6], np.float32)], 13, **attrs)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode: str, runs: Any):
    x = normal(1, 2, 7, 6)
    for scales in ([1, 1, 2, 3], [1, 1, 0.6, 0.3], [1, 1, 2.5, 0.6]):
        wanted = by_peer("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        found = computed("Resize", [x, np.array(scales, np.float32)], 10, mode=mode)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        body = f'''g (float[1,2,7,6] x) => (float[] y) <float[4] s = {{{", ".join(map(str, scales))}}}>
            {{ y = Resize<mode = "{mode}">(x, s) }}'''
        np.testing.assert_allclose(runs.nodes(imported(body, 10), {"v0": x})[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "opset"), [("Resize", 13), ("Resize", 10), ("Upsample", 9)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_extents_are_scaled_in_single_precision(mode: str, op: str, opset: int, runs: Any):
    x = normal(1, 1, 5, 10)  # 5 * 1.4 is 7 there, and less in double precision
    operands = "x, , s" if opset > 10 else "x, s"
    body = f"""g (float[1,1,5,10] x) => (float[] y) <float[4] s = {{1, 1, 1.4, 2.3}}>
        {{ y = {op}<mode = "{mode}">({operands}) }}"""
    graph = imported(body, opset)
    assert graph.types[graph.outputs[0].tensor].shape == (1, 1, 7, 23)
    wanted = run_by_peer(parsed(body, opset), {"x": x})[0]
    np.testing.assert_allclose(runs.nodes(graph, {"v0": x})[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_keeps_the_aspect(mode: str, policy: str):
    for sizes in ((9, 6), (3, 3)):
        operands = [normal(1, 1, 5, 7), None, None, ints(*sizes)]
        found = computed("Resize", operands, 18, mode=mode, axes=(2, -1), keep_aspect_ratio_policy=policy)[0]
        scale = {"not_larger": min, "not_smaller": max}[policy](sizes[0] / 5, sizes[1] / 7)
        assert found.shape == (1, 1, round(5 * scale), round(7 * scale))
        if sizes == (9, 6):
            agree("Resize", operands, 18, mode=mode, axes=(2, 3), keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("align_corners", [0, 1])
def test_affine_grid(align_corners: int):
    agree("AffineGrid", [normal(2, 2, 3), ints(2, 3, 4, 5)], align_corners=align_corners)
    agree("AffineGrid", [normal(2, 3, 4, dtype=np.float64), ints(2, 3, 4, 5, 6)], align_corners=align_corners)
    assert np.isfinite(
        computed("AffineGrid", [normal(1, 2, 3), ints(1, 1, 1, 2)], align_corners=align_corners)[0]
    ).all()


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("given", range(4))
def test_non_max_suppression(given: int, center: int):
    boxes, scores = RNG.random((2, 23, 4)).astype(np.float32), RNG.random((2, 3, 23)).astype(np.float32).round(1)
    limits = [np.array(5), np.array([0.3], np.float32), np.float32(0.4)][:given]
    agree("NonMaxSuppression", [boxes, scores, *map(np.asarray, limits)], 11, center_point_box=center)


# Padding


MODES = ("constant", "edge", "reflect", "wrap")


def padded(x: Any, widths: Sequence[tuple[int, int]], mode: str) -> Any:
    """What is negative is cut off first."""
    kept = tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    return np.pad(x[kept], [(max(a, 0), max(b, 0)) for a, b in widths], mode)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", MODES)
def test_pads_of_any_sign_and_width(mode: str, runs: Any):
    for _ in range(12):
        x = normal(*RNG.integers(1, 6, 2))
        widths = [(int(RNG.integers(-(n // 2), 3 * n)), int(RNG.integers(-((n - 1) // 2), 3 * n))) for n in x.shape]
        pads = tuple(int(end) for end in np.transpose(widths).reshape(-1))
        wanted = padded(x, widths, mode)
        np.testing.assert_array_equal(computed("Pad", [x], 20, pads=pads, mode=mode)[0], wanted)
        extents, listed = ",".join(map(str, x.shape)), ", ".join(map(str, pads))
        body = f'g (float[{extents}] x) => (float[] y) <int64[4] p = {{{listed}}}> {{ y = Pad<mode = "{mode}">(x, p) }}'
        graph = imported(body, 19)
        for found in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
            np.testing.assert_array_equal(found[0], wanted)


@pytest.mark.parametrize("mode", MODES)
def test_pads_of_some_axes(mode: str):
    x = normal(3, 4, 5)
    (found,) = computed("Pad", [x, ints(2, -1, -1, 3), None, ints(-1, 0)], 19, mode=mode)
    np.testing.assert_array_equal(found, padded(x, [(-1, 3), (0, 0), (2, -1)], mode))


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.bool_, np.str_])
def test_pads_hold_a_value_of_the_type(dtype: Any):
    x, value = np.array([1, 0, 1]).astype(dtype), np.array([1]).astype(dtype)
    (found,) = computed("Pad", [x, ints(-1, 2), value], 18)
    assert found.tolist() == [x[1], x[2], value[0], value[0]]
    (found,) = computed("Pad", [x, ints(1, 0)], 18)
    assert found.tolist() == [{np.bool_: False, np.str_: ""}.get(dtype, 0), *x]


def test_pads_that_cut_off_more_than_there_is(runs: Any):
    x = np.array([1, 2], np.float32)
    assert computed("Pad", [x], 18, pads=(-3, 4), mode="constant", value=7.0)[0].tolist() == [7, 7, 7]
    graph = imported("g (float[2] x) => (float[3] y) <int64[2] p = {4, -3}> { y = Pad(x, p) }", 18)
    assert runs.nodes(graph, {"v0": x})[0].tolist() == [0, 0, 0]
    for mode in MODES[1:]:
        with pytest.raises(EvaluationError, match="can't be padded"):
            computed("Pad", [x], 19, pads=(-2, 1), mode=mode)


# Nothing at all: shapes as ONNX says


ROW = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
CELL = {"hidden_size": 4}

EMPTY: list[tuple[str, list[Any], dict[str, Any], list[tuple[int, ...]]]] = [
    ("ArgMax", [empty(0, 3)], {"axis": 1, "keepdims": 0}, [(0,)]),
    ("AveragePool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3)]),
    ("BatchNormalization", [empty(0, 3, 5), *[normal(3)] * 4], {}, [(0, 3, 5)]),
    ("Cast", [empty(0, 3)], {"to": 7}, [(0, 3)]),
    ("Clip", [empty(0, 3)], {"min": 0.0}, [(0, 3)]),
    ("Col2Im", [empty(0, 4, 9), ints(4, 4), ints(2, 2)], {}, [(0, 1, 4, 4)]),
    ("Compress", [normal(4, 3), np.zeros(4, np.bool_)], {"axis": 0}, [(0, 3)]),
    ("Concat", [empty(0, 3), normal(2, 3)], {"axis": 0}, [(2, 3)]),
    ("Conv", [empty(0, 3, 5, 5), normal(4, 3, 2, 2), normal(4)], {**ROW, "group": 1}, [(0, 4, 4, 4)]),
    ("Conv", [normal(2, 3, 2, 5), normal(4, 3, 3, 3)], {}, [(2, 4, 0, 3)]),
    ("ConvInteger", [empty(0, 3, 5, 5, dtype=np.uint8), np.ones((4, 3, 2, 2), np.uint8)], {}, [(0, 4, 4, 4)]),
    ("ConvTranspose", [empty(0, 4, 5, 5), normal(4, 2, 3, 3), normal(4)], {"group": 2}, [(0, 4, 7, 7)]),
    ("ConvTranspose", [empty(2, 0, 5, 5), empty(0, 4, 3, 3)], {}, [(2, 4, 7, 7)]),
    ("ConvTranspose", [empty(2, 3, 0, 5), normal(3, 4, 3, 3)], {}, [(2, 4, 2, 7)]),
    ("CumSum", [empty(0, 3), np.array(0)], {}, [(0, 3)]),
    ("DepthToSpace", [empty(0, 4, 2, 2)], {"blocksize": 2}, [(0, 1, 4, 4)]),
    ("DequantizeLinear", [empty(0, 3, dtype=np.uint8), np.float32(0.1), np.uint8(3)], {}, [(0, 3)]),
    ("Einsum", [empty(0, 3), normal(3, 4)], {"equation": "ij,jk->ik"}, [(0, 4)]),
    ("Expand", [normal(1, 3), ints(0, 1)], {}, [(0, 3)]),
    ("EyeLike", [empty(0, 3)], {}, [(0, 3)]),
    ("Flatten", [empty(2, 0, 3)], {"axis": 2}, [(0, 3)]),
    ("GRU", [empty(5, 0, 3), normal(1, 12, 3), normal(1, 12, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4)]),
    ("Gather", [normal(4, 3), empty(0, 2, dtype=np.int64)], {"axis": 1}, [(4, 0, 2)]),
    ("Gather", [empty(4, 0), ints(1, 2)], {"axis": 0}, [(2, 0)]),
    ("GatherElements", [normal(4, 3), empty(0, 3, dtype=np.int64)], {"axis": 0}, [(0, 3)]),
    ("GatherND", [empty(0, 4, 3), empty(0, 2, 1, dtype=np.int64)], {"batch_dims": 1}, [(0, 2, 3)]),
    ("Gemm", [empty(2, 0), empty(0, 4), normal(4)], {}, [(2, 4)]),
    ("Gemm", [empty(0, 3), normal(3, 4)], {}, [(0, 4)]),
    ("GlobalAveragePool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GlobalLpPool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GlobalMaxPool", [empty(0, 3, 5, 4)], {}, [(0, 3, 1, 1)]),
    ("GridSample", [empty(0, 2, 4, 4), empty(0, 3, 5, 2)], {}, [(0, 2, 3, 5)]),
    ("GridSample", [normal(2, 2, 4, 4), empty(2, 0, 5, 2)], {}, [(2, 2, 0, 5)]),
    ("GridSample", [empty(2, 0, 4, 4), normal(2, 3, 5, 2)], {}, [(2, 0, 3, 5)]),
    ("Hardmax", [empty(2, 0)], {"axis": -1}, [(2, 0)]),
    ("InstanceNormalization", [empty(0, 3, 5), normal(3), normal(3)], {}, [(0, 3, 5)]),
    ("LRN", [empty(0, 3, 5, 4)], {"size": 3}, [(0, 3, 5, 4)]),
    ("LSTM", [empty(5, 0, 3), normal(1, 16, 3), normal(1, 16, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4), (1, 0, 4)]),
    ("LSTM", [empty(0, 2, 3), normal(1, 16, 3), normal(1, 16, 4)], CELL, [(0, 1, 2, 4), (1, 2, 4), (1, 2, 4)]),
    ("LayerNormalization", [empty(0, 3, 5), normal(5)], {}, [(0, 3, 5), (0, 3, 1), (0, 3, 1)]),
    ("LogSoftmax", [empty(0, 3)], {"axis": 1}, [(0, 3)]),
    ("LpNormalization", [empty(0, 3)], {}, [(0, 3)]),
    ("LpPool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3)]),
    ("MatMul", [empty(2, 0), empty(0, 4)], {}, [(2, 4)]),
    ("MatMul", [empty(0, 2, 3), normal(3, 4)], {}, [(0, 2, 4)]),
    ("MatMulInteger", [empty(2, 0, dtype=np.uint8), empty(0, 3, dtype=np.int8)], {}, [(2, 3)]),
    ("MaxPool", [empty(0, 3, 5, 4)], ROW, [(0, 3, 4, 3), (0, 3, 4, 3)]),
    ("MaxPool", [normal(2, 3, 1, 4)], ROW, [(2, 3, 0, 3), (2, 3, 0, 3)]),
    ("NonMaxSuppression", [empty(1, 0, 4), empty(1, 2, 0), np.array(3)], {}, [(0, 3)]),
    ("NonZero", [np.zeros((2, 3), np.float32)], {}, [(2, 0)]),
    ("OneHot", [empty(0, dtype=np.int64), np.array(3), normal(2)], {}, [(0, 3)]),
    ("Pad", [empty(0, 3), ints(0, -1, 0, 2)], {"mode": "reflect"}, [(0, 4)]),
    ("Pad", [empty(3, 0), ints(0, -1, 0, 2)], {"mode": "constant"}, [(3, 1)]),
    ("QuantizeLinear", [empty(0, 3), np.float32(0.1), np.uint8(3)], {}, [(0, 3)]),
    ("RNN", [empty(5, 0, 3), normal(1, 4, 3), normal(1, 4, 4)], CELL, [(5, 1, 0, 4), (1, 0, 4)]),
    ("Range", [np.array(3), np.array(1), np.array(1)], {}, [(0,)]),
    ("Reshape", [empty(0, 3), ints(3, 0, 2)], {"allowzero": 1}, [(3, 0, 2)]),
    ("Resize", [empty(0, 3, 4, 4), None, None, ints(0, 3, 7, 5)], {"mode": "linear"}, [(0, 3, 7, 5)]),
    ("ScatterElements", [normal(4, 3), empty(0, 3, dtype=np.int64), empty(0, 3)], {}, [(4, 3)]),
    ("ScatterND", [normal(4, 3), empty(0, 1, dtype=np.int64), empty(0, 3)], {}, [(4, 3)]),
    ("Slice", [normal(4, 3), ints(2), ints(2), ints(1)], {}, [(4, 0)]),
    ("Softmax", [empty(2, 0, 3)], {"axis": 1}, [(2, 0, 3)]),
    ("Softmax", [empty(0, 3)], {"axis": 1}, [(0, 3)]),
    ("Split", [empty(0, 4), ints(0, 0)], {"axis": 0}, [(0, 4), (0, 4)]),
    ("Tile", [normal(2, 3), ints(0, 2)], {}, [(0, 6)]),
    ("TopK", [empty(0, 5), ints(2)], {}, [(0, 2), (0, 2)]),
    ("TopK", [normal(5, 3), ints(0)], {}, [(5, 0), (5, 0)]),
    ("Transpose", [empty(2, 0, 3)], {"perm": (1, 2, 0)}, [(0, 3, 2)]),
    ("Trilu", [empty(0, 3, 3)], {}, [(0, 3, 3)]),
    ("Unique", [empty(0)], {}, [(0,), (0,), (0,), (0,)]),
    ("Where", [empty(0, 3, dtype=np.bool_), normal(3), normal(1)], {}, [(0, 3)]),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "shapes"), EMPTY)
def test_nothing_in_the_batch(op: str, operands: list[Any], attrs: dict[str, Any], shapes: list[tuple[int, ...]]):
    found = computed(op, [None if x is None else np.asarray(x) for x in operands], 20, len(shapes), **attrs)
    assert [array.shape for array in found] == shapes


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("version", [11, 13])
def test_softmax_over_no_rows(op: str, version: int, runs: Any):
    for shape in ((0,), (0, 3), (2, 0), (0, 0), (2, 0, 3), (2, 3, 0)):
        for axis in range(-len(shape), len(shape)):
            assert computed(op, [empty(*shape)], version, axis=axis)[0].shape == shape
            extents = ",".join(map(str, shape))
            graph = imported(f"g (float[{extents}] x) => (float[] y) {{ y = {op}<axis = {axis}>(x) }}", version)
            assert runs.nodes(graph, {"v0": empty(*shape)})[0].shape == shape


def test_texts_are_objects():
    for found in (
        computed("Cast", [ints(1, -20)], 13, to=8),
        computed("OneHot", [ints(0), np.array(1), np.array(["off", "on"], object)], 13),
    ):
        assert found[0].dtype == object


# Found by `./dev bench differential`

POOLS: list[dict[str, Any]] = [
    {"kernel_shape": (3, 2)},
    {"kernel_shape": (3, 4), "strides": (2, 3), "pads": (1, 2, 0, 1)},
    {"kernel_shape": (2, 3), "strides": (3, 2), "pads": (0, 1, 1, 1), "ceil_mode": 1},
    {"kernel_shape": (2, 2), "auto_pad": "SAME_UPPER", "strides": (2, 2)},
]


@pytest.mark.parametrize("attrs", POOLS)
def test_pools(attrs: dict[str, Any]):
    x = normal(2, 3, 7, 5)
    for include in (0, 1):
        agree("AveragePool", [x], 19, 1, count_include_pad=include, **attrs)
    agree("LpPool", [x], 18, 1, p=3, **attrs)
    x[0, 0, 3, 2] = np.nan
    for op in ("AveragePool", "LpPool"):
        [found] = computed(op, [x], 19, 1, kernel_shape=(3, 3))
        assert np.isnan(found).sum() == 9


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global_max_pool(rank: int):
    agree("GlobalMaxPool", [normal(2, 3, *(5, 4, 3)[:rank])])


@pytest.mark.parametrize("version", [7, 9, 13, 14, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalization_learns_nothing(version: int, dtype: Any):
    parameters = [np.abs(normal(3, dtype=dtype)) + np.asarray(0.1, dtype) for _ in range(4)]
    agree("BatchNormalization", [normal(2, 3, 4, dtype=dtype), *parameters], version, 1, epsilon=0.01, momentum=0.8)


def test_a_product_of_integers_is_exact():
    most = 2**61 - 1
    [found] = computed("Gemm", [np.array([[most, 3]]), np.array([[2], [5]]), np.array([[7]])], 13)
    assert found.tolist() == [[2 * most + 22]]
    two, three, four = (np.full((1, 1), value, np.float32) for value in (2, 3, 4))
    [halved] = computed("Gemm", [two, three, four], 13, 1, alpha=0.5, beta=0.25)
    assert halved.tolist() == [[4]]


@pytest.mark.parametrize("version", [10, 16])
def test_roi_align(version: int):
    boxes = np.array([[0.5, 1, 3, 4.5], [0, 0, 2, 2]], np.float32)
    sizes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    agree("RoiAlign", [normal(2, 3, 6, 5), boxes, ints(0, 1)], version, 1, **sizes)


def test_max_roi_pool():
    boxes = np.array([[0, 0, 1, 4, 5], [1, 2, 2, 2, 2], [1, 1, 0, 3, 4]], np.float32)
    for scale in (1.0, 0.5):
        agree("MaxRoiPool", [normal(2, 3, 7, 6), boxes], 13, 1, pooled_shape=(2, 3), spatial_scale=scale)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("scales", [1, 4])
def test_quantised_convolution(rank: int, scales: int):
    x, w = (
        RNG.integers(0, 40, shape).astype(np.uint8) for shape in ((2, 3, *(6, 5, 4)[:rank]), (4, 3, *(3, 2, 2)[:rank]))
    )
    zeros = np.full(scales, 20, np.uint8)
    x_scale, scale = (np.full((), value, np.float32) for value in (0.1, 0.9))
    x_zero, zero = (np.full((), value, np.uint8) for value in (17, 100))
    weights = [w, np.linspace(0.1, 0.3, scales, dtype=np.float32), zeros]
    operands = [x, x_scale, x_zero, *weights, scale, zero, RNG.integers(-50, 50, 4).astype(np.int32)]
    [found] = computed("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    [right] = by_peer("QLinearConv", operands, 13, 1, pads=(1,) * 2 * rank)
    assert found.shape == right.shape and found.dtype == right.dtype
    assert np.abs(found.astype(int) - right.astype(int)).max() <= 1


def test_softsign_of_a_scalar():
    [found] = computed("Softsign", [np.full((), -3, np.float32)])
    assert found == np.float32(-0.75) and found.shape == ()


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_mean_variance_normalization(dtype: str, runs: Any):
    graph = imported(f"g ({dtype}[2,3,4,5] x) => ({dtype}[] y) {{ y = MeanVarianceNormalization(x) }}", 13)
    x = normal(2, 3, 4, 5, dtype=graph.types["v0"].dtype)
    [found] = runs.nodes(graph, {"v0": x})
    wide = x.astype(np.float64)
    right = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, right, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-3)


@pytest.mark.parametrize("axes", [(0,), (-1, 0), (1, -2), (-1, -3, 0)])
def test_unsqueeze(axes: tuple[int, ...]):
    agree("Unsqueeze", [normal(2, 3)], 11, 1, axes=axes)
    agree("Unsqueeze", [normal(2, 3), ints(*axes)], 13)


def test_mean_of_what_broadcasts():
    agree("Mean", [normal(2, 1), normal(1, 3), normal(2, 3)], 13)


def test_prelu_leaves_zero_alone():
    [found] = computed("PRelu", [np.array([0, -1, 2], np.float32), np.full(1, np.inf, np.float32)])
    assert found.tolist() == [0, -np.inf, 2]


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None):
    attrs = {} if axis is None else {"axis": axis}
    for condition in ([True], [False, True, True], []):
        agree("Compress", [normal(2, 4), np.array(condition, np.bool_)], 11, 1, **attrs)
    [found] = computed("Compress", [empty(0), np.array([True])], 11)
    assert found.shape == (0,)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, weighted: bool):
    weights = [np.abs(normal(5))] if weighted else []
    operands = [100 * normal(3, 5, 2), RNG.integers(0, 5, (3, 2)), *weights]
    agree("SoftmaxCrossEntropyLoss", operands, 13, 2, reduction=reduction, ignore_index=2)


@pytest.mark.parametrize("op", ["Floor", "Identity"])
def test_clip_of_old_opsets_has_limits(op: str, runs: Any):
    """Those are the ends of float32: what is beyond, infinities too, comes to them."""
    body = f"g (float[4] x) => (float[] y) {{ a = Clip(x) y = {op}(a) }}"
    x = np.array([np.inf, -np.inf, 2, 3e38], np.float32)
    [found], [right] = runs.nodes(imported(body, 9), {"v0": x}), run_by_peer(parsed(body, 9), {"x": x})
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("scale", [2.0, 2.3, 2.4])
def test_the_nearest_is_told_by_the_scale(scale: float, runs: Any):
    """Not by the quotient of extents: 2.3 times 2 is 4 as well."""
    how = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    model = parsed(f"g (float[1,1,2,3] x, float[4] s) => (float[] y) {{ y = Resize<{how}>(x, , s) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, scale, 1], np.float32), "s"))
    del model.graph.input[1:]
    x = normal(1, 1, 2, 3)
    graph = load(model.SerializeToString())
    [right] = run_by_peer(model, {"x": x})
    for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("axes", [(0,), (1, 3), (3, -3), None])
def test_squeeze(axes: tuple[int, ...] | None):
    x = normal(1, 1, 2, 1) if axes != (0,) else normal(1, 3)
    agree("Squeeze", [x], 11, 1, **({} if axes is None else {"axes": axes}))
    agree("Squeeze", [x, *([] if axes is None else [ints(*axes)])], 13)


def test_quantising_nothing():
    [found] = computed("QuantizeLinear", [empty(1, 0), empty(0)], 19, 1, axis=1)
    assert found.shape == (1, 0) and found.dtype == np.uint8


def test_mean_variance_normalization_does_not_cancel(runs: Any):
    graph = imported("g (float[1,1,2,1] x) => (float[] y) { y = MeanVarianceNormalization(x) }", 13)
    x = np.array([-1001.5, -1001.25], np.float32).reshape(1, 1, 2, 1)
    for [found] in (runs.nodes(graph, {"v0": x}), runs.steps(graph, {"v0": x})):
        np.testing.assert_allclose(found.reshape(-1), [-1, 1], rtol=1e-6)


def test_a_tensor_of_unknown_rank_may_have_windows(runs: Any):
    graph = imported("""g (float[5,1,2,7] x) => (float[] y) {
        s = SplitToSequence<axis = 0>(x) i = Constant<value_int = 1>() t = SequenceAt(s, i)
        y = MaxPool<kernel_shape = [1, 2], strides = [1, 3], pads = [0, 1, 0, 1]>(t) }""")
    [found] = runs.nodes(graph, {"v0": normal(5, 1, 2, 7)})
    assert found.shape == (1, 1, 2, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_the_depth_may_be_beyond_the_type_of_the_indices(dtype: Any):
    [found] = computed("OneHot", [np.array([0, 127], dtype), np.array(300), np.array([0, 1], np.float32)], 13)
    np.testing.assert_array_equal(found.argmax(axis=-1), [0, 127])


@pytest.mark.parametrize(("op", "wanted"), [("GlobalLpPool", 600.0), ("LpPool", 600.0), ("LRN", 300 / 90001**0.75)])
def test_halves_do_not_overflow_within(op: str, wanted: float):
    known: dict[str, dict[str, Any]] = {"LpPool": {"kernel_shape": (2, 2)}, "LRN": {"size": 1, "alpha": 1.0}}
    attrs = known.get(op, {})
    [found] = computed(op, [np.full((1, 1, 2, 2), 300, np.float16)], 18, 1, **attrs)
    assert found.dtype == np.float16
    assert found.max() == pytest.approx(wanted, rel=1e-2)


def test_whole_powers_may_be_negative():
    [found] = computed("Pow", [np.array([32, 1, -1, -1, 0, 3]), np.array([-2, -5, -3, -2, 2, 0], np.int32)], 18)
    np.testing.assert_array_equal(found, [0, 1, -1, 1, 0, 1])
    [found] = computed("Pow", [np.array([3], np.int32), np.array([4], np.uint64)], 18)
    np.testing.assert_array_equal(found, [81])

"""The fallback runs any node, and right where the reference evaluator isn't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import defs, parser

from tunewright.graph import contrib
from tunewright.graph.evaluation import fallback
from tunewright.graph.evaluation.fallback import EvaluationError, evaluate, is_computed
from tunewright.graph.evaluation.onnx_form import first_from_last, inverse, last_from_first, weight_last_from_first
from tunewright.graph.ir import Graph, Node
from tunewright.graph.onnx_import import load
from tunewright.graph.onnx_import.decompositions import modern_version
from tunewright.graph.onnx_import.protobuf import DOMAINS, MIN_OPSET

Floats = NDArray[np.float32]


def imported(body: str, opset: int = 18) -> Graph:
    return load(parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}').SerializeToString())


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one(op: str, arrays: list[Any], /, version: Any = 20, **attrs: Any) -> Any:
    names = tuple(f"v{k}" if array is not None else "" for k, array in enumerate(arrays))
    (result,) = evaluate(Node(op, names, ("y",), attrs, version=version), arrays)
    return result


def test_the_version_of_the_node_counts():
    x = normal(2, 3, 4)
    flat = one("Softmax", [x], version=11, axis=1)
    single = one("Softmax", [x], version=13, axis=1)
    np.testing.assert_allclose(flat.sum(axis=(1, 2)), 1, rtol=1e-5)
    np.testing.assert_allclose(single.sum(axis=1), 1, rtol=1e-5)


def test_parameters_that_are_attributes():
    x = normal(4, 6)
    np.testing.assert_array_equal(one("Slice", [x], starts=(3,), ends=(-5,), axes=(0,), steps=(-2,)), x[3::-2])
    np.testing.assert_array_equal(one("Clip", [x], max=0.5), np.minimum(x, 0.5))
    np.testing.assert_array_equal(one("Pad", [x], pads=(0, 1, 0, 0), mode="constant", value=2.0)[:, 0], 2)
    np.testing.assert_allclose(one("ReduceSum", [x], axes=(1,), keepdims=0), x.sum(1), rtol=1e-5)


def test_evaluators_are_kept_and_told_apart():
    fallback._evaluators.clear()
    x = normal(3)
    for _ in range(3):
        one("LeakyRelu", [x], alpha=0.5)
    assert len(fallback._evaluators) == 1
    assert one("LeakyRelu", [-abs(x)], alpha=0.25)[0] == -abs(x[0]) / 4
    assert len(fallback._evaluators) == 2
    one("LeakyRelu", [x.astype(np.float64)], alpha=0.5)
    assert len(fallback._evaluators) == 3


def test_what_does_not_fit_is_one_kind_of_error():
    with pytest.raises(EvaluationError, match="MatMul"):
        one("MatMul", [normal(2, 3), normal(2, 3)])


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channels_last_is_the_same_computation(rank: int):
    x, w, b = normal(2, 4, *(5, 6, 7)[: rank - 2]), normal(6, 2, *(3, 2, 1)[: rank - 2]), normal(6)
    kernel = w.shape[2:]
    attrs = {
        "kernel_shape": kernel, "strides": (2,) * (rank - 2), "dilations": (1,) * (rank - 2),
        "pads": (1,) * (2 * (rank - 2)), "group": 2,
    }  # fmt: skip
    expected = one("Conv", [x, w, b], **attrs)
    last = [x.transpose(last_from_first(rank)), w.transpose(weight_last_from_first("Conv", rank)), b]
    result = one("Conv", last, channels_last=True, **attrs)
    np.testing.assert_array_equal(result.transpose(first_from_last(rank)), expected)
    assert inverse(first_from_last(rank)) == last_from_first(rank)


def test_keys_after_a_query_count_nothing():
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    expected = [[[0, 1, -np.inf, -np.inf], [4, 5, 6, -np.inf], [8, 9, 10, 11]]]
    np.testing.assert_array_equal(one("CausalMask", [x], past=1), expected)


def test_silu_does_not_overflow():
    x = np.array([-1e4, -1, 0, 1, 1e4], np.float32)
    np.testing.assert_allclose(one("Silu", [x]), [0, -0.26894143, 0, 0.7310586, 1e4], rtol=1e-6)


def test_max_pool_with_uneven_pads():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    result = one("MaxPool", [x], kernel_shape=(2, 2), strides=(1, 1), dilations=(1, 1), pads=(0, 1, 1, 0))
    padded = np.pad(x, [(0, 0), (0, 0), (0, 1), (1, 0)], constant_values=-np.inf)
    views = [padded[:, :, i : i + 4, j : j + 4] for i in (0, 1) for j in (0, 1)]
    np.testing.assert_array_equal(result, np.max(views, axis=0))


def test_conv_transpose_in_groups():
    x, w, b = normal(1, 4, 3, 3), normal(4, 3, 2, 2), normal(6)
    attrs = {
        "kernel_shape": (2, 2),
        "strides": (2, 2),
        "pads": (0, 0, 0, 0),
        "dilations": (1, 1),
        "output_padding": (0, 0),
    }
    result = one("ConvTranspose", [x, w, b], group=2, **attrs)
    halves = [one("ConvTranspose", [x[:, k : k + 2], w[k : k + 2]], group=1, **attrs) for k in (0, 2)]
    np.testing.assert_allclose(result, np.concatenate(halves, axis=1) + b[:, None, None], rtol=1e-5, atol=1e-6)


def test_lrn_of_more_channels_than_samples():
    x = normal(1, 6, 2, 2)
    result = one("LRN", [x], alpha=0.3, beta=0.75, bias=2.0, size=4)
    for c in range(6):
        total = np.square(x[:, max(0, c - 1) : c + 3]).sum(axis=1)
        np.testing.assert_allclose(result[:, c], x[:, c] / (2 + 0.3 / 4 * total) ** 0.75, rtol=1e-5)


def test_gather_elements_along_a_long_axis():
    x, indices = normal(100, 3), np.random.default_rng(0).integers(-100, 100, (5, 2))
    np.testing.assert_array_equal(one("GatherElements", [x, indices], axis=0), x[indices, np.arange(2)])


@pytest.mark.parametrize("depth", [np.asarray(3), np.asarray([3])])
def test_one_hot(depth: NDArray[np.int64]):
    result = one("OneHot", [np.array([0, 2, -1, 7]), depth, np.array([0, 5], np.float32)], version=13, axis=1)
    assert result.tolist() == [[5, 0, 0], [0, 0, 5], [0, 0, 5], [0, 0, 0]]


def test_cubic_resize_at_whole_coordinates():
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10)
    attrs = {
        "mode": "cubic", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor", "antialias": 0,
        "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0,
    }  # fmt: skip
    result = one("Resize", [x], sizes=(1, 1, 14), **attrs)
    assert result[0, 0, 10] == pytest.approx(7, abs=1e-5)  # (10 + 0.5) / 1.4 - 0.5
    assert one("Resize", [x], scales=(1.0, 1.0, float(np.float32(1.4))), **attrs).shape == (1, 1, 14)


LOOP = """
    g (int64 n, float[2,3] x) => (float last, float all) {
        t = Constant<value_int = 1>() going = Cast<to = 9>(t)
        last, all = Loop (n, going, x) <body = b (int64 i, bool c, float[2,3] s) => (bool k, float[2,3] d, float[2,3] e)
            { k = Identity(c) d = Add(s, x) e = Mul(d, d) }>
    }
"""


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loops_stack_what_they_scan(trips: int, runs: Any):
    graph = imported(LOOP)
    x = normal(2, 3)
    last, every = runs.nodes(graph, {"v0": np.asarray(trips), "v1": x})
    np.testing.assert_allclose(last, (trips + 1) * x, rtol=1e-6)
    assert len(every) == trips
    if trips:
        assert every.shape == (trips, 2, 3)
        np.testing.assert_allclose(every[-1], last**2, rtol=1e-5)


SCAN = """
    g (float[3] start, float[2,5,3] rows) => (float[3] last, float[3,5,2] sums) {
        last, sums = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                          scan_output_axes = [1], scan_output_directions = [1],
                          body = b (float[3] s, float[2,3] row) => (float[3] t, float[3,2] u) {
            m = ReduceSum<keepdims = 0>(row, zero) t = Add(s, m) u = Transpose<perm = [1, 0]>(row)
        }>(start, rows)
        zero = Constant<value_ints = [0]>()
    }
"""


def test_scans_along_any_axis_and_backwards(runs: Any):
    start, rows = normal(3), normal(2, 5, 3, seed=1)
    last, sums = runs.nodes(imported(SCAN), {"v0": start, "v1": rows})
    np.testing.assert_allclose(last, start + rows.sum(axis=(0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(sums, rows.transpose(2, 1, 0))


# Recurrent networks: against a plain loop over the equations


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm_step(x: Any, h: Any, c: Any, w: Any, r: Any, b: Any) -> tuple[Any, Any]:
    i, o, f, g = np.split(x @ w.T + h @ r.T + b[: len(w)] + b[len(w) :], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(x: Any, h: Any, w: Any, r: Any, b: Any, after: bool) -> Any:
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    bz, br, bh, cz, cr, ch = np.split(b, 6)
    z, keep = sigmoid(x @ wz.T + h @ rz.T + bz + cz), sigmoid(x @ wr.T + h @ rr.T + br + cr)
    new = np.tanh(x @ wh.T + bh + (keep * (h @ rh.T + ch) if after else (keep * h) @ rh.T + ch))
    return (1 - z) * new + z * h


@pytest.mark.parametrize("lengths", [None, [6, 2, 0]])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm(direction: str, lengths: list[int] | None):
    directions = 2 if direction == "bidirectional" else 1
    x, w, r, b = normal(6, 3, 4), normal(directions, 20, 4), normal(directions, 20, 5), normal(directions, 40)
    arrays = [x, w, r, b, None if lengths is None else np.array(lengths, np.int32)]
    names = tuple(f"v{k}" if array is not None else "" for k, array in enumerate(arrays))
    node = Node("LSTM", names, ("y", "h", "c"), {"direction": direction, "hidden_size": 5}, version=14)
    y, last, _ = evaluate(node, arrays)
    for d in range(directions):
        for batch, length in enumerate(lengths or [6] * 3):
            h = c = np.zeros(5, np.float32)
            steps = range(length) if (direction, d) in (("forward", 0), ("bidirectional", 0)) else range(length)[::-1]
            for t in steps:
                h, c = lstm_step(x[t, batch], h, c, w[d], r[d], b[d])
                np.testing.assert_allclose(y[t, d, batch], h, rtol=1e-4, atol=1e-5)
            assert not y[length:, d, batch].any()
            np.testing.assert_allclose(last[d, batch], h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("after", [0, 1])
def test_gru(after: int):
    x, w, r, b, h0 = normal(5, 2, 4), normal(1, 9, 4), normal(1, 9, 3), normal(1, 18), normal(1, 2, 3)
    node = Node("GRU", ("x", "w", "r", "b", "", "h0"), ("y", "h"), {"linear_before_reset": after}, version=14)
    y, last = evaluate(node, [x, w, r, b, None, h0])
    for batch in range(2):
        h = h0[0, batch]
        for t in range(5):
            h = gru_step(x[t, batch], h, w[0], r[0], b[0], bool(after))
            np.testing.assert_allclose(y[t, 0, batch], h, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last[0, batch], h, rtol=1e-4, atol=1e-5)


def test_rnn_with_other_activations_batch_first():
    x, w, r = normal(2, 5, 4), normal(1, 3, 4), normal(1, 3, 3)
    attrs = {
        "layout": 1,
        "activations": ("Affine",),
        "activation_alpha": (0.5,),
        "activation_beta": (0.1,),
        "clip": 0.3,
    }
    node = Node("RNN", ("x", "w", "r"), ("y", "h"), attrs, version=14)
    y, last = evaluate(node, [x, w, r])
    assert y.shape == (2, 5, 1, 3) and last.shape == (2, 1, 3)
    h = np.zeros(3, np.float32)
    for t in range(5):
        h = 0.5 * np.clip(x[1, t] @ w[0].T + h @ r[0].T, -0.3, 0.3) + 0.1
        np.testing.assert_allclose(y[1, t, 0], h, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [10, 13, 17, 19, 21, 25])
def test_dequantize_linear_of_every_opset(version: int):
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    whole = one("DequantizeLinear", [x, np.float32(0.5), np.uint8(7)], version=version)
    np.testing.assert_array_equal(whole, 0.5 * (x.astype(np.float32) - 7))
    if version >= 13:
        scale, zero = np.array([0.5, 1, 2], np.float32), np.array([1, 0, 9], np.uint8)
        rows = one("DequantizeLinear", [x, scale, zero], version=version, axis=1)
        np.testing.assert_array_equal(rows, scale[:, None] * (x.astype(np.float32) - zero[:, None]))


@pytest.mark.parametrize("version", [10, 13, 19, 21, 25])
@pytest.mark.parametrize("zero", [np.int8(-5), np.int8(5), np.uint8(128), None])
def test_quantize_linear_saturates(version: int, zero: Any):
    x = np.array([-np.inf, np.finfo(np.float32).min, -1e9, -1, 0, 1, 1e9, np.finfo(np.float32).max, np.inf], np.float32)
    offset = 0 if zero is None else int(zero)
    bounds = np.iinfo(np.uint8 if zero is None else zero.dtype)
    low, high = [bounds.min] * 3, [bounds.max] * 3
    middle = np.clip([offset - 10, offset, offset + 10], bounds.min, bounds.max).tolist()
    result = one("QuantizeLinear", [x, np.float32(0.1), *([] if zero is None else [zero])], version=version)
    assert result.dtype == bounds.dtype
    assert result.tolist() == [*low, *middle, *high]


def test_quantize_linear_by_rows():
    x = np.array([[1.0, -1.0], [1e30, -1e30]], np.float32)
    scale, zero = np.array([0.5, 2.0], np.float32), np.array([1, -3], np.int8)
    assert one("QuantizeLinear", [x, scale, zero], version=13, axis=0).tolist() == [[3, -1], [127, -128]]
    half = one("QuantizeLinear", [np.array([200, -200, 2], np.float16), np.float16(0.001), np.int8(-3)], version=19)
    assert half.tolist() == [127, -128, 127]


@pytest.mark.parametrize(("version", "element", "low", "high"), [(21, 22, -8, 7), (21, 21, 0, 15), (25, 26, -2, 1)])
def test_quantize_linear_of_few_bits_saturates(version: int, element: int, low: int, high: int):
    x = np.array([-1e30, -1e9, 0, 1, 1e9, np.inf], np.float32)
    result = one("QuantizeLinear", [x, np.float32(1)], version=version, output_dtype=element)
    assert result.astype(np.int32).tolist() == [low, low, 0, 1, high, high]


def test_quantize_linear_saturates_beside_a_nan():
    x = np.array([np.nan, 1e30, -1e30], np.float32)
    assert one("QuantizeLinear", [x, np.float32(0.1), np.int8(0)], version=13).tolist()[1:] == [127, -128]
    whole = np.array([-(2**31), 2**31 - 1], np.int32)
    assert one("QuantizeLinear", [whole, np.float32(1e-3), np.int8(0)], version=13).tolist() == [-128, 127]


def test_quantize_linear_by_blocks():
    x = np.array([[1, 2, 4, 8, 1e30]], np.float32)
    scale = np.array([[1, 2, 4]], np.float32)
    result = one("QuantizeLinear", [x, scale, np.zeros((1, 3), np.int8)], version=21, axis=1, block_size=2)
    assert result.tolist() == [[1, 2, 2, 4, 127]]


def test_an_average_pool_of_opset_6():
    graph = imported("g (double[1,1,2,2] x) => (double[1,1,1,1] y) { y = AveragePool <kernel_shape = [2, 2]> (x) }", 6)
    values: dict[str, Any] = {**graph.constants, graph.inputs[0].tensor: np.array([[[[1.0, 2], [3, 6]]]])}
    for node in graph.nodes:
        values.update(zip(node.outputs, evaluate(node, [values[name] for name in node.inputs]), strict=True))
    assert values[graph.outputs[0].tensor].tolist() == [[[[3.0]]]]


@pytest.mark.parametrize("opset", [10, 13, 17, 19, 21])
def test_a_quantised_model_runs(opset: int):
    body = """
        q (float[2,3] x) => (float[2,4] y)
        <float s = {0.05}, uint8 z = {128}, float sw = {0.1}, int8 zw = {0},
         int8[3,4] w = {1, -2, 3, 4, 5, -6, 7, 8, -9, 10, 11, 12}>
        {
            xq = QuantizeLinear (x, s, z)
            xd = DequantizeLinear (xq, s, z)
            wd = DequantizeLinear (w, sw, zw)
            m = MatMul (xd, wd)
            mq = QuantizeLinear (m, s, z)
            y = DequantizeLinear (mq, s, z)
        }
    """
    graph = imported(body, opset)
    x = normal(2, 3)
    values: dict[str, Any] = {**graph.constants, graph.inputs[0].tensor: x}
    for node in graph.nodes:
        results = evaluate(node, [values[name] if name else None for name in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    w = np.float32(0.1) * np.array([[1, -2, 3, 4], [5, -6, 7, 8], [-9, 10, 11, 12]], np.float32)
    quantised = np.clip(np.rint(x / np.float32(0.05)) + 128, 0, 255) - 128
    expected = np.clip(np.rint(quantised * np.float32(0.05) @ w / np.float32(0.05)), -128, 127) * np.float32(0.05)
    np.testing.assert_allclose(values[graph.outputs[0].tensor], expected, atol=0.051)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p: int):
    x = normal(2, 3, 4, 5)
    result = one("GlobalLpPool", [x], p=p)
    np.testing.assert_allclose(result, (abs(x) ** p).sum(axis=(2, 3), keepdims=True) ** (1 / p), rtol=1e-5)


def test_scatter_with_negative_indices():
    x, indices, updates = normal(4, 3), np.array([[2, -4], [0, 1]]), normal(2, 2)
    expected = x.copy()
    for row, column in np.ndindex(2, 2):
        expected[indices[row, column], column] = updates[row, column]
    np.testing.assert_array_equal(one("Scatter", [x, indices, updates], version=10, axis=0), expected)


OPSETS = [
    (schema.name, schema.domain, version)
    for schema in defs.get_all_schemas_with_history()
    for version in (max(schema.since_version, MIN_OPSET if not schema.domain else 1),)
    if not schema.deprecated and schema.domain in DOMAINS
    if defs.get_schema(schema.name, version, schema.domain).since_version == schema.since_version
]
"""Every version of every op that a model may have, at the first opset that it counts in."""

MISSING = {"CastMap", "CategoryMapper", "Gradient", "Multinomial", "ZipMap"}
"""What is refused when a model is opened."""


@pytest.mark.parametrize("domain", sorted({*DOMAINS} - {contrib.DOMAIN}))
def test_every_op_of_every_opset_is_computed_or_known_not_to_be(domain: str):
    ours = [(op, version) for op, one_domain, version in OPSETS if one_domain == domain]
    assert ours
    assert {op for op, version in ours if not is_computed(op, domain, modern_version(domain, version))} == {
        op for op, _ in ours if op in MISSING
    }

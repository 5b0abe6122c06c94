"""Quantised models: whichever way they are written down, they compute the same after rewriting, to the last bit.

Scales are powers of two, so that nothing is rounded but where the models say so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tunewright.graph.fusion.fusion import Fallback, TaskCall, partition
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference, rounding_bounds
from tunewright.graph.rewrites import rewrite

RNG = np.random.default_rng(5)

SCALES = {"s": np.float32(0.25), "t": np.float32(0.5), "u": np.float32(4)}
ZEROS = {"z": np.uint8(131), "n": np.int8(-3), "o": np.int8(0), "v": np.uint8(130)}
"""Those of results are even: where a result is half way, the reference rounds it with the zero point, others without.
"""


EACH = {"e": np.exp2(np.arange(-2, 3)).astype(np.float32), "f": np.zeros(5, np.int8)}
"""A scale for each of five channels, and their zero points."""


@pytest.fixture(autouse=True)
def no_rule_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A rule whose result doesn't fit is logged as a warning: none of these may."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def signed(*shape: int) -> Any:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def unsigned(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def imported(inputs: str, nodes: str, outputs: str, known: dict[str, Any]) -> Graph:
    """A model with initializers."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> q ({inputs}) => ({outputs}) {{ {nodes} }}')
    for name, value in known.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return load(model.SerializeToString())


POINTS = "p = QuantizeLinear (x, s, z) a = DequantizeLinear (p, s, z)"
"""What is done to the input of a model before it is multiplied."""

MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "floats between bytes": (
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "float[7,5] y",
        {"w": signed(12, 5)},
    ),
    "a scale for each column": (
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear <axis=1> (w, e, f) y = MatMul (a, b)",
        "float[7,5] y",
        {"w": unsigned(12, 5), "e": EACH["e"], "f": unsigned(5)},
    ),
    "weights turned, with a bias": (
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear <axis=0> (w, e, f) y = Gemm <transB=1> (a, b, c)",
        "float[7,5] y",
        {
            "w": signed(5, 12),
            **EACH,
            "c": floats(5),
        },
    ),
    "a convolution": (
        "float[2,3,6,7] x",
        POINTS + " b = DequantizeLinear <axis=0> (w, e, f) d = DequantizeLinear (c, r)"
        " g = Conv <pads=[1,1,1,1]> (a, b, d) h = Relu (g) y = QuantizeLinear (h, u, v)",
        "uint8[2,5,6,7] y",
        {
            "w": signed(5, 3, 3, 3),
            **EACH,
            "c": RNG.integers(-999, 999, 5).astype(np.int32),
            "r": np.float32(0.125),
        },
    ),
    "groups and strides": (
        "float[1,4,9,8] x",
        POINTS + " b = DequantizeLinear (w, t, n)"
        " y = Conv <pads=[0,1,2,1], strides=[2,1], dilations=[1,2], group=2> (a, b)",
        "float[1,6,5,6] y",
        {"w": signed(6, 2, 3, 3) // 2},
    ),
    "a product of two inputs": (
        "float[2,7,4] x, float[2,4,5] k",
        f"{POINTS} m = QuantizeLinear (k, t, n) b = DequantizeLinear (m, t, n) y = MatMul (a, b)",
        "float[2,7,5] y",
        {},
    ),
    "an op of bytes": (
        "uint8[7,12] x",
        "y = QLinearMatMul (x, s, z, w, t, n, u, v)",
        "uint8[7,5] y",
        {"w": signed(12, 5)},
    ),
    "a convolution of bytes": (
        "uint8[2,3,6,7] x",
        "y = QLinearConv <pads=[1,1,1,1]> (x, s, z, w, e, f, u, v, c)",
        "uint8[2,5,6,7] y",
        {
            "w": signed(5, 3, 3, 3),
            **EACH,
            "c": RNG.integers(-999, 999, 5).astype(np.int32),
        },
    ),
    "sums of bytes, cast": (
        "uint8[7,12] x",
        "g = MatMulInteger (x, w, z, f) h = Cast <to=1> (g) y = Mul (h, s)",
        "float[7,5] y",
        {"w": unsigned(12, 5), "f": unsigned(5)},
    ),
    "sums of bytes": (
        "uint8[2,7,12] x",
        "y = MatMulInteger (x, w, z, f)",
        "int32[2,7,5] y",
        {"w": unsigned(12, 5), "f": unsigned(5)},
    ),
    "a zero point for each row": (
        "uint8[3,12] x",
        "y = MatMulInteger (x, w, f)",
        "int32[3,5] y",
        {"w": signed(12, 5), "f": unsigned(3)},
    ),
    "sums of windows of bytes": (
        "uint8[1,4,6,7] x",
        "y = ConvInteger <pads=[1,0,1,2], group=2> (x, w, z, f)",
        "int32[1,6,6,7] y",
        {"w": unsigned(6, 2, 3, 3), "f": np.uint8(128)},
    ),
    "sums of windows, cast": (
        "uint8[1,4,6,7] x",
        "g = ConvInteger <pads=[1,0,1,2]> (x, w, z, f) y = Cast <to=1> (g)",
        "float[1,6,6,7] y",
        {"w": unsigned(6, 4, 3, 3), "f": unsigned(6)},
    ),
}


KEPT = {"groups and strides"}
"""Convolutions in groups whose weights have zero points that stay."""


def graph_from(inputs: str, nodes: str, outputs: str, known: dict[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """A model, and what is fed to it."""
    used = {key: value for key, value in {**SCALES, **ZEROS}.items() if key not in known}
    graph = imported(inputs, nodes, outputs, {**used, **known})
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        kind = graph.types[value.tensor]
        is_float = kind.dtype == "float32"
        array = 20 * rng.standard_normal(kind.shape) if is_float else rng.integers(0, 256, kind.shape)
        feeds[value.tensor] = array.astype(kind.dtype)
    return graph, feeds


@pytest.mark.parametrize("widen", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_rewritten_models_compute_the_same(name: str, widen: bool, runs: Any) -> None:
    before, feeds = graph_from(*MODELS[name])
    [expected] = runs.nodes(before, feeds)
    after = rewrite(before, numerics=Numerics(widen=widen))
    assert not [step for step in partition(after) if isinstance(step, Fallback)]
    for result in (runs.nodes(after, feeds), runs.steps(after, feeds)):
        np.testing.assert_array_equal(result[0], expected)
    ops = [node.op for node in after.nodes]
    are_multiplied = after.types[after.outputs[0].tensor].dtype == "int32" or not (widen or name in KEPT)
    assert any(op.endswith("Integer") for op in ops) is are_multiplied
    dtypes = {array.dtype for array in after.constants.values() if array.size > 32}
    assert dtypes <= ({np.dtype(np.int8), np.dtype(np.uint8)} if are_multiplied else {np.dtype(np.float32)})


MOVED = (
    "p = QuantizeLinear (x, s, n) k = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]> (p)"
    " q = QuantizeLinear (x, s, n) r = Slice (q, begin, end) l = Concat <axis=1> (k, r)"
    " j = Transpose <perm=[0,2,3,1]> (l) a = DequantizeLinear (j, s, n)"
)
"""Bytes that are moved before they are multiplied."""

DOTS: dict[str, tuple[bool, str, str, str, dict[str, Any]]] = {
    "a product": (
        True,
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "float[7,16] y",
        {"w": signed(12, 16)},
    ),
    "turned weights": (
        True,
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear (w, t, o) y = Gemm <transB=1> (a, b, c)",
        "float[7,16] y",
        {"w": signed(16, 12), "c": floats(16)},
    ),
    "unsigned weights around 128": (
        True,
        "uint8[7,12] x",
        "g = MatMulInteger (x, w, z, f) y = Cast <to=1> (g)",
        "float[7,17] y",
        {"w": unsigned(12, 17), "f": np.uint8(128)},
    ),
    "other unsigned weights": (
        True,
        "uint8[7,12] x",
        "g = MatMulInteger (x, w, z, f) y = Cast <to=1> (g)",
        "float[7,17] y",
        {"w": unsigned(12, 17), "f": np.uint8(120)},
    ),
    "signed points": (
        False,
        "int8[7,12] x",
        "g = MatMulInteger (x, w, n, o) y = Cast <to=1> (g)",
        "float[7,16] y",
        {"w": signed(12, 16)},
    ),
    "sums that are no groups of four": (
        False,
        "uint8[7,10] x",
        "g = MatMulInteger (x, w, z) y = Cast <to=1> (g)",
        "float[7,16] y",
        {"w": signed(10, 16)},
    ),
    "few columns": (
        False,
        "uint8[7,12] x",
        "g = MatMulInteger (x, w, z) y = Cast <to=1> (g)",
        "float[7,15] y",
        {"w": signed(12, 15)},
    ),
    "a zero point for each row": (
        False,
        "uint8[3,12] x",
        "g = MatMulInteger (x, w, f) y = Cast <to=1> (g)",
        "float[3,16] y",
        {"w": signed(12, 16), "f": unsigned(3)},
    ),
    "unknown weights": (
        False,
        "uint8[7,12] x, int8[12,16] w",
        "g = MatMulInteger (x, w, z) y = Cast <to=1> (g)",
        "float[7,16] y",
        {},
    ),
    "a convolution with a border": (
        True,
        "float[2,4,6,7] x",
        POINTS + " b = DequantizeLinear (w, t, o) g = Conv <pads=[1,1,1,1]> (a, b) h = Relu (g)"
        " y = QuantizeLinear (h, u, v)",
        "uint8[2,16,6,7] y",
        {"w": signed(16, 4, 3, 3)},
    ),
    "a border that depends on the input": (
        True,
        "float[1,4,6,7] x",
        "p, d, m = DynamicQuantizeLinear (x) g = ConvInteger <pads=[1,0,2,1]> (p, w, m, f) y = Cast <to=1> (g)",
        "float[1,16,7,6] y",
        {"w": unsigned(16, 4, 3, 3), "f": np.uint8(121)},
    ),
    "a zero point for each channel": (
        True,
        "uint8[2,4,6,7] x",
        "g = ConvInteger <dilations=[2,1]> (x, w, z, f) h = Cast <to=1> (g) y = Relu (h)",
        "float[2,16,2,6] y",
        {"w": unsigned(16, 4, 3, 2), "f": unsigned(16)},
    ),
    "a bias of whole numbers": (
        True,
        "uint8[7,12] x, int32[17] c",
        "g = MatMulInteger (x, w, z, f) h = Add (g, c) y = Cast <to=1> (h)",
        "float[7,17] y",
        {"w": unsigned(12, 17), "f": unsigned(17)},
    ),
    "three colours": (
        True,
        "float[2,3,6,7] x",
        POINTS + " b = DequantizeLinear (w, t, o) g = Conv <pads=[1,2,1,0]> (a, b) y = QuantizeLinear (g, u, v)",
        "uint8[2,16,6,7] y",
        {"w": signed(16, 3, 3, 3)},
    ),
    "two channels, of unsigned weights": (
        True,
        "float[2,2,6,7] x",
        POINTS + " b = DequantizeLinear (w, t, z) g = Conv (a, b) y = QuantizeLinear (g, u, v)",
        "uint8[2,16,4,5] y",
        {"w": unsigned(16, 2, 3, 3)},
    ),
    "five channels, of weights with a zero point": (
        True,
        "float[2,5,6,7] x",
        POINTS + " b = DequantizeLinear (w, t, n) g = Conv (a, b) y = QuantizeLinear (g, u, v)",
        "uint8[2,16,4,5] y",
        {"w": signed(16, 5, 3, 3) // 2},
    ),
    "one colour": (
        False,
        "float[2,1,6,7] x",
        POINTS + " b = DequantizeLinear (w, t, o) y = Conv (a, b)",
        "float[2,16,4,5] y",
        {"w": signed(16, 1, 3, 3)},
    ),
    "groups": (
        False,
        "float[1,8,9,8] x",
        POINTS + " b = DequantizeLinear (w, t, o) y = Conv <group=2> (a, b)",
        "float[1,16,7,6] y",
        {"w": signed(16, 4, 3, 3)},
    ),
    "channels by themselves": (
        False,
        "float[1,16,9,8] x",
        POINTS + " b = DequantizeLinear <axis=0> (w, e, f) g = Conv <group=16, pads=[1,1,1,1]> (a, b)"
        " y = QuantizeLinear (g, u, v)",
        "uint8[1,16,9,8] y",
        {
            "w": signed(16, 1, 3, 3),
            "e": np.exp2(RNG.integers(-3, 1, 16)).astype(np.float32),
            "f": np.zeros(16, np.int8),
        },
    ),
    "signed points that are quantised here": (
        True,
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "float[7,16] y",
        {"w": signed(12, 16), "z": np.int8(-7)},
    ),
    "signed points without a zero": (
        True,
        "float[7,12] x",
        "p = QuantizeLinear (x, s, o) a = DequantizeLinear (p, s) b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "float[7,16] y",
        {"w": signed(12, 16)},
    ),
    "signed points that are moved": (
        True,
        "float[1,4,8,8] x",
        f"{MOVED} b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "float[1,4,4,16] y",
        {"w": signed(8, 16), "begin": np.array([0, 0, 1, 2]), "end": np.array([1, 4, 5, 6])},
    ),
    "signed points by themselves": (
        False,
        "float[12,12] x",
        "p = QuantizeLinear (x, s, z) c = MatMulInteger (p, p) y = Cast <to=1> (c)",
        "float[12,12] y",
        {"z": np.int8(3)},
    ),
    "signed points that the model gives": (
        False,
        "float[7,12] x",
        f"{POINTS} b = DequantizeLinear (w, t, o) y = MatMul (a, b)",
        "int8[7,12] p, float[7,16] y",
        {"w": signed(12, 16), "z": np.int8(-7)},
    ),
    "a residual": (
        True,
        "float[7,12] x, uint8[7,16] k",
        POINTS + " b = DequantizeLinear (w, t, o) g = MatMul (a, b) h = QuantizeLinear (g, u, v)"
        " i = DequantizeLinear (h, u, v) j = DequantizeLinear (k, s, z) l = Add (i, j) y = QuantizeLinear (l, t, v)",
        "uint8[7,16] y",
        {"w": signed(12, 16)},
    ),
}
"""Whether a processor multiplies the bytes of a model, and the model."""


@pytest.mark.parametrize("name", DOTS)
def test_processors_multiply_bytes_where_that_is_fast(name: str, runs: Any) -> None:
    is_dot, inputs, nodes, outputs, known = DOTS[name]
    before, feeds = graph_from(inputs, nodes, outputs, known)
    *_, expected = runs.nodes(before, feeds)
    after = rewrite(before, numerics=Numerics(dots=True))
    assert not [step for step in partition(after) if isinstance(step, Fallback)]
    for result in (runs.nodes(after, feeds), runs.steps(after, feeds)):
        np.testing.assert_array_equal(result[-1], expected)
    assert any(node.op.endswith("Integer") for node in after.nodes) is is_dot


def test_a_scale_may_depend_on_the_input(runs: Any) -> None:
    graph = imported(
        "float[7,12] x",
        "p, s, z = DynamicQuantizeLinear (x) g = MatMulInteger (p, w, z, n) h = Cast <to=1> (g) r = Mul (s, t)"
        " y = Mul (h, r)",
        "float[7,5] y",
        {"w": signed(12, 5) // 2, "t": SCALES["t"], "n": ZEROS["n"]},
    )
    feeds = {graph.inputs[0].tensor: floats(7, 12)}
    [expected] = runs.nodes(graph, feeds)
    for widen in (True, False):
        after = rewrite(graph, numerics=Numerics(widen=widen))
        assert not [step for step in partition(after) if isinstance(step, Fallback)]
        for result in (runs.nodes(after, feeds), runs.steps(after, feeds)):
            runs.close(result[0], expected, 1e-5)


@pytest.mark.parametrize("x", [np.zeros(5), np.array([-1.5, 0.25, 3]), np.array([2.0, 3.0]), np.array([-4.0, -1.0])])
def test_the_range_that_is_quantised(x: Any, runs: Any) -> None:
    """Zeros alone have a scale of 1, as in ONNX Runtime."""
    nodes = "p, d, m = DynamicQuantizeLinear (x) y = DequantizeLinear (p, d, m)"
    graph = imported(f"float[{len(x)}] x", nodes, f"float[{len(x)}] y, float d", {})
    feeds = {graph.inputs[0].tensor: x.astype(np.float32)}
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255 or 1
    for result in (runs.nodes(graph, feeds), runs.nodes(rewrite(graph), feeds), runs.steps(rewrite(graph), feeds)):
        assert result[1] == pytest.approx(scale, rel=1e-6)
        np.testing.assert_allclose(result[0], x, atol=0.51 * scale)


def test_scales_along_an_axis_that_moves() -> None:
    """Channels become the last axis for the convolution before it, and this one's scales are theirs."""
    graph = imported(
        "float[1,3,6,7] x",
        "a = Conv (x, v) b = QuantizeLinear <axis=1> (a, e, f) y = DequantizeLinear <axis=1> (b, e, f)",
        "float[1,5,6,7] y",
        {"v": floats(5, 3, 1, 1), "e": EACH["e"], "f": unsigned(5)},
    )
    assert not [step for step in partition(rewrite(graph)) if isinstance(step, Fallback)]


def test_what_is_half_way_between_two_numbers_may_go_either_way() -> None:
    graph = imported(
        "float[64,5] x, float[5,5] v",
        "a = MatMul (x, v) y = QuantizeLinear (a, s, z)",
        "uint8[64,5] y",
        {"s": SCALES["s"], "z": ZEROS["z"]},
    )
    [call] = partition(rewrite(graph))
    assert isinstance(call, TaskCall)
    arrays = example_inputs(call.task, 0)
    [right] = reference(call.task, arrays)
    ends = rounding_bounds(call.task, arrays)
    assert ends is not None
    low, middle, high = (np.asarray(array, int) for array in (ends[0][0], right, ends[0][1]))
    apart = high - low
    assert np.all((low <= middle) & (middle <= high) & (apart <= 1))
    assert 0 < apart.mean() < 0.05


def test_what_is_rounded_as_it_comes_goes_one_way() -> None:
    graph = imported("float[64] x", "y = Round (x)", "float[64] y", {})
    [call] = partition(rewrite(graph))
    assert isinstance(call, TaskCall)
    assert rounding_bounds(call.task, example_inputs(call.task, 0)) is None


RANGE = "high = ReduceMax <keepdims=0> (g) low = ReduceMin <keepdims=0> (g) k = Sub (high, low)"
"""The range of what an activation gives."""

GELU = "d = Div (h, r) e = Erf (d) i = Add (e, one) m = Mul (h, i) g = Mul (m, half)"


@pytest.mark.parametrize(
    ("behind", "is_recognised"),
    [
        ("p, s, z = DynamicQuantizeLinear (g) c = MatMulInteger (p, w, z) y = Cast <to=1> (c)", True),
        ("p = QuantizeLinear (g, u, v) c = MatMulInteger (p, w, v) y = Cast <to=1> (c)", False),
        ("f = Floor (g) y = MatMul (f, x)", False),
        (f"{RANGE} e2 = Equal (k, u) y = Cast <to=1> (e2)", False),
        (f"{RANGE} e2 = Equal (k, u) o = Where (e2, u, k) y = Mul (x, o)", False),
        (f"{RANGE} p = QuantizeLinear (h, k, v) c = MatMulInteger (p, w, v) y = Cast <to=1> (c)", False),
        (f"{RANGE} p = QuantizeLinear (g, k, v) c = MatMulInteger (p, w, v) y = Cast <to=1> (c)", True),
        (f"{RANGE} p = QuantizeLinear (m, k, v) c = MatMulInteger (p, w, v) y = Cast <to=1> (c)", False),
    ],
)
def test_activations_are_recognised_before_they_are_quantised_by_their_range(
    behind: str, is_recognised: bool, runs: Any
) -> None:
    graph = imported(
        "float[7,7] x",
        f"h = Add (x, one) {GELU} {behind}",
        "float[7,n] y",
        {
            "r": np.float32(np.sqrt(2)),
            "one": np.float32(1),
            "half": np.float32(0.5),
            "w": signed(7, 16),
            "u": SCALES["s"],
            "v": ZEROS["v"],
        },
    )
    after = rewrite(graph)
    assert ("Gelu" in [node.op for node in after.nodes]) is is_recognised
    feeds = {graph.inputs[0].tensor: floats(7, 7)}
    [expected], [result] = runs.nodes(graph, feeds), runs.nodes(after, feeds)
    np.testing.assert_allclose(result, expected, atol=7 * 128)  # a step of each byte
    assert np.mean(result != expected) < 0.1

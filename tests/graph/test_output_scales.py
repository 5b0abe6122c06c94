"""Scales of results in the constants before them: no byte moves by more than a step, few by one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

RNG = np.random.default_rng(3)


def imported(inputs: str, nodes: str, outputs: str, opset: int = 20, **known: Any) -> Graph:
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"{head} q ({inputs}) => ({outputs}) {{ {nodes} }}")
    for name, value in known.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return load(model.SerializeToString())


def run(runs: Any, graph: Graph, **feeds: Any) -> Any:
    names = {port.label: port.tensor for port in graph.inputs}
    return runs.nodes(graph, {names[label]: array for label, array in feeds.items()})[0]


def scale_of(graph: Graph) -> list[float]:
    """The scales that a graph quantises by."""
    return [float(graph.constants[n.inputs[1]].flat[0]) for n in graph.nodes if n.op == "QuantizeLinear"]


LAYER = "a = DequantizeLinear (p, s, z) b = DequantizeLinear <axis=1> (w, t, o) g = MatMul (a, b) h = Add (g, c) "


def layer(
    scale: float, zero: int = 3, after: str = "y = QuantizeLinear (h, u, v)", opset: int = 20, **known: Any
) -> Graph:
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "s": np.float32(0.031),
        "z": np.uint8(7),
        "w": rng.integers(-127, 128, (64, 16)).astype(np.int8),
        "t": rng.uniform(0.001, 0.003, 16).astype(np.float32),
        "o": np.zeros(16, np.int8),
        "c": rng.standard_normal(16).astype(np.float32),
        "u": np.float32(scale),
        "v": np.uint8(zero),
    }
    return imported("uint8[9,64] p", LAYER + after, "uint8[9,16] y", opset, **{**weights, **known})


@settings(deadline=None)
@given(scale=st.floats(2**-7, 2**-3), zero=st.integers(0, 255), seed=st.integers(0, 99))
def test_results_are_a_step_apart_at_most(runs: Any, scale: float, zero: int, seed: int) -> None:
    graph = layer(scale, zero)
    p = np.random.default_rng(seed).integers(0, 256, (9, 64)).astype(np.uint8)
    after = rewrite(graph, numerics=Numerics(dots=True))
    assert scale_of(after) == [1]
    step = np.abs(run(runs, after, p=p).astype(int) - run(runs, graph, p=p))
    assert step.max() <= 1
    assert step.mean() < 0.02


def exact(graph: Graph, p: Any) -> Any:
    """The result of `layer` in float64, in steps, before it is rounded."""
    known = {name: graph.constants[name].astype(np.float64) for name in graph.constants}
    nodes = {node.outputs[0]: node for node in graph.nodes}
    (quantise,) = [node for node in graph.nodes if node.op == "QuantizeLinear"]
    add = nodes[quantise.inputs[0]]
    product = nodes[add.inputs[0]]
    data, weights = (nodes[name] for name in product.inputs)
    floats = (p - known[data.inputs[2]]) * known[data.inputs[1]]
    sums = floats @ (known[weights.inputs[0]] * known[weights.inputs[1]]) + known[add.inputs[1]]
    return sums / known[quantise.inputs[1]] + known[quantise.inputs[2]]


def test_rounding_is_nearer_to_the_exact_result(runs: Any) -> None:
    """Not by much: so many results are off their rounded exact value."""
    wrong = np.zeros(2, int)
    for seed in range(40):
        graph = layer(0.011 + seed / 1000)
        p = np.random.default_rng(seed).integers(0, 256, (9, 64)).astype(np.uint8)
        whole = np.clip(np.rint(exact(graph, p)), 0, 255)
        for number, form in enumerate((graph, rewrite(graph, numerics=Numerics(dots=True)))):
            off = np.abs(run(runs, form, p=p) - whole)
            assert off.max() <= 1
            wrong[number] += int(off.sum())
    assert wrong[1] <= wrong[0] + 2


RESIDUAL = (
    "i = QuantizeLinear (h, u, v) j = DequantizeLinear (i, u, v) k = DequantizeLinear (p2, s, z) l = Add (j, k)"
    " y = QuantizeLinear (l, q, v)"
)


@pytest.mark.parametrize(
    ("after", "scales"),
    [
        ("y = QuantizeLinear (h, u, v)", [1]),
        ("i = Relu (h) y = QuantizeLinear (i, u, v)", [1]),
        ("i = LeakyRelu <alpha=0.1> (h) y = QuantizeLinear (i, u, v)", [1]),
        (RESIDUAL, [1, 1]),
        ("i = Sigmoid (h) y = QuantizeLinear (i, u, v)", [0.02]),
        ("i = Mul (h, c) y = QuantizeLinear (i, u, v)", [0.02]),
    ],
    ids=["sums", "Relu", "LeakyRelu", "a residual", "Sigmoid", "another factor"],
)  # fmt: skip
def test_which_results_are_scaled(runs: Any, after: str, scales: list[float]) -> None:
    graph = layer(0.02, after=after, p2=RNG.integers(0, 256, (9, 16)).astype(np.uint8), q=np.float32(0.03))
    rewritten = rewrite(graph, numerics=Numerics(dots=True))
    assert scale_of(rewritten) == pytest.approx(scales)
    p = RNG.integers(0, 256, (9, 64)).astype(np.uint8)
    assert np.abs(run(runs, rewritten, p=p).astype(int) - run(runs, graph, p=p)).max() <= 1


@pytest.mark.parametrize("opset", [20, 21, 23])
def test_residuals_of_any_opset(opset: int, runs: Any, caplog: pytest.LogCaptureFixture) -> None:
    graph = layer(
        0.02, after=RESIDUAL, opset=opset, p2=RNG.integers(0, 256, (9, 16)).astype(np.uint8), q=np.float32(0.03)
    )
    rewritten = rewrite(graph, numerics=Numerics(dots=True))
    assert scale_of(rewritten) == [1, 1]
    p = RNG.integers(0, 256, (9, 64)).astype(np.uint8)
    assert np.abs(run(runs, rewritten, p=p).astype(int) - run(runs, graph, p=p)).max() <= 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("scale", [1e-42, 2.0**-140, 1e38])
def test_a_quotient_that_is_no_float_stays(scale: float) -> None:
    assert scale_of(rewrite(layer(scale), numerics=Numerics(dots=True))) == [np.float32(scale)]


def test_a_result_that_others_read_stays() -> None:
    graph = imported(
        "uint8[9,64] p",
        LAYER + "y = QuantizeLinear (h, u, v)",
        "uint8[9,16] y, float[9,16] h",
        **named(layer(0.02)),
    )
    assert scale_of(rewrite(graph, numerics=Numerics(dots=True))) == pytest.approx([0.02])


def named(graph: Graph) -> dict[str, Any]:
    """The constants of `layer` by their names in it."""
    nodes = {node.op: node for node in graph.nodes}
    data, weights = (n for n in graph.nodes if n.op == "DequantizeLinear")
    places = {
        "s": data.inputs[1], "z": data.inputs[2], "w": weights.inputs[0], "t": weights.inputs[1],
        "o": weights.inputs[2], "c": nodes["Add"].inputs[1], "u": nodes["QuantizeLinear"].inputs[1],
        "v": nodes["QuantizeLinear"].inputs[2],
    }  # fmt: skip
    return {name: graph.constants[tensor] for name, tensor in places.items()}


def test_layers_of_other_scales_are_one_task() -> None:
    keys = set()
    for scale in (0.02, 0.013, 0.3):
        (call,) = (
            step
            for step in partition(rewrite(layer(scale), numerics=Numerics(dots=True)))
            if isinstance(step, TaskCall)
        )
        keys.add(call.task.key)
    assert len(keys) == 1


MOVED = "a = DequantizeLinear (p, s, z) m = MaxPool <kernel_shape=[2,2]> (a) y = QuantizeLinear (m, {})"


@pytest.mark.parametrize(("points", "is_moved"), [("s, z", True), ("s2, z", False), ("s, z2", False)])
def test_bytes_that_would_come_back_are_moved(points: str, is_moved: bool, runs: Any) -> None:
    graph = imported(
        "uint8[1,3,6,6] p",
        MOVED.format(points),
        "uint8[1,3,5,5] y",
        s=np.float32(0.017),
        z=np.uint8(9),
        s2=np.float32(0.018),
        z2=np.uint8(10),
    )
    after = rewrite(graph)
    assert ("QuantizeLinear" not in [node.op for node in after.nodes]) is is_moved
    p = RNG.integers(0, 256, (1, 3, 6, 6)).astype(np.uint8)
    np.testing.assert_array_equal(run(runs, after, p=p), run(runs, graph, p=p))


@pytest.mark.parametrize(
    ("kind", "scale"), [("uint8", -0.1), ("uint8", 0.0), ("uint8", np.inf), ("int16", 0.1), ("uint16", 0.1)]
)
def test_what_is_no_byte_or_has_another_order_is_not_moved(
    kind: str, scale: float, caplog: pytest.LogCaptureFixture
) -> None:
    graph = imported(
        f"{kind}[1,3,6,6] p",
        MOVED.format("s, z"),
        f"{kind}[1,3,5,5] y",
        21,
        s=np.float32(scale),
        z=np.array(9, kind),
    )
    assert "QuantizeLinear" in [node.op for node in rewrite(graph).nodes]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("scale", "is_moved"), [(0.017, True), (0.018, False)])
def test_bytes_that_are_put_together(scale: float, is_moved: bool, runs: Any) -> None:
    graph = imported(
        "uint8[1,3,6,6] p, uint8[1,2,6,6] q",
        "a = DequantizeLinear (p, s, z) b = DequantizeLinear (q, t, z) c = Concat <axis=1> (a, b)"
        " d = DepthToSpace <blocksize=1> (c) y = QuantizeLinear (d, s, z)",
        "uint8[1,5,6,6] y",
        s=np.float32(0.017),
        t=np.float32(scale),
        z=np.uint8(9),
    )
    after = rewrite(graph, numerics=Numerics(dots=True))
    assert ("QuantizeLinear" not in [node.op for node in after.nodes]) is is_moved
    feeds = {"p": RNG.integers(0, 256, (1, 3, 6, 6)), "q": RNG.integers(0, 256, (1, 2, 6, 6))}
    feeds = {name: array.astype(np.uint8) for name, array in feeds.items()}
    apart = np.abs(run(runs, after, **feeds).astype(int) - run(runs, graph, **feeds))
    assert apart.max() <= (0 if is_moved else 1)

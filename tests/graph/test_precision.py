"""Precisions that a user may ask for: what is rounded by them, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics, Precision
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite, weight_types

RNG = np.random.default_rng(0)

BF16 = Numerics(bf16=True, precision=Precision.BF16)
BYTES = Numerics(dots=True, precision=Precision.INT8_ACTIVATIONS)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def imported(inputs: str, nodes: str, **known: Any) -> Graph:
    body = nodes.replace(") ", ")\n")
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{head} m ({inputs}) => (y) {{ {body} }}")
    for name, array in known.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model = onnx.shape_inference.infer_shapes(model)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return load(model.SerializeToString())


def rounded(array: Any) -> Any:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def ops(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def test_operands_are_rounded_and_sums_are_not(runs: Any) -> None:
    w, x = normal(64, 48), normal(5, 64)
    graph = rewrite(imported("float[5, 64] x", "t = MatMul(x, w) y = Relu(t)", w=w), numerics=BF16)
    expected = np.maximum(rounded(x) @ rounded(w), 0)
    for result in (runs.nodes(graph, {"v0": x})[0], runs.steps(graph, {"v0": x})[0]):
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert np.abs(expected - np.maximum(x.astype(np.float64) @ w, 0)).max() > 1e-3


def test_convolutions_and_what_is_added_to_them(runs: Any) -> None:
    """What is added beside a convolution is not rounded, though it was in the one before."""
    w, v, b, x = normal(32, 16, 3, 3), normal(16, 32, 1, 1), normal(32), normal(1, 16, 7, 9)
    nodes = "s = Conv<pads=[1, 1, 1, 1]>(x, w, b) t = Relu(s) u = Conv(t, v) y = Add(u, x)"
    before = imported("float[1, 16, 7, 9] x", nodes, w=w, v=v, b=b)
    graph = rewrite(before, numerics=BF16)
    assert [node.op for node in graph.nodes].count("ConvNarrow") == 2
    ways = (runs.nodes, graph), (runs.steps, graph), (runs.nodes, before)
    by_nodes, by_steps, as_given = (run(form, {"v0": x})[0] for run, form in ways)
    scale = np.abs(as_given).max()
    np.testing.assert_allclose(by_steps, by_nodes, rtol=0, atol=1e-3 * scale)  # a step of bfloat16 now and then
    assert 1e-4 * scale < np.abs(by_nodes - as_given).max() < 2e-2 * scale


@pytest.mark.parametrize(
    ("inputs", "nodes", "known"),
    [
        ("float[4, 8] x, float[8, 32] z", "y = MatMul(x, z)", {}),
        ("float[4, 7] x", "y = MatMul(x, w)", {"w": normal(7, 32)}),
        ("float[4, 8] x", "y = MatMul(x, w)", {"w": normal(8, 15)}),
        ("float[4, 8] x", "y = MatMul(x, w)", {"w": np.full((8, 16), 3.4e38, np.float32)}),
        ("float[1, 16, 5, 5] x", "y = Conv<group=16>(x, w)", {"w": normal(16, 1, 3, 3)}),
        ("float[1, 3, 5, 5] x", "y = Conv(x, w)", {"w": normal(16, 3, 3, 3)}),
    ],
    ids=["both computed", "odd", "few columns", "infinite then", "depthwise", "three colours"],
)
def test_products_that_stay_as_they_are(inputs: str, nodes: str, known: dict[str, Any]) -> None:
    graph = imported(inputs, nodes, **known)
    assert str(rewrite(graph, numerics=BF16)) == str(rewrite(graph))


def test_weights_alone_are_rounded_where_no_machine_multiplies_bfloat16(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_types, "LEAST_BYTES", 1)
    w, x = normal(64, 48), normal(5, 64)
    graph = rewrite(imported("float[5, 64] x", "y = MatMul(x, w)", w=w), numerics=replace(BF16, bf16=False))
    assert [array.dtype.name for array in graph.constants.values()] == ["bfloat16"]
    np.testing.assert_allclose(runs.steps(graph, {"v0": x})[0], x.astype(np.float64) @ rounded(w), atol=1e-4)


def quantised(*shape: int) -> dict[str, Any]:
    weights = RNG.integers(-127, 128, shape).astype(np.int8)
    return {"q": weights, "s": RNG.uniform(0.01, 0.02, shape[-1]).astype(np.float32)}


def test_tables_that_are_read_and_not_multiplied_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_types, "LEAST_BYTES", 1)
    graph = imported("int64[5] x", "t = Gather(w, x) y = Relu(t)", w=normal(64, 48))
    for numerics in (BF16, replace(BF16, bf16=False)):
        assert str(rewrite(graph, numerics=numerics)) == str(rewrite(graph))


def test_a_convolution_of_an_image_whose_size_only_a_run_tells() -> None:
    """It has no shape of its kernel among the attributes."""
    known = {"w": normal(32, 16, 1, 1), "z": np.array([0]), "two": np.array([2])}
    graph = imported("float[1, 16, 12, 12] x, int64[1] n", "h = Slice(x, z, n, two) y = Conv(h, w)", **known)
    for precision in Precision:
        assert "Conv" in ops(rewrite(graph, numerics=Numerics(precision=precision)))


def test_numbers_that_are_bfloat16_already_are_read_as_they_are() -> None:
    graph = imported("bfloat16[5, 64] x", "a = Cast<to=1>(x) t = MatMul(a, w) y = Relu(t)", w=normal(64, 48))
    assert "Cast" not in ops(rewrite(graph, numerics=BF16))


@pytest.mark.parametrize(
    ("inputs", "nodes", "shape", "axis"),
    [
        ("float[5, 64] x", "w = DequantizeLinear<axis=0>(q, s) y = MatMul(x, w)", (64, 48), 0),
        ("float[5, 62] x", "w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w)", (62, 48), 1),
        ("float[5, 64] x", "w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w)", (64, 8), 1),
        ("float[1, 16, 5, 5] x", "w = DequantizeLinear<axis=0>(q, s) y = Conv<group=16>(x, w)", (16, 1, 3, 3), 0),
    ],
    ids=["scales of rows", "no whole words", "few columns", "depthwise"],
)
def test_activations_are_no_bytes_where_products_are_not(
    inputs: str, nodes: str, shape: tuple[int, ...], axis: int
) -> None:
    known = {"q": quantised(*shape)["q"], "s": RNG.uniform(0.01, 0.02, shape[axis]).astype(np.float32)}
    graph = imported(inputs, nodes, **known)
    assert str(rewrite(graph, numerics=BYTES)) == str(rewrite(graph, numerics=Numerics(dots=True)))


def test_activations_of_a_gemm_are_bytes_too_where_a_processor_multiplies_such() -> None:
    nodes = "w = DequantizeLinear<axis=1>(q, s) y = Gemm(x, w, b)"
    graph = imported("float[5, 64] x", nodes, b=normal(48), **quantised(64, 48))
    assert "MatMulInteger" in ops(rewrite(graph, numerics=BYTES))
    as_given = replace(BYTES, dots=False)
    assert str(rewrite(graph, numerics=as_given)) == str(rewrite(graph))


def test_activations_are_rounded_as_dynamic_quantisation_does_it() -> None:
    known = quantised(64, 48)
    weights = "w = DequantizeLinear<axis=1>(q, s)"
    asked = imported("float[5, 64] x", f"{weights} y = MatMul(x, w)", **known)
    written = imported(
        "float[5, 64] x",
        f"p, t, m = DynamicQuantizeLinear(x) d = DequantizeLinear(p, t, m) {weights} y = MatMul(d, w)",
        **known,
    )
    assert str(rewrite(asked, numerics=BYTES)) == str(rewrite(written, numerics=Numerics(dots=True)))
    assert "MatMulInteger" in ops(rewrite(asked, numerics=BYTES))
    assert "MatMulInteger" not in ops(rewrite(asked, numerics=Numerics(dots=True)))


@pytest.mark.parametrize("rows", [1, 20])
def test_activations_beside_blocks_are_rounded_as_accuracy_level_4_does_it(rows: int) -> None:
    known = {
        "b": RNG.integers(0, 256, (32, 4, 16)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.02, 128).astype(np.float32),
    }
    asked, written = (
        imported(
            f"float[{rows}, 128] x",
            f"y = com.microsoft.MatMulNBits<K=128, N=32, bits=4, block_size=32, accuracy_level={level}>(x, b, s)",
            **known,
        )
        for level in (0, 4)
    )
    assert str(rewrite(asked, numerics=BYTES)) == str(rewrite(written, numerics=Numerics(dots=True)))
    assert "BlockQuantize" in ops(rewrite(asked, numerics=BYTES))


def test_what_meets_floats_is_no_byte() -> None:
    graph = imported("float[5, 64] x", "t = MatMul(x, w) y = Relu(t)", w=normal(64, 48))
    assert str(rewrite(graph, numerics=BYTES)) == str(rewrite(graph, numerics=Numerics(dots=True)))

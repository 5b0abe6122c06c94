"""Products with weights of few bits: which ones read them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from ..search_space.test_block_matmul import graph_of

GPU = Numerics(widen=False)


@pytest.mark.parametrize("dots", [False, True])
@pytest.mark.parametrize("rows", [3, 17])
def test_activations_are_rounded(rows: int, dots: bool, runs: Any) -> None:
    """As ONNX Runtime does it, to multiples of a 127th of a block's largest; by whatever number of rows."""
    before, plain = (graph_of(str(rows), 48, 3, 16, is_rounded=is_rounded) for is_rounded in (True, False))
    after = rewrite(before, numerics=Numerics(dots=dots))
    assert ("BlockMatMul" in {node.op for node in after.nodes}) == (dots or rows <= 16)
    assert [node.op for node in after.nodes].count("BlockQuantize") == 1
    assert all(
        node.op not in ("BlockQuantize", "RoundBlocks")
        for node in rewrite(before, numerics=Numerics(widen=False)).nodes
    )
    x = np.random.default_rng(0).standard_normal((rows, 48)).astype(np.float32)
    x[1, 16:32] = 0
    x[1, :16] = 1e-37
    blocks = x.reshape(rows, 3, 16)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    rounded = np.rint(blocks / np.where(scales > 1e-38, scales, np.inf)) * scales
    [port] = before.inputs
    [expected] = runs.nodes(plain, {port.tensor: rounded.reshape(rows, 48).astype(np.float32)})
    for graph, run in ((before, runs.nodes), (after, runs.nodes), (after, runs.steps)):
        [actual] = run(graph, {port.tensor: x})
        runs.close(actual, expected, 1e-5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_block_that_is_not_finite_is_no_number(bad: float, runs: Any) -> None:
    before = graph_of("2", 48, 3, 16, then="y = Identity (t)", is_rounded=True)
    x = np.ones((2, 48), np.float32)
    x[1, 5] = bad
    [port] = before.inputs
    for graph, run in ((before, runs.nodes), (rewrite(before, numerics=Numerics(dots=True)), runs.steps)):
        [actual] = run(graph, {port.tensor: x})
        assert np.isfinite(actual[0]).all() and np.isnan(actual[1]).all()


@pytest.mark.parametrize(
    ("options", "is_packed"),
    [
        ({}, True),
        ({"rows": "16"}, True),
        ({"rows": "17"}, False),  # so many rows are computed faster in floats
        ({"most": 16}, True),
        ({"zero": 8}, True),
        ({"blocks": 1}, False),
        ({"size": 7}, False),
        ({"columns": 15}, False),
        ({"then": "y = Floor (t)"}, False),  # a step function reads the sums
    ],
)
def test_which_products_are_packed(options: dict[str, Any], is_packed: bool, runs: Any) -> None:
    sizes: dict[str, Any] = {"rows": "1", "columns": 48, "blocks": 3, "size": 16} | options
    before = graph_of(**sizes)
    after = rewrite(before)
    assert any(node.op == "BlockMatMul" for node in after.nodes) is is_packed
    come_to_the_same(before, after, runs)


def come_to_the_same(before: Graph, after: Graph, runs: Any) -> None:
    rng = np.random.default_rng(0)
    [port] = before.inputs
    feeds = {port.tensor: rng.standard_normal(before.type(port.tensor).shape).astype(np.float32)}
    [expected], [actual] = runs.nodes(before, feeds), runs.nodes(after, feeds)
    runs.close(actual, expected, 1e-5)


@pytest.mark.parametrize(
    ("options", "is_packed"),
    [
        ({}, True),
        ({"rows": "8"}, True),
        ({"rows": "9"}, False),  # tensor cores multiply floats
        ({"rows": "0"}, False),
        ({"most": 16}, True),
        ({"size": 8}, True),
        ({"size": 12}, False),  # a block ends within a word
        ({"columns": 15}, False),
        ({"is_rounded": True}, True),
        ({"has_narrow_scales": True}, True),
        ({"then": "y = Floor (t)"}, False),
    ],
)
def test_which_products_are_packed_on_gpus(options: dict[str, Any], is_packed: bool, runs: Any) -> None:
    sizes: dict[str, Any] = {"rows": "1", "columns": 48, "blocks": 3, "size": 16} | options
    before = graph_of(**sizes)
    after = rewrite(before, numerics=GPU)
    packed = [node for node in after.nodes if node.op == "BlockMatMul"]
    assert len(packed) == is_packed
    for node in packed:
        scales = "bfloat16" if options.get("has_narrow_scales") else "float32"
        assert after.constants[node.inputs[2]].dtype == scales
    come_to_the_same(graph_of(**sizes | {"is_rounded": False}), after, runs)


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("zero", [None, 0, 8])
def test_one_zero_point_is_no_operand(zero: int | None, is_rounded: bool) -> None:
    after = rewrite(graph_of("1", 48, 3, 16, zero=zero, is_rounded=is_rounded), numerics=Numerics(dots=True))
    [node] = [node for node in after.nodes if node.op == "BlockMatMul"]
    assert node.attrs.get("zero") == (zero or None)
    assert bool(node.input(3)) is not bool(zero)
    assert all(node.inputs[-1:]) and bool(node.input(4)) is is_rounded


def dequantised(
    kind: str, scales: str, *, depth: int = 96, is_turned: bool, has_zeros: bool, dtype: str = "float32"
) -> Graph:
    """A product of three rows by weights of 48 columns, dequantised by scales of all, of columns or of blocks of 16."""
    rng, low = np.random.default_rng(0), {"int4": -8, "uint4": 0, "int8": -128, "uint8": 0}[kind]
    high = low + (16 if kind.endswith("4") else 256)
    own = {"all": (), "columns": (48,), "blocks": (depth // 16, 48), "rows": (depth,)}[scales]
    shape = (depth, 48)
    turn = (lambda extents: extents[::-1]) if is_turned else (lambda extents: extents)
    axis = {"all": 1, "columns": 1, "blocks": 0, "rows": 0}[scales]
    attrs: dict[str, Any] = {"axis": 1 - axis if is_turned else axis, "block_size": 16 if scales == "blocks" else 0}
    elements = getattr(onnx.TensorProto, kind.upper())
    known = {"w": turn(shape)} | ({"z": turn(own)} if has_zeros else {})
    tensors = [
        helper.make_tensor(name, elements, extents, rng.integers(low, high, extents).reshape(-1))
        for name, extents in known.items()
    ]
    tensors.append(numpy_helper.from_array(rng.uniform(0.01, 0.02, turn(own)).astype(dtype), "s"))
    float_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if has_zeros else [])], ["d"], **attrs)]
    if is_turned:
        nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if is_turned else "d"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, float_type, (3, extent)) for n, extent in (("x", depth), ("y", 48)))
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    return load(model.SerializeToString())


@pytest.mark.parametrize("is_turned", [False, True], ids=["as it is", "turned"])
@pytest.mark.parametrize("has_zeros", [False, True], ids=["without zero points", "with zero points"])
@pytest.mark.parametrize("kind", ["int4", "uint4", "uint8"])
def test_weights_that_are_dequantised_by_blocks_stay_as_they_are(
    kind: str, has_zeros: bool, is_turned: bool, runs: Any
) -> None:
    before = dequantised(kind, "blocks", is_turned=is_turned, has_zeros=has_zeros)
    after = rewrite(before)
    assert [node.op for node in after.nodes] == ["BlockMatMul"]
    assert after.nodes[0].attrs["bits"] == int(kind[-1])
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
    [expected] = runs.nodes(before, {"v0": x})
    for run in (runs.nodes, runs.steps):
        runs.close(run(after, {"v0": x})[0], expected, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("has_zeros", [False, True], ids=["without zero points", "with zero points"])
def test_narrow_models_keep_their_weights_on_gpus(has_zeros: bool, dtype: str, runs: Any) -> None:
    """Scales are what they were, and no weight is rounded before it is multiplied."""
    before = dequantised("uint4", "blocks", is_turned=True, has_zeros=has_zeros, dtype=dtype)
    after = rewrite(before, numerics=GPU)
    [node] = after.nodes
    assert node.op == "BlockMatMul" and after.constants[node.inputs[2]].dtype == dtype
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(dtype)
    [expected] = runs.nodes(before, {"v0": x})
    for run in (runs.nodes, runs.steps):
        [actual] = run(after, {"v0": x})
        assert actual.dtype == expected.dtype
        runs.close(actual.astype(np.float32), expected.astype(np.float32), 1e-2)


@pytest.mark.parametrize(
    ("kind", "scales"), [("int8", "rows"), ("int8", "columns"), ("uint8", "all"), ("int8", "blocks")]
)
def test_other_weights_that_are_dequantised_are_floats(kind: str, scales: str, runs: Any) -> None:
    """Also those of eight bits with a sign: the zero point of unsigned ones would be none of the model's."""
    before = dequantised(kind, scales, is_turned=False, has_zeros=kind == "uint8")
    after = rewrite(before)
    assert [node.op for node in after.nodes] == ["MatMul"]
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
    runs.close(runs.steps(after, {"v0": x})[0], runs.nodes(before, {"v0": x})[0], 1e-5)

"""DeformConv and MaxUnpool, written in other ops: as ONNX Runtime and ONNX's evaluator have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs
from .correcting import run_by_peer

RNG = np.random.default_rng(11)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def results(op: str, operands: dict[str, Any], opset: int, /, known: tuple[str, ...] = (), **attrs: Any) -> list[Any]:
    """Ours by kernels alone, ONNX Runtime's, and that of ONNX's evaluator."""
    names = [name if name in operands else "" for name in ("x", "w", "offsets", "bias", "mask")]
    node = helper.make_node(op, list(operands) if op == "MaxUnpool" else names, ["y"], **attrs)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
        if name not in known
    ]
    weights = [numpy_helper.from_array(operands[name], name) for name in known]
    graph = helper.make_graph([node], "g", values, [ValueInfoProto(name="y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    ours = rewrite(load(model.SerializeToString()))
    assert not any(isinstance(step, Fallback) for step in partition(ours))
    feeds = {name: array for name, array in operands.items() if name not in known}
    [first] = Runs.steps(ours, {port.tensor: feeds[port.label] for port in ours.inputs})
    evaluated: Any = ReferenceEvaluator(model).run(None, feeds)
    return [first, run_by_peer(model, feeds)[0], evaluated[0]]


@pytest.mark.parametrize("parts", [(), ("bias",), ("bias", "mask")], ids=str)
@pytest.mark.parametrize(
    ("groups", "offset_groups", "attrs"),
    [
        (1, 1, {}),
        (2, 4, {"pads": [1, 0, 1, 2]}),
        (1, 2, {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 0, 2]}),
    ],
)
def test_deform_conv(groups: int, offset_groups: int, attrs: dict[str, Any], parts: tuple[str, ...]) -> None:
    x, w = f32(2, 4, 7, 6), f32(6, 4 // groups, 3, 2)
    pads, strides, dilations = attrs.get("pads", [0] * 4), attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    rows, columns = (
        (x.shape[2 + k] + pads[k] + pads[2 + k] - (w.shape[2 + k] - 1) * dilations[k] - 1) // strides[k] + 1
        for k in range(2)
    )
    offsets = (RNG.random((2, offset_groups * 12, rows, columns)) * 6 - 3).astype(np.float32)
    offsets[0, :, 0, 0] = 0
    operands = {"x": x, "w": w, "offsets": offsets}
    if "bias" in parts:
        operands["bias"] = f32(6)
    if "mask" in parts:
        operands["mask"] = RNG.random((2, offset_groups * 6, rows, columns)).astype(np.float32)
    ours, peer, evaluated = results(
        "DeformConv", operands, 19, group=groups, offset_group=offset_groups, kernel_shape=[3, 2], **attrs
    )
    np.testing.assert_allclose(ours, peer, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(ours, evaluated, rtol=1e-4, atol=2e-5)


def test_what_lies_beside_a_sample_is_not_in_it() -> None:
    """Offsets of whole elements: samples are elements, whatever their neighbours are."""
    x = RNG.integers(-4, 5, (1, 2, 9, 7)).astype(np.float32)
    x[0, :, 5, 3] = 1e30
    offsets = np.zeros((1, 8, 8, 6), np.float32)
    ours, peer, evaluated = results(
        "DeformConv", {"x": x, "w": np.ones((1, 2, 2, 2), np.float32), "offsets": offsets}, 19, kernel_shape=[2, 2]
    )
    np.testing.assert_array_equal(ours, peer)
    np.testing.assert_array_equal(ours, evaluated)


def test_max_unpool_puts_elements_back() -> None:
    x = f32(2, 3, 4, 5)
    indices = np.arange(2 * 3 * 4 * 5).reshape(x.shape) * 4 + RNG.integers(0, 4, x.shape)
    ours, peer, evaluated = results("MaxUnpool", {"x": x, "i": indices}, 11, kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(ours, peer)
    np.testing.assert_array_equal(ours, evaluated)


def test_max_unpool_of_a_larger_shape() -> None:
    operands = {"x": f32(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]]), "shape": np.array([1, 1, 5, 6])}
    ours, _, evaluated = results("MaxUnpool", operands, 11, known=("shape",), kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(ours, evaluated)

"""Numbers of 2 and 4 bits: as weights, in files of all forms, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tunewright.graph.fusion.fusion import Fallback, partition
from tunewright.graph.onnx_import import ModelError, load
from tunewright.graph.rewrites import rewrite

from .conftest import Runs
from .correcting import RNG, normal, run_by_peer

KINDS = ("int4", "uint4", "int2", "uint2")


def drawn(kind: str, *shape: int) -> Any:
    dtype = np.dtype(kind)
    limits = ml_dtypes.iinfo(dtype)
    return RNG.integers(int(limits.min), int(limits.max) + 1, shape).astype(np.int8).astype(dtype)


def scales(*shape: int) -> Any:
    return (RNG.random(shape) + 0.1).astype(np.float32)


def model_of(nodes: list[Any], weights: dict[str, Any], **inputs: Any) -> ModelProto:
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values, [ValueInfoProto(name="y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def agree(model: ModelProto, **inputs: Any) -> None:
    """What is computed is what ONNX Runtime computes; and natively, if there are inputs."""
    graph = rewrite(load(model.SerializeToString()))
    steps = partition(graph)
    assert not [step for step in steps if isinstance(step, Fallback)]
    (result,) = Runs.steps(graph, {port.tensor: inputs[port.label] for port in graph.inputs}, steps)
    Runs.close(result, run_by_peer(model, inputs)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scale", "zero_point", "attrs"),
    [
        (scales(), (), {}),
        (scales(), None, {}),
        (scales(13), (13,), {"axis": 1}),
        (scales(5, 5), (5, 5), {"axis": 1, "block_size": 3}),
        (scales(3, 13), None, {"axis": 0, "block_size": 2}),
    ],
)
def test_weights(kind: str, scale: Any, zero_point: tuple[int, ...] | None, attrs: dict[str, Any]) -> None:
    weights = {"w": drawn(kind, 5, 13), "s": np.asarray(scale)}
    if zero_point is not None:
        weights["z"] = drawn(kind, *zero_point)
    nodes = [helper.make_node("DequantizeLinear", list(weights), ["d"], **attrs), helper.make_node("MatMul", "xd", "y")]
    x = normal(3, 5)
    agree(model_of(nodes, weights, x=x), x=x)


@pytest.mark.parametrize("kind", KINDS)
def test_forms_of_files(kind: str, tmp_path: Path) -> None:
    """Raw bytes, a list of numbers, and an external file; the last byte is not full."""
    array = drawn(kind, 3, 5)
    model = model_of([helper.make_node("Cast", ["w"], ["y"], to=TensorProto.INT8)], {"w": array})
    agree(model)
    raw = model.graph.initializer[0].raw_data
    (tmp_path / "data").write_bytes(b"????" + raw)
    model.graph.initializer[0].ClearField("raw_data")
    external = ModelProto.FromString(model.SerializeToString())
    model.graph.initializer[0].int32_data.extend(raw)
    agree(model)
    tensor = external.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "data", "offset": "4", "length": str(len(raw))}.items():
        tensor.external_data.add(key=key, value=value)
    onnx.save(external, tmp_path / "model.onnx")
    graph = load(tmp_path / "model.onnx")
    np.testing.assert_array_equal(graph.constants[graph.outputs[0].tensor], array.astype(np.int8))


def test_data_of_another_length() -> None:
    model = model_of([helper.make_node("Cast", ["w"], ["y"], to=TensorProto.INT8)], {"w": drawn("int4", 3, 5)})
    model.graph.initializer[0].raw_data += b"?"
    with pytest.raises(ModelError, match=r"9 bytes of data where its shape needs 8"):
        load(model.SerializeToString())


@pytest.mark.parametrize("kind", KINDS)
def test_few_bits_at_run_time_are_left_to_others(kind: str) -> None:
    """And are right."""
    nodes = [helper.make_node("QuantizeLinear", "xsz", "q"), helper.make_node("DequantizeLinear", "qsz", "y")]
    x, weights = normal(4, 7), {"s": np.float32(0.3) * np.ones((), np.float32), "z": drawn(kind)}
    model = model_of(nodes, weights, x=x)
    graph = load(model.SerializeToString())
    (result,) = Runs.nodes(graph, {graph.inputs[0].tensor: x})
    Runs.close(result, run_by_peer(model, {"x": x})[0])

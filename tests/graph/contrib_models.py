"""What the tests of `test_contrib_*.py` share: a model of one contributed op, by our import and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from tunewright.graph import contrib
from tunewright.graph.onnx_import import load

from .conftest import Runs
from .correcting import run_by_peer

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid(contrib.DOMAIN, 1)]


def contrib_model(
    op: str, operands: Mapping[str, Any], results: Collection[str], constants: Collection[str] = (), **attrs: Any
) -> ModelProto:
    """A model of one call. `operands` and `results` are by the formal parameters of the op."""
    key = next(key for key in contrib.OPS if key[1] == op)
    schema = contrib.OPS[key].schema
    names = [item.name for item in schema.inputs]
    names += [name for name in operands if name not in names]  # of a variadic parameter
    inputs = [name if name in operands else "" for name in names if name != "inputs"]
    node = helper.make_node(op, inputs, [item.name if item.name in results else "" for item in schema.outputs], **attrs)
    node.domain = key[0]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
        if name not in constants
    ]
    weights = [numpy_helper.from_array(operands[name], name) for name in constants]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "g", values, outputs, weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def run_ours(model: ModelProto, operands: Mapping[str, Any]) -> list[Any]:
    """The outputs of the imported model, node by node."""
    graph = load(model.SerializeToString())
    return Runs.nodes(graph, {port.tensor: operands[port.label] for port in graph.inputs})


def agree(
    op: str,
    operands: Mapping[str, Any],
    results: Sequence[str],
    constants: Collection[str] = (),
    *,
    steps: int = 0,
    **attrs: Any,
) -> None:
    """Ours is what ONNX Runtime computes; bytes are at most some steps away."""
    model = contrib_model(op, operands, results, constants, **attrs)
    feeds = {value.name: operands[value.name] for value in model.graph.input}
    for ours, theirs in zip(run_ours(model, operands), run_by_peer(model, feeds), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * max(1, np.abs(theirs).max()))
        else:
            assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= steps

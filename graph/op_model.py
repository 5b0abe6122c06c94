"""Op models: the ONNX bytes of a few nodes, for tasks without a model of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tunewright.codegen.expr.dtype import DType

OPSET = 21


@dataclass(frozen=True, slots=True)
class OpNode:
    """A node of one output."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any] = field(default_factory=dict)


def op_model(
    nodes: Sequence[OpNode],
    inputs: Mapping[str, Sequence[int]],
    known: Mapping[str, Sequence[int] | float],
    shape: Sequence[int],
    dtype: DType,
) -> bytes:
    """A model of one element type, whose output, of that shape, is what the last node makes.

    `known` are its weights: shapes, whose numbers are drawn, or a number. Raises ValueError as ONNX's helpers do.
    """
    kind = helper.np_dtype_to_tensor_dtype(dtype.numpy)
    rng = np.random.default_rng(0)
    weights = {
        name: np.asarray(value if isinstance(value, float) else rng.standard_normal(tuple(value)))
        for name, value in known.items()
    }
    graph = helper.make_graph(
        [helper.make_node(node.op, node.inputs, [node.output], **node.attrs) for node in nodes],
        "ops",
        [helper.make_tensor_value_info(name, kind, sizes) for name, sizes in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output, kind, shape)],
        [numpy_helper.from_array(array.astype(dtype.numpy), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    data: bytes = model.SerializeToString()
    return data

"""A model whose weight is large enough to be rounded, and what it says in each precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

from tunewright.codegen.host import detect
from tunewright.graph.numerics import Precision

ROWS, DEPTH, COLUMNS = 4, 128, 256  # weights of 128 KiB: from 64 KiB on they are rounded
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
X = RNG.standard_normal((ROWS, DEPTH)).astype(np.float32)


def wide_model(rows: int | str = ROWS, *, is_overridable: bool = False) -> bytes:
    """relu(x w), of which the weight may be an input as well."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, DEPTH])]
    if is_overridable:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [DEPTH, COLUMNS]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS])]
    graph = helper.make_graph(nodes, "wide", inputs, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def rounded(array: Any) -> Any:
    return array.astype(bfloat16).astype(np.float32)


def recounted(precision: str, x: Any = X) -> Any:
    """What the model says in a precision, on this machine."""
    if precision != Precision.BF16:
        return np.maximum(x @ WEIGHT, 0)
    return np.maximum((rounded(x) if detect(1).has_bf16 else x) @ rounded(WEIGHT), 0)


def is_close(ours: Any, theirs: Any) -> bool:
    """Whether they are the same but for the order of sums: rounding to bfloat16 moves a hundred times as much."""
    return bool(np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max())

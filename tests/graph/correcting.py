"""What the tests of `test_corrections_*.py` share: an op by the evaluator, and the same by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, ValueInfoProto, helper, parser

from tunewright.graph.evaluation.fallback import evaluate
from tunewright.graph.ir import Graph, Node
from tunewright.graph.onnx_import import load

RNG = np.random.default_rng(11)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: Any = np.float32) -> Any:
    assert 0 in shape
    return np.zeros(shape, dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def computed(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> list[Any]:
    names = tuple(f"v{k}" if array is not None else "" for k, array in enumerate(operands))
    results = tuple(f"y{k}" for k in range(outputs))
    return evaluate(Node(op, names, results, attrs, version=version), operands)


def by_peer(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> list[Any]:
    """The outputs by ONNX Runtime, which leaves the graph as it is."""
    feeds = {f"x{k}": array for k, array in enumerate(operands) if array is not None}
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(operands)]
    results = [f"y{k}" for k in range(outputs)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph([node], "g", inputs, [ValueInfoProto(name=name) for name in results])
    return run_by_peer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10), feeds)


def run_by_peer(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds)))


def agree(op: str, operands: Sequence[Any], version: int = 20, outputs: int = 1, /, **attrs: Any) -> None:
    results = computed(op, operands, version, outputs, **attrs)
    for ours, peer_result in zip(results, by_peer(op, operands, version, outputs, **attrs), strict=True):
        assert (ours.shape, ours.dtype) == (peer_result.shape, peer_result.dtype)
        np.testing.assert_allclose(ours, peer_result, rtol=1e-4, atol=1e-5)


def parsed(body: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {body}')


def imported(body: str, opset: int = 17) -> Graph:
    return load(parsed(body, opset).SerializeToString())

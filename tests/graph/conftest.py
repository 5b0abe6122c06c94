"""How the tests of this folder run a graph: node by node by the reference, and step by step by the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from tunewright.graph.evaluation import fallback
from tunewright.graph.fusion.fusion import Fallback, Step, TaskCall, TensorView, partition
from tunewright.graph.ir import Array, Graph
from tunewright.graph.oracle import reference, written_masks


def _seen(array: Array, shape: tuple[int, ...]) -> Array:
    """The first elements of an array, in the memory that they are in."""
    return array.reshape(-1)[: prod(shape)].reshape(shape)


class Runs:
    """Two ways to the outputs of a graph. `feeds` are by tensor."""

    @staticmethod
    def nodes(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
        values = {**graph.constants, **feeds}
        for node in graph.nodes:
            results = fallback.evaluate(node, [values[name] if name else None for name in node.inputs])
            values |= {name: value for name, value in zip(node.outputs, results, strict=True) if name}
        return [values[output.tensor] for output in graph.outputs]

    @staticmethod
    def steps(graph: Graph, feeds: Mapping[str, Array], steps: Sequence[Step] = ()) -> list[Array]:
        values = {**graph.constants, **feeds}
        parts: dict[str, str] = {}  # view -> what it is a view of
        stored: dict[str, int] = {}  # tensor that calls each write a part of -> how much they have
        for step in steps or partition(graph):
            match step:
                case TaskCall(task, inputs, outputs):
                    for tensor, name in zip(task.inputs, inputs, strict=True):
                        assert name in graph.constants or not tensor.constant
                    operands = [_seen(values[name], t.shape) for t, name in zip(task.inputs, inputs, strict=True)]
                    for name, result, own in zip(outputs, reference(task, operands), written_masks(task), strict=True):
                        assert own is None or name in parts
                        if name not in values:
                            kind = graph.types.get(name)
                            shape = kind.shape if kind else result.shape
                            values[name] = np.empty(shape or (), result.dtype)
                        np.copyto(_seen(values[name], result.shape), result, where=True if own is None else own)
                        if own is not None:
                            stored[parts[name]] = stored.get(parts[name], 0) + int(own.sum())
                case TensorView(source, view, offset_bytes):
                    if source not in values:  # its parts are written one by one
                        kind = graph.types[source]
                        values[source] = np.empty(kind.shape or (), kind.dtype)
                    parts[view] = source
                    flat = values[source].reshape(-1)[offset_bytes // values[source].itemsize :]
                    values[view] = _seen(flat, graph.types[view].shape or ()) if view in graph.types else flat
                case Fallback(node):
                    results = fallback.evaluate(node, [values[name] if name else None for name in node.inputs])
                    values |= {name: value for name, value in zip(node.outputs, results, strict=True) if name}
        assert stored == {name: values[name].size for name in stored}
        return [values[output.tensor] for output in graph.outputs]

    @staticmethod
    def close(result: Any, expected: Any, tolerance: float = 1e-5) -> None:
        """Equal types and shapes, and values up to a share of the largest one."""
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(result, expected)
            return
        size = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=tolerance * size)

    @classmethod
    def agree(cls, graph: Graph, feeds: Mapping[str, Array], tolerance: float = 1e-5) -> None:
        for result, expected in zip(cls.steps(graph, feeds), cls.nodes(graph, feeds), strict=True):
            cls.close(result, expected, tolerance)


@pytest.fixture(scope="session")
def runs() -> type[Runs]:
    return Runs

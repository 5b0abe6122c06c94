"""How the tests of this folder run a graph: node by node by the reference, and step by step by the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tunewright.graph import fallback
from tunewright.graph.fusion import Call, Fallback, Step, View, partition
from tunewright.graph.ir import Array, Graph
from tunewright.graph.oracle import reference


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
        for step in steps or partition(graph):
            match step:
                case Call(task, inputs, outputs):
                    for tensor, name in zip(task.inputs, inputs, strict=True):
                        assert tensor.constant == (name in graph.constants)
                    results = reference(task, [values[name] for name in inputs])
                    values |= {
                        name: result.reshape(graph.types[name].shape or ())
                        for name, result in zip(outputs, results, strict=True)
                    }
                case View(source, view):
                    values[view] = values[source].reshape(graph.types[view].shape or ())
                case Fallback(node):
                    results = fallback.evaluate(node, [values[name] if name else None for name in node.inputs])
                    values |= {name: value for name, value in zip(node.outputs, results, strict=True) if name}
        return [values[output.tensor] for output in graph.outputs]

    @staticmethod
    def close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
        """Equal types and shapes, and values up to a share of the largest one."""
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(found, wanted)
            return
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-3)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=tolerance * size)

    @classmethod
    def agree(cls, graph: Graph, feeds: Mapping[str, Array], tolerance: float = 1e-5) -> None:
        for found, wanted in zip(cls.steps(graph, feeds), cls.nodes(graph, feeds), strict=True):
            cls.close(found, wanted, tolerance)


@pytest.fixture(scope="session")
def runs() -> type[Runs]:
    return Runs

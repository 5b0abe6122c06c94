"""What reads models that strangers sent: `CALLS` of a confined child. `reading` is the other side.

Models come as files that nothing else may be read beside: no reference out of one is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunewright.graph.onnx_import import ModelError
from tunewright.graph.outline import Port, outline

from .model import open_model

MOST_PORTS = 1000
"""Inputs and outputs that a model may have."""

MOST_OPS = 512
"""Names of ops that are listed, the most common ones. ONNX has fewer; a hostile model may have more."""

MOST_TASKS = 4096
"""Distinct tasks that a model may have."""

MOST_LETTERS = 200
"""Of a name that is shown."""


def describe(path: str) -> dict[str, Any]:
    """What a model takes and gives; or the `error`."""
    return _answered(lambda: _description(Path(path).read_bytes()))


def tasks(path: str, dims: Mapping[str, int]) -> dict[str, Any]:
    """What there is to tune in a model; or the `error`."""
    return _answered(lambda: _tasks(Path(path).read_bytes(), dims))


def _answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except ModelError as error:
        return {"error": str(error)}


def _description(data: bytes) -> dict[str, Any]:
    found = outline(data)
    if found.has_external_data:
        raise ModelError("weights of the model lie in other files, which were not sent; send the structure alone")
    count = len(found.inputs) + len(found.outputs)
    if count > MOST_PORTS:
        raise ModelError(f"{count:,} inputs and outputs are more than {MOST_PORTS:,}")
    ops = sorted(found.ops.items(), key=lambda item: (-item[1], item[0]))[:MOST_OPS]
    return {
        "inputs": [_port(port) for port in found.inputs],
        "outputs": [_port(port) for port in found.outputs],
        "ops": {op[:MOST_LETTERS]: nodes for op, nodes in ops},
        "with_weights": found.with_weights,
    }


def _port(port: Port) -> dict[str, Any]:
    shape = None
    if port.shape is not None:
        shape = [extent if isinstance(extent, int) else extent[:MOST_LETTERS] for extent in port.shape]
    return {"name": port.name[:MOST_LETTERS], "dtype": port.dtype, "shape": shape}


def _tasks(data: bytes, dims: Mapping[str, int]) -> dict[str, Any]:
    model = open_model(data, dims)
    if len(model.tasks) > MOST_TASKS:
        raise ModelError(f"{len(model.tasks):,} distinct tasks are more than {MOST_TASKS:,}")
    return {
        "tasks": [{"task": task.to_json(), "occurrences": count} for task, count in model.tasks.values()],
        "chains": model.assembly.to_json(),
        "fallback": model.fallback_ops,
        "native_nodes": model.native_nodes,
    }


CALLS: dict[str, Callable[..., dict[str, Any]]] = {"describe": describe, "tasks": tasks}

"""Reader: the inputs, outputs and tasks of an untrusted model, from a confined child.

All answers of the child are checked here: even one that a model has taken over can do no more than name other tasks.
See `sandbox`. The child serves `CALLS`. Models come as files that nothing else may be read beside: no reference out of
one is followed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.target import Target
from tunewright.graph.evaluation.onnx_form import DTYPES, MAX_ELEMENTS
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import import ModelError
from tunewright.graph.onnx_import.outline import DeclaredPort, outline
from tunewright.graph.onnx_import.protobuf import one_line
from tunewright.graph.task import Task
from tunewright.workers.sandbox.process import ChildLimits

from ..sandbox import NoAnswer, Sandbox, SandboxRefusal
from .assembly import Assembly
from .graph_of_model import graph_of_model
from .model import open_for
from .task_graph import TaskGraph

MEMORY_BYTES = 2 << 30
"""Memory of the child."""

TIME_S = 60.0
"""Time limit of one model."""

ANSWER_BYTES = 32 << 20
"""Largest answer of the child: the tasks of a model with hundreds of them are a tenth of that."""

REQUESTS = 200
"""Requests after which the child is replaced: libraries leak."""

MOST_MESSAGE = 400
"""Letters of a message."""

MOST_LOGGED = 40_000
"""Letters of what the log has of a model that could not be read: of a bug, all of its traceback."""

MOST_PORTS = 1000
"""Inputs and outputs that a model may have."""

MOST_OPS = 512
"""Names of ops that are listed, the most common ones. ONNX has fewer; a hostile model may have more."""

MOST_TASKS = 4096
"""Distinct tasks that a model may have."""

MOST_LETTERS = 200
"""Letters of a name."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.reading")


@dataclass(frozen=True, slots=True)
class Description:
    """The inputs, outputs and ops of a model."""

    inputs: tuple[DeclaredPort, ...]
    outputs: tuple[DeclaredPort, ...]
    ops: Mapping[str, int]  # op -> nodes, the most common ones
    with_weights: bool  # False: a structure, or a model that has none

    @property
    def open_dims(self) -> tuple[str, ...]:
        """The dimensions that a job must bind, by name, or by input and axis where they have none."""
        names = [
            extent or f"{port.name}:{axis}"
            for port in self.inputs
            for axis, extent in enumerate(port.shape or ())
            if isinstance(extent, str)
        ]
        return tuple(dict.fromkeys(names))

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [asdict(port) for port in self.inputs],
            "outputs": [asdict(port) for port in self.outputs],
            "open_dims": list(self.open_dims),
            "ops": dict(self.ops),
            "with_weights": self.with_weights,
        }

    @staticmethod
    def from_json(data: Any) -> Description:
        """Raises TypeError, KeyError or ValueError on anything that is no description."""
        inputs, outputs, ops = data["inputs"], data["outputs"], data["ops"]
        _require(isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) + len(outputs) <= MOST_PORTS)
        _require(isinstance(data["with_weights"], bool))
        return Description(tuple(map(_port, inputs)), tuple(map(_port, outputs)), _counts(ops), data["with_weights"])


@dataclass(frozen=True, slots=True)
class ModelTasks:
    """The tasks of a model."""

    tasks: tuple[tuple[Task, int], ...]  # distinct ones, in order of first appearance, and how often each occurs
    assembly: Assembly  # of the tasks, by their number
    fallback: Mapping[str, int]  # op -> nodes without a native kernel
    native_nodes: int
    is_whole: bool  # whether the model came with its weights, or has none
    graph: TaskGraph  # with names of the model's nodes where it came with them

    @staticmethod
    def from_json(data: Any) -> ModelTasks:
        """Raises TypeError, LookupError or ValueError on anything else."""
        items = data["tasks"]
        _require(isinstance(items, list) and len(items) <= MOST_TASKS and _is_count(data["native_nodes"], least=0))
        _require(all(_is_count(item["occurrences"]) for item in items) and isinstance(data["is_whole"], bool))
        tasks = tuple((Task.from_json(item["task"]), item["occurrences"]) for item in items)
        _require(len({task.key for task, _ in tasks}) == len(tasks))
        assembly = Assembly.of_json([count for _, count in tasks], data["chains"])
        fallback, graph = _counts(data["fallback"]), TaskGraph.of_json(data["graph"], len(tasks))
        return ModelTasks(tasks, assembly, fallback, data["native_nodes"], data["is_whole"], graph)


class Reader(Closeable):
    """Reads models in a child, which is started on first use. One thread may use it at a time."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S) -> None:
        limits = ChildLimits(memory_bytes, cpu_s=time_s, reply_bytes=ANSWER_BYTES, confined=True)
        self._sandbox = Sandbox("tunewright.tuner.models.reader", "reading", "reader", limits, time_s, REQUESTS)

    def describe(self, path: Path) -> Description:
        """The inputs, outputs and ops of a model. Raises ModelError, whatever goes wrong with the model."""
        return self._read("describe", Description.from_json, path=str(path))

    def tasks(
        self,
        path: Path,
        dims: Mapping[str, int],
        target: Target | None = None,
        precision: Precision = Precision.AS_GIVEN,
    ) -> ModelTasks:
        """The tasks of a model, its open dimensions bound, for a target. Raises ModelError likewise."""
        asked = {
            "path": str(path),
            "dims": dict(dims),
            "target": None if target is None else target.to_json(),
            "precision": precision.value,
        }
        return self._read("tasks", ModelTasks.from_json, **asked)

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._sandbox.close()

    def _read(self, call: str, decode: Callable[[Any], Result], **arguments: Any) -> Result:
        try:
            return self._sandbox.ask(call, decode, **arguments)
        except SandboxRefusal as error:
            raise ModelError(one_line(str(error), MOST_MESSAGE)) from None
        except NoAnswer as error:
            _log.warning("a model could not be read: %s", one_line(error.__cause__, MOST_LOGGED))
            raise ModelError(f"the model can't be read: {error}") from error.__cause__


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("that is not what a reader answers")


def _port(data: Any) -> DeclaredPort:
    shape = data["shape"]
    _require(shape is None or (isinstance(shape, list) and all(map(_is_extent, shape))))
    _require(_is_name(data["name"]) and (data["dtype"] in DTYPES.values() or data["dtype"] == ""))
    return DeclaredPort(data["name"], data["dtype"], None if shape is None else tuple(shape))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_LETTERS


def _is_extent(value: object) -> bool:
    return _is_name(value) or (type(value) is int and abs(value) <= 2**63)


def _is_count(value: object, least: int = 1, most: int = MAX_ELEMENTS) -> bool:
    return type(value) is int and least <= value <= most


def _counts(data: Any) -> dict[str, int]:
    """Names and how many there are of each."""
    _require(isinstance(data, dict) and len(data) <= MOST_OPS)
    _require(all(_is_name(name) and _is_count(count) for name, count in data.items()))
    return dict(data)


# In the child


def describe(path: str) -> dict[str, Any]:
    """The inputs, outputs and ops of a model; or the `error`."""
    return _answer(lambda: _description(Path(path).read_bytes()))


def tasks(
    path: str, dims: Mapping[str, int], target: dict[str, Any] | None, precision: str = Precision.AS_GIVEN
) -> dict[str, Any]:
    """The tasks of a model; or the `error`."""
    machine = None if target is None else Target.from_json(target)
    return _answer(lambda: _tasks(Path(path).read_bytes(), dims, machine, Precision(precision)))


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except ModelError as error:
        return {"error": str(error)}


def _description(data: bytes) -> dict[str, Any]:
    model_outline = outline(data)
    if model_outline.has_external_data:
        raise ModelError("weights of the model lie in other files, which were not sent; send the structure alone")
    count = len(model_outline.inputs) + len(model_outline.outputs)
    if count > MOST_PORTS:
        raise ModelError(f"{count:,} inputs and outputs are more than {MOST_PORTS:,}")
    ops = sorted(model_outline.ops.items(), key=lambda item: (-item[1], item[0]))[:MOST_OPS]
    return {
        "inputs": [_port_json(port) for port in model_outline.inputs],
        "outputs": [_port_json(port) for port in model_outline.outputs],
        "ops": {op[:MOST_LETTERS]: nodes for op, nodes in ops},
        "with_weights": model_outline.with_weights,
    }


def _port_json(port: DeclaredPort) -> dict[str, Any]:
    shape = None
    if port.shape is not None:
        shape = [extent if isinstance(extent, int) else extent[:MOST_LETTERS] for extent in port.shape]
    return {"name": port.name[:MOST_LETTERS], "dtype": port.dtype, "shape": shape}


def _tasks(
    data: bytes, dims: Mapping[str, int], target: Target | None, precision: Precision = Precision.AS_GIVEN
) -> dict[str, Any]:
    model = open_for(target, data, dims, precision=precision)
    if len(model.tasks) > MOST_TASKS:
        raise ModelError(f"{len(model.tasks):,} distinct tasks are more than {MOST_TASKS:,}")
    seen = outline(data)
    return {
        "tasks": [{"task": task.to_json(), "occurrences": count} for task, count in model.tasks.values()],
        "chains": model.assembly.to_json(),
        "fallback": model.fallback_ops,
        "native_nodes": model.native_nodes,
        "is_whole": seen.is_whole,
        "graph": graph_of_model(model, with_names=seen.has_names).to_json(),
    }


CALLS: dict[str, Callable[..., dict[str, Any]]] = {"describe": describe, "tasks": tasks}

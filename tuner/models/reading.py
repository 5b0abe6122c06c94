"""Reading: what a model that a stranger sent consists of, found out in a child that has little to break.

The child is `confined` (see `workers.confine`), has so much memory and time, and all that it says is checked here: not
even a child that the model has taken over can do more than tell of other tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tunewright.graph.inference import DTYPES, MAX_ELEMENTS
from tunewright.graph.onnx_import import ModelError
from tunewright.graph.onnx_import.errors import one_line
from tunewright.graph.outline import Port
from tunewright.graph.task import Task
from tunewright.workers.process import ChildLimits

from ..confided import Confided, Refusal, Unanswered
from .assembly import Assembly
from .reading_child import MOST_LETTERS, MOST_OPS, MOST_PORTS, MOST_TASKS

MEMORY_BYTES = 2 << 30
"""What reading one model may take."""

TIME_S = 60.0
"""How long reading one model may take."""

ANSWER_BYTES = 32 << 20
"""How much a child may say at once: the tasks of a model with hundreds of them are a tenth of that."""

REQUESTS = 200
"""Models that one child reads before it makes place for a fresh one: libraries leak."""

MOST_MESSAGE = 400
"""Letters of a message."""

MOST_LOGGED = 40_000
"""Letters of what the log has of a model that could not be read: of a bug, all of its traceback."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.reading")


@dataclass(frozen=True, slots=True)
class Description:
    """What a model takes and gives, and what it is made of."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    ops: Mapping[str, int]  # op -> nodes, the most common ones
    with_weights: bool  # False: a structure, or a model that has none

    @property
    def open_dims(self) -> tuple[str, ...]:
        """The dimensions that a job must bind, by name, or by input and axis where they have none."""
        found = [
            extent or f"{port.name}:{axis}"
            for port in self.inputs
            for axis, extent in enumerate(port.shape or ())
            if isinstance(extent, str)
        ]
        return tuple(dict.fromkeys(found))

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
    """What there is to tune in a model."""

    tasks: tuple[tuple[Task, int], ...]  # distinct ones, in order of first appearance, and how often each occurs
    assembly: Assembly  # of the tasks, by their number
    fallback: Mapping[str, int]  # op -> nodes without a native kernel
    native_nodes: int

    @staticmethod
    def from_json(data: Any) -> ModelTasks:
        """Raises TypeError, KeyError or ValueError on anything else."""
        items = data["tasks"]
        _require(isinstance(items, list) and len(items) <= MOST_TASKS and _is_count(data["native_nodes"], least=0))
        _require(all(_is_count(item["occurrences"]) for item in items))
        tasks = tuple((Task.from_json(item["task"]), item["occurrences"]) for item in items)
        _require(len({task.key for task, _ in tasks}) == len(tasks))
        assembly = Assembly.of_json([count for _, count in tasks], data["chains"])
        return ModelTasks(tasks, assembly, _counts(data["fallback"]), data["native_nodes"])


class Reader:
    """Reads models in a child, which is started when it is first needed. One thread may use it at a time."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S) -> None:
        limits = ChildLimits(memory_bytes, cpu_s=time_s, reply_bytes=ANSWER_BYTES, confined=True)
        self._confided = Confided(
            "tunewright.tuner.models.reading_child", "reading", "reader", limits, time_s, REQUESTS
        )

    def describe(self, path: Path) -> Description:
        """What a model takes and gives. Raises ModelError, whatever goes wrong with the model."""
        return self._read("describe", Description.from_json, path=str(path))

    def tasks(self, path: Path, dims: Mapping[str, int]) -> ModelTasks:
        """What there is to tune in a model, its open dimensions bound. Raises ModelError likewise."""
        return self._read("tasks", ModelTasks.from_json, path=str(path), dims=dict(dims))

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._confided.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, call: str, made: Callable[[Any], Result], **arguments: Any) -> Result:
        try:
            return self._confided.ask(call, made, **arguments)
        except Refusal as error:
            raise ModelError(one_line(str(error), MOST_MESSAGE)) from None
        except Unanswered as error:
            _log.warning("a model could not be read: %s", one_line(error.__cause__, MOST_LOGGED))
            raise ModelError(f"the model can't be read: {error}") from error.__cause__


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("that is not what a reader answers")


def _port(data: Any) -> Port:
    shape = data["shape"]
    _require(shape is None or (isinstance(shape, list) and all(map(_is_extent, shape))))
    _require(_is_name(data["name"]) and (data["dtype"] in DTYPES.values() or data["dtype"] == ""))
    return Port(data["name"], data["dtype"], None if shape is None else tuple(shape))


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

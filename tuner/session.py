"""InferenceSession: run a tuned model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tunewright.codegen.build import ObjectCache
from tunewright.codegen.host import detect
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import Target
from tunewright.db.sql_store import open_store
from tunewright.graph.ir import TensorType
from tunewright.graph.onnx_form import dtype_name
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds

from .compiled import CompiledModel, build_kernels
from .errors import InputError
from .lookup import lookup
from .model import Model, open_model
from .settings import settings

_schedule_log = logging.getLogger("tunewright.schedule")


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of a model."""

    name: str
    type: str  # numpy's name of the element type
    shape: tuple[int, ...] | None  # None where only running the model tells


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model runs in native kernels."""

    native: int  # nodes, after rewriting
    fallback: Mapping[str, int]  # op -> nodes that run through the reference evaluator: right, but slow
    tuned: int  # tasks whose schedule was found by tuning
    untuned: int  # tasks on their default schedule

    @property
    def share(self) -> float:
        """Native nodes among all."""
        return self.native / max(self.native + sum(self.fallback.values()), 1)


class InferenceSession:
    """A model ready to run, each task on the best schedule that the database knows, else on its default.

    `model` is a path or the ONNX bytes; `db` an SQLAlchemy URL (the default database where it is None); `threads` what
    the kernels run on (all available processors where None); `dims` binds dynamic dimensions by name. Raises
    ModelError for a model that can't be read, StoreError for a database that can't.
    """

    def __init__(
        self,
        model: Path | str | bytes,
        db: str | None = None,
        threads: int | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        opened = open_model(model, dims)
        target = detect(threads)
        with open_store(db or settings().db) as store:
            found = lookup(store, [task for task, _ in opened.tasks.values()], target)
        known = {key: one.schedule for key, one in found.items() if one.match == "exact"}
        self._start(opened, target, known, ObjectCache(settings().objects))

    @classmethod
    def of(
        cls, model: Model, target: Target, schedules: Mapping[str, Schedule], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model with these schedules by task key; the defaults for the others."""
        session = cls.__new__(cls)
        session._start(model, target, schedules, cache)  # noqa: SLF001
        return session

    def _start(self, model: Model, target: Target, known: Mapping[str, Schedule], cache: ObjectCache | None) -> None:
        self._graph = model.graph
        tuned = {
            key: known[key]
            for key, (task, _) in model.tasks.items()
            if key in known and holds(task, target, known[key])
        }
        self.schedules = {
            key: tuned.get(key) or default_schedule(task, target) for key, (task, _) in model.tasks.items()
        }
        for key, schedule in self.schedules.items():
            _schedule_log.debug("task %s: %s%s", key[:12], schedule, "" if key in tuned else " by default")
        artifacts = build_kernels(model, self.schedules, target, cache)
        self._model = CompiledModel(model, artifacts, shared_pool(target.threads))
        self._coverage = Coverage(
            native=model.native_nodes,
            fallback=model.fallback_ops,
            tuned=len(tuned),
            untuned=len(self.schedules) - len(tuned),
        )

    def coverage(self) -> Coverage:
        """How much of the model runs natively, and how much of that is tuned."""
        return self._coverage

    def get_inputs(self) -> list[Argument]:
        """What `run` takes."""
        return [self._argument(value.label, value.tensor) for value in self._graph.inputs]

    def get_outputs(self) -> list[Argument]:
        """What `run` returns."""
        return [self._argument(value.label, value.tensor) for value in self._graph.outputs]

    def _argument(self, label: str, tensor: str) -> Argument:
        kind = self._graph.type(tensor)
        return Argument(label, kind.dtype, kind.shape)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's.
        """
        arrays = {}
        for value in self._graph.inputs:
            if value.label not in feeds:
                raise InputError(f"input {value.label!r} is missing")
            arrays[value.tensor] = _checked(value.label, feeds[value.label], self._graph.type(value.tensor))
        labels = [value.label for value in self._graph.outputs]
        unknown = [name for name in feeds if all(name != value.label for value in self._graph.inputs)]
        unknown += [name for name in output_names or () if name not in labels]
        if unknown:
            raise InputError(f"the model has no {', '.join(map(repr, unknown))}")
        results = dict(zip(labels, self._model.run(arrays), strict=True))
        return [results[name] for name in (labels if output_names is None else output_names)]

    def close(self) -> None:
        """Unload the code."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(label: str, value: Any, kind: TensorType) -> Any:
    array = np.asarray(value)
    if dtype_name(array) != kind.dtype or array.shape != kind.shape:
        raise InputError(f"input {label!r} is {array.dtype}{list(array.shape)}, the model takes {kind}")
    return array

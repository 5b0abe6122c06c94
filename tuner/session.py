"""InferenceSession: run a tuned model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tunewright.codegen.build import ObjectCache
from tunewright.codegen.dtype import DType
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import Target
from tunewright.graph.ir import TensorType
from tunewright.graph.onnx_form import dtype_name
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds
from tunewright.workers.lock import HostLock

from .compiled import build_kernels, compile_model
from .errors import InputError, Refused
from .execution import CompiledModel
from .image import Image, Port
from .lookup import TRANSFERRED, Found, Match, measured_s
from .model import Model
from .place import Place
from .settings import settings

_schedule_log = logging.getLogger("tunewright.schedule")


OTHER_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types where they are not numpy's."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of a model, as ONNX Runtime's NodeArg describes it."""

    name: str
    type: str  # "tensor(float)", "tensor(int64)", ...
    shape: list[int] | None  # None where only running the model tells


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model runs in native kernels."""

    native: int  # nodes, after rewriting
    fallback: Mapping[str, int]  # op -> nodes that run through the reference evaluator: right, but slow
    tuned: int  # tasks whose schedule was the best measured for this target
    untuned: int  # on their default schedule, or on an untried one where the default fails
    transferred: int = 0  # the others: on what is best for a similar target or task, or on a pick of the cost model

    @property
    def share(self) -> float:
        """Native nodes among all."""
        return self.native / max(self.native + sum(self.fallback.values()), 1)


class InferenceSession:
    """A model ready to run, each task on the best schedule that the database knows, else on its default.

    Its methods are those of ONNX Runtime's class of that name. Threads may share a session; their runs take turns.

    `model` is a path or the ONNX bytes; `threads` what the kernels run on (all available processors where None); `dims`
    binds dynamic dimensions by name. Schedules come from one of `db`, an SQLAlchemy URL (the default database where
    nothing is given), `server`, the URL of a `tunewright serve`, and `lock`, a file that `tunewright lock` wrote. A
    server that is down, slow or broken costs at most a moment: what was kept of its answers is used, else defaults.
    `notes` says what went wrong there, and what is to be known of a lock file.

    Raises ModelError for a model that can't be read, StoreError for a database that can't, Refused for a lock file of
    another model and where a task is left without a schedule that may work.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        model: Path | str | bytes,
        db: str | None = None,
        threads: int | None = None,
        dims: Mapping[str, int] | None = None,
        *,
        server: str | None = None,
        lock: Path | str | None = None,
    ) -> None:
        place = Place(db, server, Path(lock) if lock is not None else None)
        prepared = place.prepare(model, dims, threads)
        self.notes = prepared.notes
        self._start_found(prepared.model, prepared.target, prepared.found, object_cache())

    @classmethod
    def of(
        cls, model: Model, target: Target, schedules: Mapping[str, Schedule], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model with these schedules by task key; the defaults for the others.

        What is open in the model is run apart.
        """
        session, model = cls.__new__(cls), model.merged(())
        held = {
            key: schedules[key]
            for key, (task, _) in model.tasks.items()
            if key in schedules and holds(task, target, schedules[key])
        }
        session._start(model, target, held, dict.fromkeys(held, Match.EXACT), cache)  # noqa: SLF001
        return session

    @classmethod
    def of_found(
        cls, model: Model, target: Target, found: Mapping[str, Found], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model on what `lookup` found. Raises Refused where a task has no schedule to run."""
        session = cls.__new__(cls)
        session._start_found(model, target, found, cache)  # noqa: SLF001
        return session

    def _start_found(self, model: Model, target: Target, found: Mapping[str, Found], cache: ObjectCache | None) -> None:
        model = model.chosen(measured_s(found))
        found = {key: found[key] for key in model.tasks}
        for one in found.values():
            if one.match == Match.NONE:
                raise Refused(
                    f"task {one.task.key[:12]} ({one.task.op}): its default and all else that was tried fail on "
                    f"{target}; tunewright tune with more trials may find a schedule that works"
                )
        schedules = {key: one.schedule for key, one in found.items()}
        self._start(model, target, schedules, {key: one.match for key, one in found.items()}, cache)

    def _start(
        self,
        model: Model,
        target: Target,
        schedules: Mapping[str, Schedule],
        matches: Mapping[str, Match],
        cache: ObjectCache | None,
    ) -> None:
        """`schedules` must be legal; tasks not in there get their default. `matches` says where they come from."""
        self.schedules = {
            key: schedules.get(key) or default_schedule(task, target) for key, (task, _) in model.tasks.items()
        }
        for key, schedule in self.schedules.items():
            match = matches.get(key, Match.DEFAULT)
            _schedule_log.debug("task %s: %s%s", key[:12], schedule, "" if match is Match.EXACT else f" by {match}")
        # Who times candidates on this machine is not disturbed. They share the folder of objects.
        with HostLock(cache.folder).building() if cache else nullcontext():
            artifacts = build_kernels(model, self.schedules, target, cache)
        self._load(compile_model(model, artifacts, target.threads), target)
        tuned = sum(match is Match.EXACT for match in matches.values())
        transferred = sum(match in TRANSFERRED for match in matches.values())
        self._coverage = Coverage(
            native=model.native_nodes,
            fallback=model.fallback_ops,
            tuned=tuned,
            untuned=len(self.schedules) - tuned - transferred,
            transferred=transferred,
        )

    def _load(self, image: Image, target: Target) -> None:
        self._model = CompiledModel(image, shared_pool(target.threads))
        kinds = [(port, port.value.kind) for port in image.inputs]
        self._wanted = [(port, _numpy_type(kind), kind.shape) for port, kind in kinds]

    def coverage(self) -> Coverage:
        """How much of the model runs natively, and how much of that is tuned."""
        return self._coverage

    def get_inputs(self) -> list[Argument]:
        """What `run` takes."""
        return [_argument(port) for port in self._model.image.inputs]

    def get_outputs(self) -> list[Argument]:
        """What `run` returns."""
        return [_argument(port) for port in self._model.image.outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's.
        """
        arrays = []
        for port, dtype, shape in self._wanted:
            try:
                array = input_feed[port.label]
            except KeyError:
                raise InputError(f"input {port.label!r} is missing") from None
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                array = _checked(port.label, array, port.value.kind)
            arrays.append(array)
        if output_names is None and len(input_feed) == len(arrays):
            return self._model.run(arrays)
        numbers = self._numbers(input_feed, output_names)
        results = self._model.run(arrays)
        return [results[number] for number in numbers]

    def _numbers(self, given: Iterable[str], wanted: Sequence[str] | None) -> list[int]:
        """The outputs of these names. Raises InputError where names, of inputs given too, are not the model's."""
        labels = [port.label for port in self._model.image.outputs]
        inputs = {port.label for port in self._model.image.inputs}
        unknown = [name for name in given if name not in inputs]
        unknown += [name for name in wanted or () if name not in labels]
        if unknown:
            raise InputError(f"the model has no {', '.join(map(repr, unknown))}")
        return [labels.index(name) for name in (labels if wanted is None else wanted)]

    def close(self) -> None:
        """Unload the code."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _argument(port: Port) -> Argument:
    kind = port.value.kind
    name = OTHER_NAMES.get(kind.dtype, kind.dtype.replace("float8_", "float8"))
    return Argument(port.label, f"tensor({name})", None if kind.shape is None else list(kind.shape))


def _numpy_type(kind: TensorType) -> np.dtype[Any] | None:
    """The type of arrays that need no look at them; numpy has one object for each."""
    dtype = DType.of(kind.dtype)
    return None if dtype is None else dtype.numpy


def _checked(label: str, value: Any, kind: TensorType) -> Any:
    try:
        array = np.asarray(value)
    except ValueError as error:  # nested lists of several lengths
        raise InputError(f"input {label!r} is no array: {error}") from error
    if dtype_name(array) != kind.dtype or array.shape != kind.shape:
        raise InputError(f"input {label!r} is {array.dtype}{list(array.shape)}, the model takes {kind}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def object_cache() -> ObjectCache | None:
    """The kernels kept on this machine; None where their folder can't be used, as each kernel can be built anew."""
    try:
        return ObjectCache(settings().objects)
    except OSError:
        return None

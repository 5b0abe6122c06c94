"""InferenceSession: run a tuned model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tunewright.codegen.dtype import DType
from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.runtime.residence import trim_compiler, trim_heap
from tunewright.codegen.target import CUDA
from tunewright.graph.ir import TensorType

from ..arguments import checked_dims, checked_model, checked_threads
from ..errors import InputError
from ..settings import settings
from ..targets import checked_target
from ..text import counted, counted_ops, printable
from .coverage import Coverage
from .execution import CompiledModel
from .image import Image
from .image_store import Answer, ImageStore
from .overriding import Origin
from .question import question

if TYPE_CHECKING:  # what a session that starts from an image does without, to start at once
    from tunewright.codegen.build import ObjectCache
    from tunewright.codegen.target import Target
    from tunewright.search_space.schedule import Schedule

    from ..lookup import Found
    from ..models.model import Model
    from .device_model import DeviceModel
    from .starting import Started

_schedule_log = logging.getLogger("tunewright.schedule")

SAMPLES, SAMPLE_S = 21, 2e-3
"""How often the kernels are timed, and about how long each time."""

MOST_CHOICES = 8
"""Choices of weights given that are kept compiled."""

OTHER_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types where they are not numpy's."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of a model, as ONNX Runtime's NodeArg describes it."""

    name: str
    type: str  # "tensor(float)", "tensor(int64)", ...
    shape: list[int] | None  # None where only running the model tells


class InferenceSession:
    """A model ready to run, each task on the best schedule that the database knows, or on what the cost model picks.

    Its methods are those of ONNX Runtime's class of that name. Threads may share a session; their runs take turns.

    `model` is a path or the ONNX bytes; `threads` what the kernels run on (all available processors where None); `dims`
    binds dynamic dimensions by name. With `target="cuda"` all kernels run on the first GPU of this machine, and what is
    float16 or bfloat16 stays so; else on the processor. Schedules come from one of `db`, an SQLAlchemy URL (the default
    database where nothing is given), `server`, the URL of a `tunewright serve`, and `lock`, a file that `tunewright
    lock` wrote. A server that is down, slow or broken costs at most a moment: what was kept of its answers is used,
    else defaults. `notes` says what went wrong there, what is to be known of a lock file, how many tasks run untuned,
    which nodes have no kernel, and whether there are more threads than processors: a line each, none where there is
    nothing to say.

    Raises ModelError for a model that can't be read, StoreError for a database that can't, Refused for arguments that
    mean nothing, for a lock file of another model, and where a task is left without a schedule that may work;
    BuildError where a compiler refuses a kernel, as another version may that it was not measured with. On a GPU also
    DeviceFault and Unloadable, from any method: what broke the device is not used any more by this process.
    """

    notes: tuple[str, ...] = ()
    _origin: Origin | None = None  # None: weights can't be given

    def __init__(
        self,
        model: Path | str | bytes,
        *,
        db: str | None = None,
        threads: int | None = None,
        dims: Mapping[str, int] | None = None,
        server: str | None = None,
        lock: Path | str | None = None,
        target: str = "auto",
    ) -> None:
        lock = Path(lock) if lock is not None else None
        model, dims, threads = checked_model(model), checked_dims(dims), checked_threads(threads)
        is_watched = _schedule_log.isEnabledFor(logging.DEBUG)  # who looks on sees it all made
        images = None if checked_target(target) == CUDA or is_watched else image_store()
        origin = Origin.of(model, db, server, lock, dims, threads, target)
        asked = None
        if images is not None and server is None and (db is None or lock is None):
            asked = question(model, dims, detect(threads), db or settings().db, lock)
            trim_compiler()  # what loading it took
        if images is not None and asked is not None and self._start_kept(images, asked):
            self._origin = origin if self._defaults else None
            return
        from ..lookup.place import Place
        from .starting import start

        started = start(model, Place(db, server, lock), dims, threads, target, object_cache(), images)
        self._start(started)
        self._origin = origin if self._defaults else None
        trim_heap()  # the model as it was read
        trim_compiler()
        if images is not None and asked is not None and started.name:
            images.remember(asked, started.answer)

    @classmethod
    def of(
        cls, model: Model, target: Target, schedules: Mapping[str, Schedule], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model with these schedules by task key; the defaults for the others.

        What is open in the model is run apart.
        """
        from .starting import start_with

        session = cls.__new__(cls)
        session._start(start_with(model, target, schedules, cache))  # noqa: SLF001
        return session

    @classmethod
    def of_found(
        cls, model: Model, target: Target, found: Mapping[str, Found], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model on what `lookup` found. Raises Refused where a task has no schedule to run."""
        from .starting import start_found

        session = cls.__new__(cls)
        session._start(start_found(model, target, found, cache))  # noqa: SLF001
        return session

    def _start_kept(self, images: ImageStore, asked: str) -> bool:
        """Start as the last session did that was asked for the same, if that is known."""
        answer = images.answer(asked)
        kept = images.get(answer.image, answer.threads) if answer is not None else None
        if answer is None or kept is None:
            return False
        pool_functions(kept.pool_code)
        self._load(kept.image, answer)
        return True

    def _start(self, started: Started) -> None:
        if started.target.kind != CUDA:
            self._load(started.image, started.answer)
            return
        from tunewright.codegen.cuda import driver

        from .device_model import DeviceModel

        self._take(DeviceModel(started.image, driver.driver()), started.answer)

    def _load(self, image: Image, answer: Answer) -> None:
        """Run it on the processor."""
        self._take(CompiledModel(image, shared_pool(answer.threads)), answer)
        self.notes += tuple(_crowded(answer.threads))

    def _take(self, model: CompiledModel | DeviceModel, answer: Answer) -> None:
        self._model = model
        self.notes = (*answer.notes, *_remarks(answer.coverage))
        self._coverage, self._schedules = answer.coverage, answer.schedules
        self._defaults = {default.label: default.kind for default in answer.defaults}
        self._overriding: dict[frozenset[str], InferenceSession] = {}  # which weights are given -> what runs then
        self._choosing, self._is_closed = threading.Lock(), False
        kinds = [(port, port.value.kind) for port in model.image.inputs]
        self._wanted = [(port, _numpy_type(kind), kind.shape) for port, kind in kinds]

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedule that each task runs on, by task key."""
        from tunewright.search_space.schedule import Schedule

        return {key: Schedule.from_json(data) for key, data in self._schedules.items()}

    def coverage(self) -> Coverage:
        """How much of the model runs natively, and how much of that is tuned."""
        return self._coverage

    def get_inputs(self) -> list[Argument]:
        """What `run` takes."""
        return [_argument(port.label, port.value.kind) for port in self._model.image.inputs]

    def get_overridable_initializers(self) -> list[Argument]:
        """The weights that `run` takes in the place of the model's own: those that are inputs of the model as well."""
        return [_argument(label, kind) for label, kind in self._defaults.items()] if self._origin else []

    def get_outputs(self) -> list[Argument]:
        """What `run` returns."""
        return [_argument(port.label, port.value.kind) for port in self._model.image.outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None. Inputs are given by name.

        So are weights that are inputs of the model as well, for this run. The first run that is given them, and each
        other choice of them, reads the model once more and compiles a plan for it; those of the last few are kept.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's, and for
        outputs that it does not have; for weights what opening the session raises, and Refused where its file has
        changed.
        """
        arrays = self._arrays(input_feed)
        if output_names is None and len(input_feed) == len(arrays):
            return self._model.run(arrays)
        if given := self._weights_in(input_feed):
            with self._choosing:
                return self._overridden(given, input_feed).run(output_names, input_feed)
        numbers = self._numbers(input_feed, output_names)
        results = self._model.run(arrays)
        return [results[number] for number in numbers]

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        """Seconds of a run that its kernels take, with warm caches: the median of samples.

        From a native loop; on a GPU by its events, without what is brought there and back.

        Raises InputError where inputs are missing, or of another type or shape than the model's.
        """
        arrays = self._arrays(input_feed)
        if given := self._weights_in(input_feed):
            with self._choosing:
                return self._overridden(given, input_feed).kernels_s(input_feed)
        [once_s] = self._model.times_s(arrays, samples=1, repeats=2)
        repeats = max(1, round(SAMPLE_S / max(once_s, 1e-9)))
        return median(self._model.times_s(arrays, SAMPLES, repeats))

    def _arrays(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """The inputs, as the model wants them."""
        arrays = []
        for port, dtype, shape in self._wanted:
            try:
                array = input_feed[port.label]
            except (KeyError, TypeError, IndexError) as error:  # the last two where it is no mapping
                if fault := self._misfed(input_feed):
                    raise InputError(fault) from None
                said = printable(f"{type(error).__name__}: {error}")  # a mapping that fails for what it says it has
                raise InputError(f"input {port.label!r} could not be got: {said}") from error
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                array = _checked(port.label, array, port.value.kind)
            arrays.append(array)
        return arrays

    def _weights_in(self, input_feed: Mapping[str, Any]) -> frozenset[str]:
        """The weights among what is given."""
        if self._origin is None or not isinstance(input_feed, Mapping):
            return frozenset()
        return frozenset(label for label in self._defaults if label in input_feed)

    def _overridden(self, given: frozenset[str], input_feed: Mapping[str, Any]) -> InferenceSession:
        """A session of the model in which these weights are inputs. Hold `_choosing`. Raises as `run`."""
        if self._origin is None or self._is_closed:
            raise RuntimeError("the program is closed; open the model again to run it")
        for label in given:
            _checked(label, input_feed[label], self._defaults[label])
        made = self._overriding.pop(given, None)
        if made is None:
            made = type(self).__new__(type(self))
            made._start(self._origin.started(given, self.schedules, object_cache()))  # noqa: SLF001
        self._overriding[given] = made  # the newest is the last
        if len(self._overriding) > MOST_CHOICES:
            self._overriding.pop(next(iter(self._overriding))).close()
        return made

    def _misfed(self, given: Any) -> str:
        """What is wrong with the names of inputs given: one line for people; empty where nothing is."""
        inputs, weights = self._model.image.inputs, list(self._defaults if self._origin else ())
        if isinstance(given, Mapping):
            labels, names = [port.label for port in inputs], list(given)
            unknown = ", ".join(repr(name) for name in names if name not in (*labels, *weights))
            missing = ", ".join(repr(label) for label in labels if label not in names)
            faults = [f"the model has no input {unknown}"] * bool(unknown)
            fault = ", and ".join(faults + [f"input {missing} is missing"] * bool(missing))
        else:
            fault = f"inputs are given by name, in a dict, not a {type(given).__name__}"
        if not fault:
            return ""
        takes = ", ".join(f"{port.label!r} ({port.value.kind})" for port in inputs) or "none"
        given_too = f", and in place of its own weights {', '.join(map(repr, weights))}" if weights else ""
        return f"{fault}; the model takes {takes}{given_too}"

    def _numbers(self, given: Mapping[str, Any], wanted: Sequence[str] | None) -> list[int]:
        """The outputs of these names. Raises InputError where names, of inputs given too, are not the model's."""
        if fault := self._misfed(given):
            raise InputError(fault)
        if isinstance(wanted, str):
            raise InputError(f"outputs are named in a list, [{wanted!r}], or None for all")
        labels = [port.label for port in self._model.image.outputs]
        if wanted is None:
            return list(range(len(labels)))
        numbers = {label: number for number, label in enumerate(labels)}
        unknown = ", ".join(repr(name) for name in wanted if not isinstance(name, str) or name not in numbers)
        if unknown:
            raise InputError(f"the model has no output {unknown}; its outputs are {', '.join(map(repr, labels))}")
        return [numbers[name] for name in wanted]

    def close(self) -> None:
        """Unload the code."""
        with self._choosing:
            for overriding in self._overriding.values():
                overriding.close()
            self._is_closed = True
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remarks(coverage: Coverage) -> Iterator[str]:
    """What keeps a session from being as fast as it can be, a line each."""
    tasks = coverage.tuned + coverage.transferred + coverage.untuned
    if coverage.untuned:
        which = f"{coverage.untuned} of {counted(tasks, 'task runs', 'tasks run')} untuned"
        yield f"{which}; tuning for these dims and threads may make them faster"
    if coverage.fallback:
        nodes = sum(coverage.fallback.values())
        have, are = counted(nodes, "node has", "nodes have"), "is" if nodes == 1 else "are"
        yield f"{have} no kernel and {are} run by ONNX's reference evaluator, slowly: {counted_ops(coverage.fallback)}"


def _crowded(threads: int) -> Iterator[str]:
    cores = len(available_cores())
    if threads > cores:
        yield f"threads={threads} is more than the {counted(cores, 'processor')} that this process may use"


def _argument(label: str, kind: TensorType) -> Argument:
    name = OTHER_NAMES.get(kind.dtype, kind.dtype.replace("float8_", "float8"))
    return Argument(label, f"tensor({name})", None if kind.shape is None else list(kind.shape))


def _numpy_type(kind: TensorType) -> np.dtype[Any] | None:
    """The type of arrays that need no look at them; numpy has one object for each."""
    dtype = DType.of(kind.dtype)
    return None if dtype is None else dtype.numpy


def _checked(label: str, value: Any, kind: TensorType) -> Any:
    from tunewright.graph.onnx_form import dtype_name  # imports onnx, and most arrays are what is wanted at first sight

    try:
        array = np.asarray(value)
    except ValueError as error:  # nested lists of several lengths
        raise InputError(f"input {label!r} is no array: {error}") from error
    if dtype_name(array) != kind.dtype or array.shape != kind.shape:
        raise InputError(f"input {label!r} is {array.dtype}{list(array.shape)}, the model takes {kind}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def image_store() -> ImageStore | None:
    """The compiled models kept on this machine; None where their folder can't be used."""
    try:
        return ImageStore(settings().images)
    except OSError:
        return None


def object_cache() -> ObjectCache | None:
    """The kernels kept on this machine; None where their folder can't be used, as each kernel can be built anew."""
    from tunewright.codegen.build import ObjectCache

    try:
        return ObjectCache(settings().objects)
    except OSError:
        return None

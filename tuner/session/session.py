"""InferenceSession: run a tuned model."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.memory import trim_compiler, trim_heap
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA
from tunewright.graph.ir import TensorType

from ..arguments import check_dims, check_model, check_threads
from ..errors import InputError, Refused
from ..settings import settings
from ..targets import check_target
from ..text import counted, op_counts, printable
from .evaluation import is_installed
from .execution import CompiledModel
from .image import Image
from .image_store import CacheEntry, Coverage, ImageStore, file_state, session_key

if TYPE_CHECKING:
    from tunewright.codegen.llvm.build import ObjectCache
    from tunewright.codegen.target import Target
    from tunewright.search_space.schedule import Schedule

    from ..lookup.result import LookupResult
    from ..models.model import Model
    from .device_model import DeviceModel
    from .executable import Executable


@dataclass(frozen=True, slots=True)
class Origin:
    """The arguments of a session, by which its model can be opened again, with other weights.

    A weight that is also an input of the model is what the input is by default: whoever runs the model may give
    another. Hardly anybody does, and old files list all of their weights so. They are constants therefore, folded and
    packed like any; a run that is given some has a plan of its own, in which these are inputs.
    """

    model: Path | bytes
    db: str | None
    server: str | None
    lock: Path | None
    dims: Mapping[str, int]
    threads: int | None
    target: str
    state: list[int] | None  # of the model's file, when the session was opened

    @staticmethod
    def state_of(model: Path | bytes) -> list[int] | None:
        """The state of the model's file, which changes with the file."""
        return None if isinstance(model, bytes) else file_state(model)

    def executable(
        self, weights: Collection[str], schedules: Mapping[str, Schedule], objects: ObjectCache | None
    ) -> Executable:
        """The model with these weights as inputs. Where a lock file pins `schedules`, other tasks run on their default.

        Raises what `open_executable` raises, and Refused where the file has changed.
        """
        from ..lookup.lockfile import read_lock
        from ..lookup.source import ScheduleSource
        from ..models.model import open_for
        from ..targets import local_target
        from .executable import executable_of_results, executable_of_schedules

        if (state := self.state_of(self.model)) != self.state:
            change = "is gone" if state is None else "has changed since the session was opened; open it again"
            raise Refused(f"{str(self.model)!r} {change}")
        if self.lock is None:
            source = ScheduleSource(self.db, self.server)
            prepared = source.prepare(self.model, self.dims, self.threads, self.target, weights)
            return executable_of_results(prepared.model, prepared.target, prepared.results, objects)
        target = local_target(self.target, self.threads)
        dims = self.dims or read_lock(self.lock).dims
        model = open_for(target, self.model, dims, weights)
        return executable_of_schedules(model, target, schedules, objects)


_schedule_log = logging.getLogger("tunewright.schedule")

SAMPLES, SAMPLE_S = 21, 2e-3
"""Number of samples of the kernels' time, and the seconds of one."""

MOST_CHOICES = 8
"""Sets of overridden weights whose models are kept compiled."""

OTHER_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types where they are not numpy's."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model, as ONNX Runtime's NodeArg describes it."""

    name: str
    type: str  # "tensor(float)", "tensor(int64)", ...
    shape: list[int] | None  # None where only running the model tells


class InferenceSession:
    """A model ready to run, each task on the best schedule that the database knows, or on what the cost model picks.

    Its methods are those of ONNX Runtime's class of that name. Threads may share a session; their runs take turns.

    `model` is a path or the ONNX bytes; `threads` what the kernels run on (all available processors where None); `dims`
    binds dynamic dimensions by name, and `bind` gives inputs of one number their value: they are inputs no more, and
    what hangs on them alone is computed now, such as the condition of an `If`. With `target="cuda"` all kernels run on
    the first GPU of this machine, and what is float16 or bfloat16 stays so; else on the processor. Schedules come
    from one of `db`, an SQLAlchemy URL (the default database where nothing is given), `server`, the URL of a
    `tunewright serve`, and `lock`, a file that `tunewright lock` wrote. A server that is down, slow or broken costs
    at most a moment: what was kept of its answers is used, else defaults. `notes` says what went wrong there, what
    is to be known of a lock file, how many tasks run untuned, which nodes have no kernel, and whether there are
    more threads than processors: a line each, none where there is nothing to say.

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
        bind: Mapping[str, int] | None = None,
        server: str | None = None,
        lock: Path | str | None = None,
        target: str = "auto",
    ) -> None:
        lock = Path(lock) if lock is not None else None
        model, dims, threads = check_model(model), check_dims(dims, bind), check_threads(threads)
        is_watched = _schedule_log.isEnabledFor(logging.DEBUG)  # who looks on sees it all made
        images = None if check_target(target) == CUDA or is_watched else image_store()
        source = model if isinstance(model, bytes) else Path(model).absolute()  # the working folder may change
        pinned = lock.absolute() if lock is not None else None
        origin = Origin(source, db, server, pinned, dims, threads, target, Origin.state_of(source))
        key = None
        if images is not None and server is None and (db is None or lock is None):
            key = session_key(model, dims, detect(threads), db or settings().db, lock)
            trim_compiler()  # what loading it took
        if images is not None and key is not None and self._start_from_image(images, key):
            self._origin = origin if self._defaults else None
            return
        from ..lookup.source import ScheduleSource
        from .executable import open_executable

        executable = open_executable(
            model, ScheduleSource(db, server, lock), dims, threads, target, object_cache(), images
        )
        self._start(executable)
        self._origin = origin if self._defaults else None
        trim_heap()  # the model as it was read
        trim_compiler()
        if images is not None and key is not None and executable.name:
            images.put_entry(key, executable.entry)

    @classmethod
    def of(
        cls, model: Model, target: Target, schedules: Mapping[str, Schedule], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model with these schedules by task key; the defaults for the others.

        What is open in the model is run apart.
        """
        from .executable import executable_of_schedules

        session = cls.__new__(cls)
        session._start(executable_of_schedules(model, target, schedules, cache))  # noqa: SLF001
        return session

    @classmethod
    def of_results(
        cls, model: Model, target: Target, results: Mapping[str, LookupResult], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model on lookup results. Raises Refused where a task has no schedule to run."""
        from .executable import executable_of_results

        session = cls.__new__(cls)
        session._start(executable_of_results(model, target, results, cache))  # noqa: SLF001
        return session

    def _start_from_image(self, images: ImageStore, key: str) -> bool:
        """Start from the stored image of the key, if there is one."""
        entry = images.entry(key)
        stored = images.get(entry.image, entry.threads) if entry is not None else None
        if entry is None or stored is None:
            return False
        pool_functions(stored.pool_code)
        self._start_on_processor(stored.image, entry)
        return True

    def _start(self, executable: Executable) -> None:
        if executable.target.kind != CUDA:
            self._start_on_processor(executable.image, executable.entry)
            return
        from tunewright.codegen.cuda import driver

        from .device_model import DeviceModel

        self._adopt(DeviceModel(executable.image, driver.driver()), executable.entry)

    def _start_on_processor(self, image: Image, entry: CacheEntry) -> None:
        """Run it on the processor."""
        self._adopt(CompiledModel(image, shared_pool(entry.threads)), entry)
        self.notes += tuple(_thread_notes(entry.threads))

    def _adopt(self, model: CompiledModel | DeviceModel, entry: CacheEntry) -> None:
        self._model = model
        self._coverage = replace(entry.coverage, vendor=dict(Counter(model.vendor_ops)))
        self.notes = (*entry.notes, *_coverage_notes(self._coverage))
        self._schedules = entry.schedules
        self._defaults = {default.label: default.kind for default in entry.defaults}
        self._override_sessions: dict[
            frozenset[str], InferenceSession
        ] = {}  # which weights are given -> what runs then
        self._override_lock, self._is_closed = threading.Lock(), False
        ports = [(port, port.value.kind) for port in model.image.inputs]
        self._input_types = [(port, _numpy_type(kind), kind.shape) for port, kind in ports]

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedule that each task runs on, by task key."""
        from tunewright.search_space.schedule import Schedule

        return {key: Schedule.from_json(data) for key, data in self._schedules.items()}

    def coverage(self) -> Coverage:
        """The coverage of the model by native and by tuned kernels."""
        return self._coverage

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that `run` takes."""
        return [_argument(port.label, port.value.kind) for port in self._model.image.inputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The weights that `run` takes in the place of the model's own: those that are inputs of the model as well."""
        return [_argument(label, kind) for label, kind in self._defaults.items()] if self._origin else []

    def get_outputs(self) -> list[NodeArg]:
        """The outputs that `run` returns."""
        return [_argument(port.label, port.value.kind) for port in self._model.image.outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None. Inputs are given by name.

        So are weights that are inputs of the model as well, for this run. The first run that is given them, and each
        other choice of them, reads the model once more and compiles a plan for it; those of the last few are kept.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's, and for
        outputs that it does not have; Refused where the session is closed; for weights what opening it raises, and
        Refused where its file has changed.
        """
        arrays = self._arrays(input_feed)
        if output_names is None and len(input_feed) == len(arrays):
            return self._model.run(arrays)
        if weights := self._weights_in(input_feed):
            with self._override_lock:
                return self._override_session(weights, input_feed).run(output_names, input_feed)
        numbers = self._numbers(input_feed, output_names)
        results = self._model.run(arrays)
        return [results[number] for number in numbers]

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        """Seconds of a run that its kernels take, with warm caches: the median of samples.

        From a native loop; on a GPU by its events, without what is brought there and back.

        Raises InputError where inputs are missing, or of another type or shape than the model's.
        """
        arrays = self._arrays(input_feed)
        if weights := self._weights_in(input_feed):
            with self._override_lock:
                return self._override_session(weights, input_feed).kernels_s(input_feed)
        [once_s] = self._model.times_s(arrays, samples=1, repeats=2)
        repeats = max(1, round(SAMPLE_S / max(once_s, 1e-9)))
        return median(self._model.times_s(arrays, SAMPLES, repeats))

    def _arrays(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """The inputs, as the model wants them. Raises Refused where the session is closed."""
        if self._is_closed:
            raise Refused("the session is closed; open the model again to run it")
        arrays = []
        for port, dtype, shape in self._input_types:
            try:
                array = input_feed[port.label]
            except (KeyError, TypeError, IndexError) as error:  # the last two where it is no mapping
                if fault := self._feed_fault(input_feed):
                    raise InputError(fault) from None
                text = printable(f"{type(error).__name__}: {error}")  # a mapping that fails for what it says it has
                raise InputError(f"input {port.label!r} could not be got: {text}") from error
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                array = _check_array(port.label, array, port.value.kind)
            arrays.append(array)
        return arrays

    def _weights_in(self, input_feed: Mapping[str, Any]) -> frozenset[str]:
        """The weights among what is given."""
        if self._origin is None or not isinstance(input_feed, Mapping):
            return frozenset()
        return frozenset(label for label in self._defaults if label in input_feed)

    def _override_session(self, weights: frozenset[str], input_feed: Mapping[str, Any]) -> InferenceSession:
        """A session of the model in which these weights are inputs. Hold `_choosing`. Raises as `run`."""
        assert self._origin is not None
        if self._is_closed:
            raise Refused("the session is closed; open the model again to run it")
        for label in weights:
            _check_array(label, input_feed[label], self._defaults[label])
        session = self._override_sessions.pop(weights, None)
        if session is None:
            session = type(self).__new__(type(self))
            session._start(self._origin.executable(weights, self.schedules, object_cache()))  # noqa: SLF001
        self._override_sessions[weights] = session  # the newest is the last
        if len(self._override_sessions) > MOST_CHOICES:
            self._override_sessions.pop(next(iter(self._override_sessions))).close()
        return session

    def _feed_fault(self, input_feed: Any) -> str:
        """The fault in the names of an input feed: one line for people; empty where there is none."""
        inputs, weights = self._model.image.inputs, list(self._defaults if self._origin else ())
        if isinstance(input_feed, Mapping):
            labels, names = [port.label for port in inputs], list(input_feed)
            unknown = ", ".join(repr(name) for name in names if name not in (*labels, *weights))
            missing = ", ".join(repr(label) for label in labels if label not in names)
            faults = [f"the model has no input {unknown}"] * bool(unknown)
            fault = ", and ".join(faults + [f"input {missing} is missing"] * bool(missing))
        else:
            fault = f"inputs are given by name, in a dict, not a {type(input_feed).__name__}"
        if not fault:
            return ""
        takes = ", ".join(f"{port.label!r} ({port.value.kind})" for port in inputs) or "none"
        weights_text = f", and in place of its own weights {', '.join(map(repr, weights))}" if weights else ""
        return f"{fault}; the model takes {takes}{weights_text}"

    def _numbers(self, input_feed: Mapping[str, Any], output_names: Sequence[str] | None) -> list[int]:
        """The outputs of these names. Raises InputError where names, of inputs given too, are not the model's."""
        if fault := self._feed_fault(input_feed):
            raise InputError(fault)
        if isinstance(output_names, str):
            raise InputError(f"outputs are named in a list, [{output_names!r}], or None for all")
        labels = [port.label for port in self._model.image.outputs]
        if output_names is None:
            return list(range(len(labels)))
        numbers = {label: number for number, label in enumerate(labels)}
        unknown = ", ".join(repr(name) for name in output_names if not isinstance(name, str) or name not in numbers)
        if unknown:
            raise InputError(f"the model has no output {unknown}; its outputs are {', '.join(map(repr, labels))}")
        return [numbers[name] for name in output_names]

    def close(self) -> None:
        """Unload the code."""
        with self._override_lock:
            for overriding in self._override_sessions.values():
                overriding.close()
            self._is_closed = True
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _coverage_notes(coverage: Coverage) -> Iterator[str]:
    """Notes on untuned tasks and on nodes without a kernel."""
    tasks = coverage.tuned + coverage.transferred + coverage.untuned + coverage.kept
    if coverage.untuned:
        which = f"{coverage.untuned} of {counted(tasks, 'task runs', 'tasks run')} untuned"
        yield f"{which}; tuning for these dims and threads may make them faster"
    if coverage.vendor:
        yield _fallback_note(coverage.vendor, "ONNX Runtime")
    if others := Counter(coverage.fallback) - Counter(coverage.vendor):
        advice = "" if is_installed() else "; where the package onnxruntime is installed, that runs them"
        yield _fallback_note(others, "ONNX's reference evaluator, slowly") + advice


def _fallback_note(nodes: Mapping[str, int], runtime: str) -> str:
    count = sum(nodes.values())
    have, are = counted(count, "node has", "nodes have"), "is" if count == 1 else "are"
    return f"{have} no kernel and {are} run by {runtime}: {op_counts(nodes)}"


def _thread_notes(threads: int) -> Iterator[str]:
    cores = len(available_cores())
    if threads > cores:
        yield f"threads={threads} is more than the {counted(cores, 'processor')} that this process may use"


def _argument(label: str, kind: TensorType) -> NodeArg:
    name = OTHER_NAMES.get(kind.dtype, kind.dtype.replace("float8_", "float8"))
    return NodeArg(label, f"tensor({name})", None if kind.shape is None else list(kind.shape))


def _numpy_type(kind: TensorType) -> np.dtype[Any] | None:
    """The type of arrays that need no look at them; numpy has one object for each."""
    dtype = DType.of(kind.dtype)
    return None if dtype is None else dtype.numpy


def _check_array(label: str, value: Any, kind: TensorType) -> Any:
    from tunewright.graph.evaluation.onnx_form import (
        dtype_name,  # imports onnx, and most arrays are what is wanted at first sight
    )

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
    from tunewright.codegen.llvm.build import ObjectCache

    try:
        return ObjectCache(settings().objects)
    except OSError:
        return None

"""InferenceSession: run a tuned model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

from tunewright.codegen.host import detect
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.memory import trim_compiler, trim_heap
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA
from tunewright.graph.ir import TensorType
from tunewright.graph.numerics import Precision

from ..arguments import (
    check_dims,
    check_flag,
    check_model,
    check_path,
    check_precision,
    check_source,
    check_threads,
    check_timeout,
    sizes_of,
)
from ..errors import Refused
from ..settings import settings
from ..targets import check_target, local_target
from .caches import image_store, object_cache
from .execution import CompiledModel
from .image import Image
from .image_store import CacheEntry, Coverage, ImageStore, compiler_of, session_key
from .maps import as_maps
from .node_arg import NodeArg, check_array
from .notes import coverage_notes, thread_notes
from .origin import Origin
from .ports import Ports

if TYPE_CHECKING:
    from tunewright.codegen.llvm.build import ObjectCache
    from tunewright.codegen.target import Target
    from tunewright.search_space.schedule import Schedule
    from tunewright.workers.sandbox.process import Child

    from ..lookup.result import LookupResult
    from ..lookup.source import PreparedModel
    from ..models.model import Model
    from .compilation import Compilation
    from .device_model import DeviceModel
    from .executable import Executable
    from .open_model import OpenModel
    from .stand_in import StandIn
    from .vendor import VendorRunner


SAMPLES, SAMPLE_S = 21, 2e-3
"""Number of samples of the kernels' time, and the seconds of one."""

MOST_CHOICES = 8
"""Sets of overridden weights whose models are kept compiled."""

CLOSED = "the session is closed; open the model again to run it"


class InferenceSession:
    """A model ready to run, each task on the best schedule that the database knows, or on what the cost model picks.

    Its methods are those of ONNX Runtime's class of that name. Threads may share a session.

    With `background` a model that was not compiled before is compiled while the session is in use. Until then `run` has
    ONNX Runtime compute the outputs, as the model is given, which may differ in their last bits, and where a precision
    is asked for by as much as that rounds; where that is not installed, does not take the model, or weights are given,
    it waits, as all else does that tells of the kernels. `ready` says whether they are there, `wait` waits for it. What
    opening raises is raised by `wait` and by each `run` then.

    Where dimensions stay open, runs may be of any size, and each gets kernels: see `OpenModel`.

    Where the model's last job took a vendor's runtime, that runs it; inputs on which it fails go through the kernels.
    That computes a model as it is given, and runs none of another precision.

    `model` is a path or the ONNX bytes; `threads` what the kernels run on (all available processors where None); `dims`
    binds open dimensions by name, and `bind` gives inputs of one number their value: they are inputs no more, and
    what hangs on them alone is computed now, such as the condition of an `If`. With `target="cuda"` all kernels run on
    the first GPU of this machine, and what is float16 or bfloat16 stays so; else on the processor. `precision` is
    what products may be computed in, one of `Precision`: "as given", "bf16" or "int8 activations". Schedules come
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

    _origin: Origin | None = None  # None: weights can't be given
    _compilation: Compilation | None = None  # None from when the session is ready
    _stand_in: StandIn | None = None  # what answers until then
    _has_stand_in = True  # where there may be one
    _process: Child | None = None  # what compiles in the background; None: one for this session alone
    _runner: CompiledModel | DeviceModel | OpenModel | VendorRunner
    _open_model: OpenModel | None = None  # None: all dimensions are bound
    _defaults: Mapping[str, TensorType] = MappingProxyType({})
    _vendor_notes: tuple[str, ...] = ()  # on the vendor's runtime that the model's last job took
    _vendor_bytes = 0  # what the model takes in a vendor's runtime that runs it, about

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
        precision: str = Precision.AS_GIVEN,
        background: bool = False,
    ) -> None:
        check_source(db, server)
        lock = check_path("lock", lock)
        model, dims, threads = check_model(model), check_dims(dims, bind), check_threads(threads)
        check_target(target)
        precision = check_precision(precision)
        background = check_flag("background", background)
        images = image_store()
        source = model if isinstance(model, bytes) else Path(model).absolute()  # the working folder may change
        pinned = lock.absolute() if lock is not None else None
        origin = Origin(source, db, server, pinned, dims, threads, target, precision, Origin.state_of(source))
        key, has_started = None, False
        if images is not None and server is None and (db is None or lock is None):
            device = local_target(target, threads)
            key = session_key(model, dims, device, db or settings().db, lock, precision)
            trim_compiler()  # what loading it took
            has_started = key is not None and self._start_from_image(images, key, device)
        if has_started:
            self._keep_origin(origin)
            return
        self._start_cold(model, origin, images, key, background)

    def _start_cold(
        self, model: Path | str | bytes, origin: Origin, images: ImageStore | None, key: str | None, background: bool
    ) -> None:
        """Start from the model, with what is to be known of it once it is compiled."""

        def compile_here() -> Executable:
            from ..lookup.source import ScheduleSource
            from .executable import open_executable

            source = ScheduleSource(origin.db, origin.server, origin.lock)
            return open_executable(
                model,
                source,
                origin.dims,
                origin.threads,
                origin.target,
                origin.precision,
                object_cache(),
                images,
            )

        is_there = isinstance(origin.model, bytes) or origin.state is not None
        is_early = background and origin.target != CUDA  # a GPU's model is ready when the session is there
        if is_early and images is not None and is_there and origin.has_one_place:
            self._start_in_background(origin, images, key, compile_here)
            return
        from tunewright.graph.onnx_import import OpenDimensionsError

        try:
            executable = compile_here()
        except OpenDimensionsError:
            if not self._start_open(origin):
                raise
            return
        self._start(executable)
        self._settle(executable.entry, origin, images, key)
        trim_heap()  # the model as it was read
        trim_compiler()

    def _start_in_background(
        self, origin: Origin, images: ImageStore, key: str | None, compile_here: Callable[[], Executable]
    ) -> None:
        from .compilation import Compilation
        from .stand_in import StandIn

        if self._has_stand_in and len(sizes_of(origin.dims)) == len(origin.dims):  # no inputs are bound
            self._stand_in = StandIn.of(origin.model, origin.dims, detect(origin.threads).threads)
        if self._stand_in is not None:
            self._ports = Ports(self._stand_in.inputs, self._stand_in.outputs)
        elif self._has_stand_in and self._start_open(origin):
            return
        self._begin()
        self._opening = origin, images, key
        self._compilation = Compilation(origin, images, compile_here, self._process)
        self._end = finalize(self, self._compilation.close)  # at the end of the process too

    def _start_open(self, origin: Origin) -> bool:
        """Start with dimensions that stay open; False where there are none, or a lock file binds them."""
        if origin.lock is not None:
            return False
        from .open_model import OpenModel

        def open_at(dims: Mapping[str, int], process: Child) -> InferenceSession:
            origin.check_unchanged()
            return _SizedSession(
                process,
                origin.model,
                db=origin.db,
                threads=origin.threads,
                dims={**origin.dims, **dims},
                server=origin.server,
                target=origin.target,
                precision=origin.precision,
                background=True,
            )

        open_model = OpenModel.of(origin, open_at)
        if open_model is None:
            return False
        self._begin()
        self._runner = self._open_model = open_model
        self._ports = Ports(open_model.inputs, open_model.outputs)
        self._has_maps = False  # the sessions of each size make dicts
        return True

    def _settle(self, entry: CacheEntry, origin: Origin, images: ImageStore | None, key: str | None) -> None:
        """Keep what a session of the same model is to start from, and what other weights take."""
        self._keep_origin(origin)
        if images is not None and key is not None and entry.image:
            images.put_entry(key, entry)

    def _keep_origin(self, origin: Origin) -> None:
        """Take weights that are inputs as well from runs, too; run in the runtime that the model's job took."""
        self._take_vendor(origin.model, origin.dims)
        if self._defaults:
            self._origin = origin
            self._ports = Ports(self._ports.inputs, self._ports.outputs, self._defaults)

    @classmethod
    def of(
        cls, model: Model, target: Target, schedules: Mapping[str, Schedule], cache: ObjectCache | None = None
    ) -> Self:
        """A session of an opened model with these schedules by task key; the defaults for the others.

        What is open in the model is run apart.
        """
        from .executable import executable_of_schedules

        return cls.of_executable(executable_of_schedules(model, target, schedules, cache))

    @classmethod
    def of_executable(cls, executable: Executable, vendor: StandIn | None = None) -> Self:
        """A session of a compiled model, which `vendor` runs where it is given."""
        session = cls.__new__(cls)
        session._start(executable)  # noqa: SLF001
        if vendor is not None:
            session._run_in(vendor)  # noqa: SLF001
        return session

    @classmethod
    def of_prepared(
        cls, prepared: PreparedModel, source: Path, cache: ObjectCache | None = None, images: ImageStore | None = None
    ) -> Self:
        """A session of the prepared model in the file `source`, also in a vendor's runtime; raises as `of_results`."""
        session = cls.of_results(prepared.model, prepared.target, prepared.results, cache, images)
        if prepared.vendor is not None:
            session._vendor_time = prepared.vendor.to_json()  # noqa: SLF001
            session._take_vendor(source, prepared.dims)  # noqa: SLF001
        return session

    @classmethod
    def of_results(
        cls,
        model: Model,
        target: Target,
        results: Mapping[str, LookupResult],
        cache: ObjectCache | None = None,
        images: ImageStore | None = None,
    ) -> Self:
        """A session of an opened model on lookup results. Raises Refused where a task has no schedule to run.

        It starts from its image in `images`, and leaves one there if it may.
        """
        from .executable import executable_of_results

        return cls.of_executable(executable_of_results(model, target, results, cache, images))

    def _start_from_image(self, images: ImageStore, key: str, target: Target) -> bool:
        """Start from the stored image of the key, if there is one."""
        entry = images.entry(key)
        stored = images.get(entry.image, compiler_of(target)) if entry is not None else None
        if entry is None or stored is None:
            return False
        if stored.pool_code:
            pool_functions(stored.pool_code)
        self._start_on(target, stored.image, entry)
        return True

    def _start(self, executable: Executable) -> None:
        self._start_on(executable.target, executable.image, executable.entry)

    def _start_on(self, target: Target, image: Image, entry: CacheEntry) -> None:
        """Run it on the processor, or on the GPU of this machine."""
        if target.kind != CUDA:
            self._adopt(CompiledModel(image, shared_pool(entry.threads)), entry, thread_notes(entry.threads))
            return
        from tunewright.codegen.cuda import driver

        from .device_model import DeviceModel

        self._adopt(DeviceModel(image, driver.driver()), entry)

    def _adopt(self, model: CompiledModel | DeviceModel, entry: CacheEntry, notes: Iterable[str] = ()) -> None:
        self._model, self._runner = model, model
        self._vendor_time, self._threads = entry.vendor, entry.threads
        self._coverage = replace(entry.coverage, vendor=dict(Counter(model.vendor_ops)))
        self._entry_notes, self._thread_notes = entry.notes, tuple(notes)
        self._schedules = entry.schedules
        self._defaults = {default.label: default.kind for default in entry.defaults}
        if self._compilation is None:
            self._begin()
        self._ports = Ports(model.image.inputs, model.image.outputs)
        self._has_maps = any(port.keys for port in model.image.outputs)

    def _take_vendor(self, model: Path | bytes, dims: Mapping[str, int]) -> None:
        """Run the model in the vendor's runtime that its last job took, where that can be; `notes` tell of it."""
        if self._vendor_time is None or not isinstance(self._model, CompiledModel):
            return
        from .vendor import VendorModel, taken_vendor

        source = VendorModel(model, dims)
        stand_in, note = taken_vendor(self._vendor_time, source, self._threads, self._model.image, self._stand_in)
        if stand_in is not None:
            self._run_in(stand_in)
            self._vendor_bytes = source.size_bytes
        self._vendor_notes = (note,)

    def _run_in(self, vendor: StandIn) -> None:
        """Run the model in the vendor's runtime; the kernels stand by."""
        from .vendor import VendorRunner

        assert isinstance(self._model, CompiledModel)
        self._runner = VendorRunner(vendor, self._model)
        self._coverage = replace(self._coverage, runtime=vendor.name)

    def _begin(self) -> None:
        """Be open for runs."""
        self._override_sessions: dict[
            frozenset[str], InferenceSession
        ] = {}  # which weights are given -> what runs then
        self._override_lock, self._is_closed = threading.Lock(), False

    def compile_at(self, dims: Mapping[str, int]) -> None:
        """Compile kernels for a size of the open dimensions before it is run.

        Raises Refused for other dimensions than these, and what opening a session with them bound raises.
        """
        if self._is_closed:
            raise Refused(CLOSED)
        dims = check_dims(dims, None)
        if self._open_model is None:
            raise Refused("the session is of one size: no dimensions are open")
        self._open_model.compile_at(dims)

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes of open dimensions that have kernels, by name, the one that was run last at the end."""
        return [] if self._open_model is None else self._open_model.kept_sizes

    @property
    def ready(self) -> bool:
        """Whether runs go through the kernels: always, unless they are compiled in the background."""
        compilation = self._compilation
        if self._open_model is not None:
            return self._open_model.ready
        return compilation is None or (compilation.is_over and not compilation.has_failed)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the session is ready, for ever where no time is given; whether it is.

        Raises what opening raises, and Refused where the session is closed, or `timeout_s` is no number.
        """
        timeout_s, compilation = check_timeout(timeout_s), self._compilation
        if self._open_model is not None:
            is_ready = not self._is_closed and self._open_model.wait(timeout_s)
            if self._is_closed:
                raise Refused(CLOSED)
            return is_ready
        if compilation is None:
            return True
        compiled = compilation.result(timeout_s)
        if compiled is None:
            return False
        with self._override_lock:  # of several threads one takes it
            if self._is_closed:
                raise Refused(CLOSED)
            if self._compilation is not None:
                self._adopt(compiled.model, compiled.entry, thread_notes(compiled.entry.threads))
                self._settle(compiled.entry, *self._opening)
                self._end.detach()
                self._compilation = self._stand_in = None
                del self._opening
        return True

    def _known_ports(self, *, with_outputs: bool = False) -> Ports:
        """The inputs and outputs, which ONNX Runtime knows first; waits where it does not."""
        stand_in = self._stand_in
        if self._open_model is None and (stand_in is None or (with_outputs and stand_in.has_open_outputs)):
            self.wait()
        return self._ports

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps the session from being as fast as it can be, a line each."""
        self.wait()
        if self._open_model is not None:
            return self._open_model.notes
        return (*self._vendor_notes, *self._entry_notes, *coverage_notes(self._coverage), *self._thread_notes)

    @property
    def vendor_notes(self) -> tuple[str, ...]:
        """Those of the notes on the vendor's runtime that the model's last job took: none where it took our kernels."""
        return self._vendor_notes

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedule that each task runs on, by task key."""
        from tunewright.search_space.schedule import Schedule

        self.wait()
        if self._open_model is not None:
            return self._open_model.schedules
        return {key: Schedule.from_json(data) for key, data in self._schedules.items()}

    def coverage(self) -> Coverage:
        """The coverage of the model by native and by tuned kernels."""
        self.wait()
        return self._coverage if self._open_model is None else self._open_model.coverage()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that `run` takes."""
        return [NodeArg.of_input(port) for port in self._known_ports().inputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The weights that `run` takes in the place of the model's own: those that are inputs of the model as well."""
        self.wait()
        return [NodeArg.of(label, kind) for label, kind in self._defaults.items()] if self._origin else []

    def get_outputs(self) -> list[NodeArg]:
        """The outputs that `run` returns."""
        return [NodeArg.of_output(port) for port in self._known_ports(with_outputs=True).outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None. Inputs are given by name.

        So are weights that are inputs of the model as well, for this run. The first run that is given them, and each
        other choice of them, reads the model once more and compiles a plan for it; those of the last few are kept.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's, and for
        outputs that it does not have; Refused where the session is closed; for weights what opening it raises, and
        Refused where its file has changed.
        """
        if self._compilation is not None and (results := self._run_early(output_names, input_feed)) is not None:
            return results
        arrays = self._arrays(input_feed)
        if output_names is None and len(input_feed) == len(arrays):
            return self._as_given(self._runner.run(arrays))
        if weights := self._weights_in(input_feed):
            with self._override_lock:
                return self._override_session(weights, input_feed).run(output_names, input_feed)
        numbers = self._ports.numbers(input_feed, output_names)
        results = self._as_given(self._runner.run(arrays))
        return [results[number] for number in numbers]

    def _as_given(self, results: list[Any]) -> list[Any]:
        """The outputs, with dicts in the place of rows where the model makes dicts."""
        if not self._has_maps:
            return results
        ports = zip(results, self._model.image.outputs, strict=True)
        return [as_maps(result, port.keys) if port.keys else result for result, port in ports]

    def _run_early(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs by ONNX Runtime. None once the session is ready: where that can't tell them, this waits."""
        stand_in, compilation = self._stand_in, self._compilation
        is_whole = isinstance(input_feed, Mapping) and stand_in is not None and len(input_feed) == len(stand_in.inputs)
        if stand_in is not None and compilation is not None and not compilation.is_over and is_whole:
            arrays, numbers = self._arrays(input_feed), self._ports.numbers(input_feed, output_names)
            if (results := stand_in.run(arrays)) is not None:
                return [results[number] for number in numbers]
        self.wait()
        return None

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        """Seconds of a run that its kernels take, with warm caches: the median of samples.

        From a native loop; on a GPU by its events, without what is brought there and back.

        Raises InputError where inputs are missing, or of another type or shape than the model's.
        """
        self.wait()
        arrays = self._arrays(input_feed)
        if weights := self._weights_in(input_feed):
            with self._override_lock:
                return self._override_session(weights, input_feed).kernels_s(input_feed)
        [once_s] = self._runner.times_s(arrays, samples=1, repeats=2)
        repeats = max(1, round(SAMPLE_S / max(once_s, 1e-9)))
        return median(self._runner.times_s(arrays, SAMPLES, repeats))

    def kernel_times_s(self, arrays: Sequence[Any], samples: int, repeats: int) -> list[float]:
        """Seconds of a run of the kernels, on arrays as the model wants them, by sample."""
        return self._runner.times_s(arrays, samples, repeats)

    def kernels_for(self, arrays: Sequence[Any]) -> CompiledModel | None:
        """What runs at the sizes of these inputs; None where there is nothing yet, or no processor's kernels run."""
        if self._open_model is not None:
            return self._open_model.kernels_for(arrays)
        runner = self._runner if self._compilation is None else None
        return runner if isinstance(runner, CompiledModel) else None

    @property
    def memory(self) -> Mapping[Hashable, int]:
        """Bytes of the blocks of memory that it holds, some of which other sessions hold as well, by what tells them
        apart; none where that is not known yet.
        """
        if self._open_model is not None:
            return {}
        image = self._model.image
        own_bytes = image.arena_bytes + self._vendor_bytes
        return {**{id(block): block.nbytes for block in image.constants}, self: own_bytes}

    def _arrays(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """The inputs, as the model wants them. Raises Refused where the session is closed."""
        if self._is_closed:
            raise Refused(CLOSED)
        return self._ports.arrays(input_feed)

    def _weights_in(self, input_feed: Mapping[str, Any]) -> frozenset[str]:
        """The weights among what is given."""
        if self._origin is None or not isinstance(input_feed, Mapping):
            return frozenset()
        return frozenset(label for label in self._defaults if label in input_feed)

    def _override_session(self, weights: frozenset[str], input_feed: Mapping[str, Any]) -> InferenceSession:
        """A session of the model in which these weights are inputs. Hold `_override_lock`. Raises as `run`."""
        assert self._origin is not None
        if self._is_closed:
            raise Refused(CLOSED)
        for label in weights:
            check_array(label, input_feed[label], self._defaults[label])
        session = self._override_sessions.pop(weights, None)
        if session is None:
            session = type(self).__new__(type(self))
            session._start(self._origin.executable(weights, self.schedules, object_cache()))  # noqa: SLF001
        self._override_sessions[weights] = session  # the newest is the last
        if len(self._override_sessions) > MOST_CHOICES:
            self._override_sessions.pop(next(iter(self._override_sessions))).close()
        return session

    def close(self) -> None:
        """Unload the code; what compiles it in the background ends."""
        with self._override_lock:
            for overriding in self._override_sessions.values():
                overriding.close()
            self._is_closed = True
            if self._compilation is not None:
                self._compilation.close()
            else:
                self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _SizedSession(InferenceSession):
    """A session of one size of an open model, which has something else that answers meanwhile."""

    _has_stand_in = False

    def __init__(self, process: Child, model: Path | str | bytes, **arguments: Any) -> None:
        self._process = process
        super().__init__(model, **arguments)

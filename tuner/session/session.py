"""InferenceSession: run a tuned model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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
)
from ..targets import check_target
from .execution import CompiledModel
from .image_store import Coverage, ImageStore
from .node_arg import NodeArg
from .opening import Opening
from .origin import Origin
from .session_model import ReadyModel, SessionModel
from .static_model import StaticModel

if TYPE_CHECKING:
    from tunewright.codegen.llvm.build import ObjectCache
    from tunewright.codegen.target import Target
    from tunewright.search_space.schedule import Schedule

    from ..lookup.result import LookupResult
    from ..lookup.source import PreparedModel
    from ..models.model import Model
    from .executable import Executable
    from .stand_in import StandIn


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

    _model: SessionModel

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
        source = model if isinstance(model, bytes) else Path(model).absolute()  # the working folder may change
        pinned = lock.absolute() if lock is not None else None
        origin = Origin(source, db, server, pinned, dims, threads, target, precision, Origin.state_of(source))
        self._model = Opening(origin, model).open(background=background)

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
        model = StaticModel.of(executable)
        if vendor is not None:
            model.run_in(vendor)
        return cls._of(model)

    @classmethod
    def _of(cls, model: SessionModel) -> Self:
        session = cls.__new__(cls)
        session._model = model  # noqa: SLF001
        return session

    @classmethod
    def of_prepared(
        cls, prepared: PreparedModel, source: Path, cache: ObjectCache | None = None, images: ImageStore | None = None
    ) -> Self:
        """A session of the prepared model in the file `source`, also in a vendor's runtime; raises as `of_results`."""
        from .executable import executable_of_results

        executable = executable_of_results(prepared.model, prepared.target, prepared.results, cache, images)
        model = StaticModel.of(executable)
        if prepared.vendor is not None:
            model.take_vendor(prepared.vendor.to_json(), source, prepared.dims)
        return cls._of(model)

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

    def compile_at(self, dims: Mapping[str, int]) -> None:
        """Compile kernels for a size of the open dimensions before it is run.

        Raises Refused for other dimensions than these, and what opening a session with them bound raises.
        """
        self._model.check_open()
        self._model.compile_at(check_dims(dims, None))

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes of open dimensions that have kernels, by name, the one that was run last at the end."""
        return self._model.sizes

    @property
    def ready(self) -> bool:
        """Whether runs go through the kernels: always, unless they are compiled in the background."""
        return self._model.ready

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the session is ready, for ever where no time is given; whether it is.

        Raises what opening raises, and Refused where the session is closed, or `timeout_s` is no number.
        """
        model = self._model.wait(check_timeout(timeout_s))
        if model is not None:
            self._model = model
        return model is not None

    def _ready_model(self) -> ReadyModel:
        """What the session runs once it is ready, for which this waits."""
        self._model = model = self._model.ready_model()
        return model

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps the session from being as fast as it can be, a line each."""
        return self._ready_model().notes

    @property
    def vendor_notes(self) -> tuple[str, ...]:
        """Those of the notes on the vendor's runtime that the model's last job took: none where it took our kernels."""
        return self._model.vendor_notes

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedule that each task runs on, by task key."""
        return self._ready_model().schedules

    def coverage(self) -> Coverage:
        """The coverage of the model by native and by tuned kernels."""
        return self._ready_model().coverage()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that `run` takes."""
        return [NodeArg.of_input(port) for port in self._model.inputs or self._ready_model().inputs or ()]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The weights that `run` takes in the place of the model's own: those that are inputs of the model as well."""
        return [NodeArg.of(label, kind) for label, kind in self._ready_model().weight_types.items()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs that `run` returns."""
        return [NodeArg.of_output(port) for port in self._model.outputs or self._ready_model().outputs or ()]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None. Inputs are given by name.

        So are weights that are inputs of the model as well, for this run. The first run that is given them, and each
        other choice of them, reads the model once more and compiles a plan for it; those of the last few are kept.

        Raises InputError where inputs are missing, unknown, or of another type or shape than the model's, and for
        outputs that it does not have; Refused where the session is closed; for weights what opening it raises, and
        Refused where its file has changed.
        """
        results = self._model.run(output_names, input_feed)
        return self._ready_model().run(output_names, input_feed) if results is None else results

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        """Seconds of a run that its kernels take, with warm caches: the median of samples.

        From a native loop; on a GPU by its events, without what is brought there and back.

        Raises InputError where inputs are missing, or of another type or shape than the model's.
        """
        return self._ready_model().kernels_s(input_feed)

    def kernels_for(self, arrays: Sequence[Any]) -> CompiledModel | None:
        """What runs at the sizes of these inputs; None where there is nothing yet, or no processor's kernels run."""
        return self._model.kernels_for(arrays)

    @property
    def memory(self) -> Mapping[Hashable, int]:
        """Bytes of the blocks of memory that it holds, some of which other sessions hold as well, by what tells them
        apart; none where that is not known yet.
        """
        return self._model.memory

    def close(self) -> None:
        """Unload the code; what compiles it in the background ends."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

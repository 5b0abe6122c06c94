"""OpenModel: a model with open dimensions, which runs at every size. Light to import."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from tunewright.codegen.host import available_memory_bytes, detect
from tunewright.codegen.target import CUDA

from ..errors import InputError, Refused, message, refusals
from ..files import file_state
from ..text import counted, dims_text, printable
from .compilation import compiling_process
from .image_store import Coverage
from .maps import as_map, is_fed_map
from .node_arg import OpenPort, OpenType
from .origin import check_state
from .ort_session import OrtSession, is_installed, ort_errors
from .ports import Ports
from .session_model import ReadyModel, SessionModel

if TYPE_CHECKING:
    from tunewright.graph.onnx_import.open_inputs import OpenSignature, OpenTensor
    from tunewright.search_space.schedule import Schedule
    from tunewright.workers.sandbox.process import Child

    from .execution import CompiledModel
    from .origin import Origin


EAGER_SIZES = 4
"""Sizes that get kernels the first time they are run. Later ones get them when they come again, as a model may run at
ever other sizes."""

MOST_SIZES, MOST_COUNTED, MOST_WAITING = 256, 4096, 16
"""Most sizes that have kernels, most whose runs are counted, and most that wait for kernels: the oldest are dropped."""

RUNS_AGAIN = 16
"""Runs without kernels after which a size may get some again that had to be dropped, or could not be had."""

MEMORY_SHARE = 0.25
"""Part of the machine's memory that sizes may take together; one is always kept."""

Sizes = tuple[int, ...]
"""The numbers of the open dimensions, in order."""


class OpenModel(ReadyModel):
    """Runs a model at the size of its inputs, on kernels for this size, some of which serve others too.

    A size gets kernels in the background. Until they are there ONNX Runtime computes the outputs, as the model is
    given, which may differ in their last bits, and where a precision is asked for by as much as that rounds; where that
    is not installed or does not take the model, the run waits for its kernels. Threads may share it.

    `open_at` opens the model with the dimensions bound, compiled by a process; it raises what opening a session raises.
    `check` raises Refused where it would be another model by now.
    """

    def __init__(
        self,
        signature: OpenSignature,
        open_at: Callable[[Mapping[str, int], Child], SessionModel],
        runtime: OrtSession | None,
        check: Callable[[], None],
    ) -> None:
        self._ports = Ports(map(_port, signature.inputs), map(_port, signature.outputs))
        self._bound = {bound.label: bound.value for bound in signature.bound}
        self._places = _places(signature)
        is_fed = all(port.map is None or is_fed_map(port.map, port.kind.dtype) for port in self.inputs)
        self._open_at, self._runtime, self._check = open_at, runtime if is_fed else None, check
        self._models: OrderedDict[Sizes, ReadyModel] = OrderedDict()  # the last one was run last
        self._counts: OrderedDict[Sizes, int] = OrderedDict()
        self._eager_left = EAGER_SIZES
        self._faults: dict[Sizes, BaseException] = {}  # why a size has no kernels, which will be so again
        self._passing_faults: dict[Sizes, BaseException] = {}  # likewise, which may pass
        self._bug: BaseException | None = None  # of the thread
        self._wanted: dict[Sizes, None] = {}  # in order
        self._most_bytes = MEMORY_SHARE * available_memory_bytes()
        self._is_closed = False
        self.renew()
        _open_models.add(self)

    def renew(self) -> None:
        """Be as if nothing were compiled just now, as in the child of a fork."""
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._process = self._new_process()  # hold `_opening`
        self._pending: SessionModel | None = None  # is being compiled
        self._thread: threading.Thread | None = None
        self._wanted.clear()

    def _new_process(self) -> Child:
        process = compiling_process()
        finalize(self, _end_process, process, os.getpid())
        return process

    @staticmethod
    def of(origin: Origin, open_at: Callable[[Mapping[str, int], Child], SessionModel]) -> OpenModel | None:
        """The model; None where it can't be read, of which who opens it whole says why, or nothing is open in it.

        Raises what a named place of schedules that can't be asked is refused with.
        """
        from tunewright.graph.onnx_import import ModelError, open_signature, read_model

        from ..lookup.source import ScheduleSource

        try:
            signature = open_signature(read_model(origin.model)[0], origin.dims)
        except (ModelError, OSError):
            return None
        if not signature.dimensions:
            return None
        folder = Path() if isinstance(origin.model, bytes) else origin.model.parent
        files = {folder / name: file_state(folder / name) for name in signature.weight_files}

        def check() -> None:
            origin.check_unchanged()
            for file, state in files.items():
                check_state(file, state)

        ScheduleSource(origin.db, origin.server).check()
        on_processor = origin.target != CUDA
        runtime = OpenModel.runtime_of(origin.model, detect(origin.threads).threads) if on_processor else None
        return OpenModel(signature, open_at, runtime, check)

    @staticmethod
    def runtime_of(model: Path | bytes, threads: int) -> OrtSession | None:
        """The model in ONNX Runtime, if that is installed and takes it."""
        if not is_installed():
            return None
        try:
            return OrtSession(model, threads)
        except ort_errors():
            return None

    # Runs

    def _results(self, arrays: list[Any]) -> list[Any]:
        """All outputs, for values of the inputs in order. Raises InputError where one dimension has two sizes."""
        if self._bug is not None:
            raise self._bug.with_traceback(None)  # else it would hold on to the arrays of each run that raised it
        sizes, feeds = self._sizes(arrays), self._feeds(arrays)
        model = self._find(sizes)
        if model is None and self._runtime is not None:
            if all(sizes):
                self._count(sizes)
            maps = {port.label: as_map(feeds[port.label], port.map) for port in self.inputs if port.map is not None}
            results = self._runtime.run(feeds | maps | self._bound)
            if results is not None:
                return results
        if not all(sizes):
            raise InputError(self._emptiness(sizes))
        return (model or self._model(sizes)).run(None, feeds)

    def _feeds(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return {port.label: array for port, array in zip(self.inputs, arrays, strict=True)}

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        arrays = self._arrays(input_feed)
        return self._model(self._sizes(arrays)).kernels_s(self._feeds(arrays))

    def compile_at(self, dims: Mapping[str, int]) -> None:
        """Compile kernels of a size, where it has none. Raises Refused for other dimensions than the open ones."""
        if dims.keys() != self._places.keys():
            names = ", ".join(repr(printable(key)) for key in self._places)
            raise Refused(f"dims has {dims_text(dims) or 'nothing'}; it gives each open dimension a size: {names}")
        self._model(tuple(dims[key] for key in self._places))
        with self._opening:
            if self._thread is None:
                self._process.close()  # it takes memory

    def kernels_for(self, arrays: Sequence[Any]) -> CompiledModel | None:
        """What runs at the sizes of these inputs; None where there is nothing yet."""
        model = self._find(self._sizes(arrays))
        return None if model is None else model.kernels_for(arrays)

    def _sizes(self, arrays: Sequence[Any]) -> Sizes:
        sizes = []
        for key, places in self._places.items():
            (first, axis), *others = places
            sizes.append(arrays[first].shape[axis])
            for number, other_axis in others:
                if (size := arrays[number].shape[other_axis]) != sizes[-1]:
                    labels = repr(self.inputs[first].label), repr(self.inputs[number].label)
                    text = f"{sizes[-1]} in input {labels[0]} and {size} in input {labels[1]}"
                    raise InputError(f"dimension {printable(key)!r} is {text}; it is one dimension, of one size")
        return tuple(sizes)

    def _emptiness(self, sizes: Sizes) -> str:
        """What is to be said of a dimension of size 0, for which there are no kernels."""
        key = next(key for key, size in self._dims(sizes).items() if not size)
        number, axis = self._places[key][0]
        label, runtime = self.inputs[number].label, "is not there" if self._runtime is None else "can't run it either"
        return (
            f"input {label!r} has 0 along axis {axis}, dimension {printable(key)!r}; kernels are for sizes of at least "
            f"1, and ONNX Runtime {runtime}"
        )

    def _find(self, sizes: Sizes) -> ReadyModel | None:
        with self._changed:
            model = self._models.get(sizes)
            if model is not None:
                self._models.move_to_end(sizes)
            return model

    def _model(self, sizes: Sizes) -> ReadyModel:
        """The model of a size, opened here if there is none."""
        with self._opening:
            model = self._find(sizes)
            if sizes in self._faults:
                raise self._faults[sizes].with_traceback(None)
            return model or self._open(sizes)

    def _open(self, sizes: Sizes) -> ReadyModel:
        """Open the model of a size; hold `_opening`."""
        pending: SessionModel | None = None
        try:
            pending = self._open_at(self._dims(sizes), self._process)
            with self._changed:
                self._pending, is_closed = pending, self._is_closed
            if is_closed:
                pending.close()
            model = pending.ready_model()
            self._check()
            self._keep(sizes, model)
        except refusals():
            raise
        except BaseException:  # such as an interrupt: the process may go on with what nobody waits for any more
            self._pending = None
            if pending is not None:
                pending.close()
            self._process.kill()
            self._process = self._new_process()
            raise
        return model

    def _dims(self, sizes: Sizes) -> dict[str, int]:
        return dict(zip(self._places, sizes, strict=True))

    # Kernels in the background

    def _count(self, sizes: Sizes) -> None:
        """Count a run without kernels; a size that is run often enough gets some."""
        with self._changed:
            count = self._counts.pop(sizes, 0) + 1
            self._counts[sizes] = count
            while len(self._counts) > MOST_COUNTED:
                self._counts.popitem(last=False)
            is_eager = self._eager_left > 0 and count > 0
            if sizes in self._faults or sizes in self._wanted or not (is_eager or count > 1) or self._is_closed:
                return
            self._wanted[sizes] = None
            self._eager_left -= 1
            if len(self._wanted) > MOST_WAITING:
                del self._wanted[next(iter(self._wanted))]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tunewright-sizes", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        """Open models of what is wanted, what was run most first, until nothing is."""
        while True:
            if not self._wanted:
                with self._opening:
                    self._process.close()  # it takes memory
            with self._changed:
                if not self._wanted or self._is_closed:
                    self._thread = None
                    self._changed.notify_all()
                    return
                sizes = max(self._wanted, key=lambda wanted: self._counts.get(wanted, 0))
            try:
                self._model(sizes)
            except _lasting() as error:  # `notes` tell it; runs go on without kernels
                self._faults[sizes] = error
                if len(self._faults) > MOST_COUNTED:
                    del self._faults[next(iter(self._faults))]
            except refusals() as error:  # such as a disk that is full just now
                with self._changed:
                    self._passing_faults[sizes] = error.with_traceback(None)
                    self._counts[sizes] = -RUNS_AGAIN
                    if len(self._passing_faults) > MOST_COUNTED:
                        del self._passing_faults[next(iter(self._passing_faults))]
            except BaseException as bug:  # noqa: BLE001 - raised by the next run
                self._bug = bug
            with self._changed:
                self._wanted.pop(sizes, None)
                self._changed.notify_all()

    def _keep(self, sizes: Sizes, model: ReadyModel) -> None:
        """Keep a model. One that is dropped ends with the last run that goes through it."""
        with self._changed:
            self._pending = None
            self._passing_faults.pop(sizes, None)
            if self._is_closed:
                model.close()
                return
            self._models[sizes] = model
            while len(self._models) > 1 and self._are_too_many():
                dropped, _ = self._models.popitem(last=False)
                self._counts[dropped] = -RUNS_AGAIN

    def _are_too_many(self) -> bool:
        """Whether the sizes take too much together: they share weights."""
        blocks = {key: size for kept in self._models.values() for key, size in kept.memory.items()}
        return len(self._models) > MOST_SIZES or sum(blocks.values()) > self._most_bytes

    @property
    def ready(self) -> bool:
        """Whether all sizes that are to have kernels have them."""
        return not self._wanted

    def wait(self, timeout_s: float | None = None) -> OpenModel | None:
        """Wait until that is so, for ever where no time is given."""
        with self._changed:
            is_ready = self._changed.wait_for(lambda: not self._wanted or self._is_closed, timeout_s)
        self.check_open()
        return self if is_ready else None

    def close(self) -> None:
        """Unload the code; what compiles in the background ends."""
        with self._changed:
            self._is_closed = True
            self._wanted.clear()
            models = [*self._models.values(), *([self._pending] if self._pending is not None else [])]
            self._models.clear()
            self._changed.notify_all()
        for model in models:
            model.close()
        with self._opening:
            self._process.close()

    # What is to be told

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps it from being as fast as it can be, a line each."""
        names = ", ".join(repr(printable(key)) for key in self._places)
        lines = [f"open: {names}; sizes get kernels as they are run, tune with --sizes for those that matter"]
        if self._runtime is None:
            lines.append("the first run at a size waits for its kernels, as ONNX Runtime is not there or refuses it")
        for sizes, fault in list(self._faults.items())[-1:]:
            such = dims_text(self._dims(sizes))
            lines.append(f"without kernels: {counted(len(self._faults), 'size')}, such as {such}: {message(fault)}")
        if (passing := self._passing_fault()) is not None:
            lines.append(f"without kernels for now, to be tried again: {message(passing)}")
        newest = self._newest()
        return (*lines, *(newest.notes if newest is not None else ()))

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes that have kernels, the one that was run last at the end."""
        with self._changed:
            return [self._dims(sizes) for sizes in self._models]

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules of all sizes that have kernels, by task key."""
        with self._changed:
            models = list(self._models.values())
        return {key: schedule for model in models for key, schedule in model.schedules.items()}

    def coverage(self) -> Coverage:
        """The coverage at the size that was run last with kernels. Raises Refused before there is one."""
        newest = self._newest()
        if newest is None and (fault := self._passing_fault()) is not None:
            raise Refused(f"none of the model's sizes has kernels: {message(fault)}")
        if newest is None:
            raise Refused("the model has open dimensions, and none of its sizes has kernels yet; run it, and `wait`")
        return newest.coverage()

    def _passing_fault(self) -> BaseException | None:
        """Why a size has no kernels that may get some: the last such fault."""
        with self._changed:
            return next(reversed(self._passing_faults.values()), None)

    def _newest(self) -> ReadyModel | None:
        with self._changed:
            return next(reversed(self._models.values()), None)


_open_models: WeakSet[OpenModel] = WeakSet()


def _renew_models() -> None:
    for model in list(_open_models):
        model.renew()


os.register_at_fork(after_in_child=_renew_models)


def _lasting() -> tuple[type[BaseException], ...]:
    """The refusals by which a size never has kernels. For an `except` clause, as `refusals`."""
    from tunewright.codegen.llvm.build import BuildError
    from tunewright.graph.onnx_import import ModelError

    return Refused, ModelError, BuildError


def _end_process(process: Child, parent: int) -> None:
    """End what compiles for a model that nobody has any more; a fork leaves it to its parent."""
    if os.getpid() == parent:
        process.close()


def _port(tensor: OpenTensor) -> OpenPort:
    return OpenPort(tensor.label, OpenType(tensor.dtype, tensor.extents), tensor.map)


def _places(signature: OpenSignature) -> dict[str, list[tuple[int, int]]]:
    """Where each open dimension is: pairs of an input's number and an axis."""
    numbers = {tensor.label: number for number, tensor in enumerate(signature.inputs)}
    places: dict[str, list[tuple[int, int]]] = {}
    for dimension in signature.dimensions:
        places.setdefault(dimension.key, []).append((numbers[dimension.label], dimension.axis))
    return places

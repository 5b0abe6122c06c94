"""Timing of whole models on default and tuned schedules, side by side, and in a vendor's runtime on demand.

`time_sessions` does it in this process, for a model that its user runs anyway. Models that were sent to the service are
strangers': `UploadTiming` runs them in a confined child, and whatever goes wrong there is a reason, not an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tunewright.codegen.cuda.driver import DeviceFault, Unloadable
from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.target import CUDA, Target
from tunewright.db.errors import NotFound
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import import ModelError
from tunewright.search_space.schedule import Schedule
from tunewright.workers.lock import HostLock
from tunewright.workers.measure.call_latency import (
    OPENINGS,
    CallLatency,
    time_openings,
    wait_for_own_threads,
    wait_for_threads,
)
from tunewright.workers.measure.noise import UNDISTURBED, Disturbance, Noise, Watch
from tunewright.workers.measure.sampling import MIN_SAMPLES, Interval, interval
from tunewright.workers.sandbox.process import Child, ChildError, ChildLimits, RequestFailed

from ..errors import Refused, message
from ..models.model import Model, example_feeds, open_for
from ..models.reader import MOST_LETTERS, MOST_PORTS
from ..session.agreement import disagreement
from ..session.executable import Executable, executable_of_schedules
from ..session.session import InferenceSession
from ..session.vendor import VendorFault, VendorModel
from ..text import printable
from .precision_error import precision_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tunewright.db.uploads import Uploads

LOAD_S, TIME_S = 300.0, 300.0
"""Time limits of reading a model and building its kernels, and of timing it."""

REASON_LETTERS = 300
"""Letters of a reason, which may come out of a model."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a model: on these schedules, and with what is fastest by these times (inf: fails); by task key."""

    schedules: Mapping[str, Schedule]
    times_s: Mapping[str, float] = field(default_factory=dict)
    is_vendor: bool = False  # in a vendor's runtime instead: beside others, whose outputs it has to have

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        schedules = {key: schedule.to_json() for key, schedule in self.schedules.items()}
        times_s = {key: time_s if isfinite(time_s) else None for key, time_s in self.times_s.items()}
        return {"schedules": schedules, "times_s": times_s, "is_vendor": self.is_vendor}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Variant:
        """The inverse of `to_json`."""
        schedules = {key: Schedule.from_json(schedule) for key, schedule in data["schedules"].items()}
        times_s = {key: inf if time_s is None else time_s for key, time_s in data["times_s"].items()}
        return Variant(schedules, times_s, bool(data.get("is_vendor")))


Variants = Mapping[str, Variant]
"""Variants to time, by name."""

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Latencies of a model's variants by name, and its ops without kernels.

    Samples with one index are of the same opening: see `call_latency.time_openings`.
    """

    latencies: Mapping[str, CallLatency] = field(default_factory=dict)
    fallback: Mapping[str, int] = field(default_factory=dict)  # op -> nodes
    runtime_nodes: int = 0  # that are no task: see `Model.runtime_nodes`
    reason: str = ""  # why nothing was timed, one line
    disturbance: Disturbance = UNDISTURBED
    vendor_version: str = ""  # of the vendor's runtime, where it was asked for and is there
    vendor_fault: str = ""  # why the model was not timed in it, one line
    precision_errors: Mapping[str, float | None] = field(default_factory=dict)  # by output; of a model as given none

    def time_interval(self, name: str) -> Interval | None:
        """The interval of one run in seconds; None where it was not timed."""
        latency = self.latencies.get(name)
        return None if latency is None else interval(latency.samples_s)

    def ratio(self, name: str, other: str) -> tuple[float, float] | None:
        """The interval of the ratio of the times of `name` and `other`, opening by opening."""
        if name not in self.latencies or other not in self.latencies:
            return None
        openings = zip(self.latencies[name].samples_s, self.latencies[other].samples_s, strict=True)
        ratios, own_time, other_time = (
            interval([sample_s / other_s for sample_s, other_s in openings]),
            *map(self.time_interval, (name, other)),
        )
        assert own_time is not None and other_time is not None
        # What people see need not be the median of the ratios.
        ratio_of_medians = own_time.median_s / other_time.median_s
        return min(ratios.low_s, ratio_of_medians), max(ratios.high_s, ratio_of_medians)

    def noise(self, target: Target, names: Collection[str] | None = None) -> Noise:
        """The noise of the times, of all or of these names. Load on a machine's processors does not disturb its GPU."""
        latencies = [latency for name, latency in self.latencies.items() if names is None or name in names]
        spread = max((interval(latency.samples_s).width for latency in latencies), default=0.0)
        disturbance = UNDISTURBED if target.gpu is not None else self.disturbance
        return Noise.of(disturbance, target.threads, spread)


Timing = Callable[[Variants], ModelTimes]
"""Times one model."""


def is_here(target: Target) -> bool:
    """Whether code for the target can run in processes of this machine."""
    return detect(target.threads) == target and len(available_cores()) >= target.threads


def time_sessions(
    model: Model, target: Target, objects: Path, variants: Variants, *, vendor: VendorModel | None = None
) -> ModelTimes:
    """Time a model in this process, when nobody builds or times candidates on this machine.

    `vendor` is the same model as it is given: for the vendor's runtime, where a variant asks for that, and to tell the
    errors of another precision.
    """
    try:
        compiled = CompiledVariants.of(model, target, ObjectCache(objects), variants, vendor)
        with HostLock(objects).exclusive():
            watch = Watch()
            latencies = compiled.time()
            return ModelTimes(
                latencies,
                model.fallback_ops,
                model.runtime_nodes,
                disturbance=watch.disturbance(),
                vendor_version=compiled.vendor_version,
                vendor_fault=compiled.vendor_fault,
                precision_errors=compiled.precision_errors,
            )
    except (DeviceFault, Unloadable, MemoryError) as fault:  # the findings of the job stand
        return ModelTimes(reason=_line(message(fault)))


@dataclass(frozen=True, slots=True)
class CompiledVariants:
    """A model compiled in each of its variants, and inputs."""

    executables: Mapping[str, Executable]  # by name
    feeds: Mapping[str, NDArray[Any]]
    fallback: Mapping[str, int]  # op -> nodes
    runtime_nodes: int
    vendor: VendorModel | None = None  # what runs the model in the place of some of the executables
    vendor_names: Collection[str] = ()  # of these
    vendor_version: str = ""
    vendor_fault: str = ""  # why they are left out
    precision_errors: Mapping[str, float | None] = field(default_factory=dict)  # of the last of the executables

    @staticmethod
    def of(
        model: Model,
        target: Target,
        cache: ObjectCache | None,
        variants: Variants,
        vendor: VendorModel | None = None,
    ) -> CompiledVariants:
        """Compile the variants. Raises Refused and BuildError, as opening a session does."""
        executables = {
            name: executable_of_schedules(model.fastest(variant.times_s), target, variant.schedules, cache)
            for name, variant in variants.items()
            if not variant.is_vendor
        }
        feeds, errors = example_feeds(model), dict[str, float | None]()
        if model.precision is not Precision.AS_GIVEN and vendor is not None and executables:
            errors = precision_errors(list(executables.values())[-1], vendor, feeds, cache)
        compiled = CompiledVariants(
            executables, feeds, model.fallback_ops, model.runtime_nodes, precision_errors=errors
        )
        names = [name for name, variant in variants.items() if variant.is_vendor]
        return compiled._with_vendor(names, vendor) if names else compiled

    def _with_vendor(self, names: Sequence[str], vendor: VendorModel | None) -> CompiledVariants:
        """The same with variants in the vendor's runtime, if it says there what our kernels say."""
        executable = next(iter(self.executables.values()))
        if vendor is None or executable.target.kind == CUDA:
            return replace(self, vendor_fault="it is asked on processors alone")
        try:
            stand_in = vendor.open(executable.target.threads, executable.image)
        except VendorFault as refusal:
            return replace(self, vendor_fault=str(refusal))
        with InferenceSession.of_executable(executable) as session:
            ours = session.run(None, self.feeds)
        theirs = stand_in.run([self.feeds[port.label] for port in stand_in.inputs])
        fault = "it fails on made-up inputs" if theirs is None else disagreement(theirs, ours)
        if fault:
            return replace(self, vendor_version=stand_in.version, vendor_fault=fault)
        executables = {**self.executables, **dict.fromkeys(names, executable)}
        return replace(
            self, executables=executables, vendor=vendor, vendor_names=names, vendor_version=stand_in.version
        )

    def time(self) -> dict[str, CallLatency]:
        """Time the variants in turn. Nodes without a kernel may use other threads than ours."""
        settle = wait_for_threads if self.fallback or self.vendor else wait_for_own_threads
        return time_openings(self._open, list(self.executables), settle)

    def _open(self, stack: ExitStack, names: Sequence[str]) -> dict[str, Callable[[], Any]]:
        sessions = {name: stack.enter_context(self._session(name)) for name in names}
        return {name: partial(session.run, None, self.feeds) for name, session in sessions.items()}

    def _session(self, name: str) -> InferenceSession:
        executable, stand_in = self.executables[name], None
        if self.vendor is not None and name in self.vendor_names:
            stand_in = self.vendor.open(executable.target.threads, executable.image)
        return InferenceSession.of_executable(executable, stand_in)


class UploadTiming:
    """Times a model that was uploaded. `objects` is the folder whose lock keeps others still meanwhile."""

    def __init__(
        self,
        uploads: Uploads,
        sha256: str,
        dims: Mapping[str, int],
        target: Target,
        objects: Path,
        precision: str = Precision.AS_GIVEN,
    ) -> None:
        self._uploads, self._sha256, self._dims, self._target, self._objects = uploads, sha256, dims, target, objects
        self._precision = precision  # one that is not known here is a reason too

    def __call__(self, variants: Variants) -> ModelTimes:
        if not self._sha256:
            return ModelTimes(reason="it is a job of tasks, without a model")
        if self._precision not in tuple(Precision):
            return ModelTimes(reason=f"this version knows no precision {_line(self._precision)!r}")
        if not is_here(self._target):
            return ModelTimes(reason=f"the machine that the job ran from is no {self._target}")
        try:
            return self._time_in_child(variants)
        except NotFound:  # as of a job that a command began, and a tuner process took up
            return ModelTimes(reason="its model was not sent to the service")
        except (OSError, RequestFailed) as fault:
            return ModelTimes(reason=_line(message(fault)))
        except (KeyError, TypeError, ValueError):
            return ModelTimes(reason="the process that timed it answered nonsense")
        except ChildError as bug:  # of what ran there: the findings of the job stand
            _log.warning("the whole model could not be timed: %s", bug)
            return ModelTimes(reason="the process that timed it failed")

    def _time_in_child(self, variants: Variants) -> ModelTimes:
        lock = HostLock(self._objects)
        with (
            TemporaryDirectory(prefix="tunewright-") as folder,
            Child(ChildLimits(confined=True), calls="tunewright.tuner.search.whole_model") as child,
        ):
            path = self._write_model(Path(folder) / "model.onnx")
            with lock.shared():
                loaded = child.request(
                    "load",
                    LOAD_S,
                    path=str(path),
                    dims=dict(self._dims),
                    target=self._target.to_json(),
                    precision=self._precision,
                    wanted={name: variant.to_json() for name, variant in variants.items()},
                )
            if loaded["reason"]:
                return ModelTimes(reason=_line(loaded["reason"]))
            with lock.exclusive():
                watch = Watch(lambda: [child.pid])
                samples_s = child.request("time", TIME_S)
                disturbance = watch.disturbance()
        fallback, runtime_nodes = _check_fallback(loaded["fallback"]), int(loaded["runtime_nodes"])
        version, fault = map(_line, loaded["vendor"])
        names = [name for name, variant in variants.items() if not (variant.is_vendor and fault)]
        return ModelTimes(
            _check_latencies(samples_s, names),
            fallback,
            runtime_nodes,
            disturbance=disturbance,
            vendor_version=version,
            vendor_fault=fault,
            precision_errors=_check_errors(loaded["precision_errors"]),
        )

    def _write_model(self, path: Path) -> Path:
        """The model as a file."""
        with path.open("wb") as file:
            file.writelines(self._uploads.read(self._sha256))
        return path


def _line(text: str) -> str:
    return printable(" ".join(text.split()))[:REASON_LETTERS]


def _check_latencies(samples_s: Any, names: Collection[str]) -> dict[str, CallLatency]:
    """Check that the answer of a confined child is times of all openings."""
    checked = {name: tuple(float(time_s) for time_s in samples_s[name]) for name in names}
    counts = {len(times_s) for times_s in checked.values()}
    if len(counts) > 1 or not counts <= set(range(MIN_SAMPLES, OPENINGS + 1)):
        raise ValueError("not as many times of each")
    if not all(isfinite(time_s) and time_s > 0 for times_s in checked.values() for time_s in times_s):
        raise ValueError("no times")
    return {name: CallLatency(times_s) for name, times_s in checked.items()}


def _check_fallback(fallback: Any) -> dict[str, int]:
    return {_line(str(op)): int(count) for op, count in dict(fallback).items()}


def _check_errors(errors: Any) -> dict[str, float | None]:
    checked = {
        str(label)[:MOST_LETTERS]: None if error is None else float(error) for label, error in dict(errors).items()
    }
    if len(checked) > MOST_PORTS or not all(error is None or 0 <= error < inf for error in checked.values()):
        raise ValueError("no errors")
    return checked


# In the child

_loaded: list[CompiledVariants] = []


def load(
    path: str, dims: dict[str, int], target: dict[str, Any], precision: str, wanted: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Read a model and build its kernels, those of each name: `fallback` and `runtime_nodes`, or a `reason` why not.

    And the version of the vendor's runtime, with why it is left out, and the errors of the precision.
    """
    machine = Target.from_json(target)
    variants = {name: Variant.from_json(data) for name, data in wanted.items()}
    try:
        model = open_for(machine, Path(path), dims, precision=Precision(precision))
        compiled = CompiledVariants.of(model, machine, None, variants, VendorModel(Path(path), dims))
    except (ModelError, Refused, MemoryError) as fault:
        return {"reason": message(fault)}
    _loaded.append(compiled)
    return {
        "reason": "",
        "fallback": model.fallback_ops,
        "runtime_nodes": model.runtime_nodes,
        "vendor": [compiled.vendor_version, compiled.vendor_fault],
        "precision_errors": dict(compiled.precision_errors),
    }


def time() -> dict[str, list[float]]:
    """Seconds of a run of each that was loaded, by opening."""
    return {name: list(latency.samples_s) for name, latency in _loaded[-1].time().items()}


CALLS: dict[str, Callable[..., Any]] = {"load": load, "time": time}

"""Calls of a measuring child: build a candidate, check it, time it. `process.Child` requests `CALLS`.

Arguments and results are plain data, as in `wire`. Only failures of the candidate are caught here; the parent sees
crashes and hangs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.build import build as gpu_build
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import DeviceFault
from tunewright.codegen.cuda.driver import driver as gpu_driver
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import machine
from tunewright.codegen.llvm.build import BuildError, ObjectCache, build
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA
from tunewright.graph.task import Task
from tunewright.search_space.measurement import DRIFT, NOISE, Measurement, Status
from tunewright.search_space.sketches import lower

from ..pool import Unfit
from ..wire import TaskCache, artifact_json, identity, read_artifact, read_candidate
from . import sampling
from .cache_flush import LASTING_S
from .check import CpuKernel, Example, LoadedKernel
from .gpu import GpuKernel, Patience
from .noise import Result, run_undisturbed
from .race import FIRST_SAMPLES, LONG_RUN_S, SLOWER_RATIO, Incumbent, Race, RaceResult, Runner

EXAMPLES = 4
"""Tasks whose examples stay in memory: candidates come task by task."""

MAX_RERUNS, IMPLAUSIBLE_RATIO = 4, 10.0
"""How often a suspiciously long first run is repeated; and the multiple of the usual time above which it is repeated
more than once."""

WARM_UP_SAMPLES = 4
"""Runs before a sample with warm caches: constants that fit only into a last-level cache are there after some runs.
Long runs need none."""


@dataclass(slots=True)
class ComparedKernel:
    """A schedule of a comparison, and its fault."""

    kernel: LoadedKernel
    repeats: int
    fault: str | None = None


_examples: OrderedDict[str, Example] = OrderedDict()
_incumbents: dict[tuple[str, int], Incumbent] = {}  # by task and threads
_compared_kernels: list[ComparedKernel] = []
_last_task = TaskCache()
_object_cache = cache(ObjectCache)
_pool = cache(shared_pool)
_provenance = cache(machine)
_patience = Patience()  # renewed by each request


def build_candidate(candidate: dict[str, Any], objects: str) -> dict[str, Any]:
    """Lower and compile, or take from the cache in folder `objects`.

    Returns `artifact` and its `identity`, or an `error`; and `build_s`.
    """
    start_s = time.perf_counter()
    request = read_candidate(candidate, _last_task)
    try:
        compiler = gpu_build if request.target.kind == CUDA else build
        data = artifact_json(compiler(lower(request), request.target, _object_cache(Path(objects))))
    except BuildError as error:
        return {"error": str(error), "build_s": time.perf_counter() - start_s}
    return {"artifact": data, "identity": identity(data), "build_s": time.perf_counter() - start_s}


def open_gpu() -> None:
    """Start CUDA, which may take many seconds, before the time of a candidate counts. Raises Unfit."""
    try:
        gpu_driver()
    except (NoDevice, NoCompiler, DeviceFault) as error:
        raise Unfit(f"it can't be opened: {error}") from error


def prepare(task: dict[str, Any]) -> None:
    """Compute the example of a task, which the calls below need, unless it is in memory."""
    example_task = Task.from_json(task)
    if example_task.key not in _examples:
        while len(_examples) >= EXAMPLES:
            _forget(_examples.popitem(last=False)[0])
        _examples[example_task.key] = Example(example_task)
    _examples.move_to_end(example_task.key)


def _forget(task_key: str) -> None:
    """Close the incumbents of a task whose example was dropped."""
    for key in [key for key in _incumbents if key[0] == task_key]:
        _incumbents.pop(key).close()


def measure(
    task_key: str, artifact: dict[str, Any], threads: int, budget_s: float, best_s: float | None
) -> dict[str, Any]:
    """Check an artifact and race it against the best one measured so far: its `measurement`.

    `is_fastest`: it is the next incumbent; `has_anchor`: it has an anchor then. `unprepared`: the example is missing,
    as the child that had prepared it has died, and this is another one.
    """
    if task_key not in _examples:
        return {"unprepared": True}
    _examples.move_to_end(task_key)
    measurement, kernel = _load_artifact(task_key, artifact, threads)
    if kernel is None:
        return {"measurement": measurement.to_json(), "is_fastest": False, "has_anchor": False}
    measurement = _with_check(measurement, kernel.check())
    if measurement.status is Status.OK:
        measurement = _time_in_race(measurement, kernel, (task_key, threads), budget_s, best_s)
    best = _incumbents.get((task_key, threads))
    if best is None or best.kernel is not kernel:
        kernel.close()
        return {"measurement": measurement.to_json(), "is_fastest": False, "has_anchor": False}
    return {"measurement": measurement.to_json(), "is_fastest": True, "has_anchor": best.anchor is not None}


def recall(task_key: str, known: list[dict[str, Any]], threads: int) -> None:
    """Load the fastest artifact of a task that an earlier child measured, unless this one has its own.

    `known` are its anchor, if there is one, and itself, each an `artifact` with its `time_s`.
    """
    key = task_key, threads
    if task_key not in _examples or key in _incumbents:
        return
    for entry in known:
        _, kernel = _load_artifact(task_key, entry["artifact"], threads)
        if kernel is None:
            return
        fault, _ = kernel.check()
        if fault:
            kernel.close()
            return
        runner, time_s = _runner(kernel), entry["time_s"]
        now_s = sampling.interval(runner.samples(FIRST_SAMPLES, time.monotonic() + sampling.MAX_SAMPLING_S)).median_s
        _set_incumbent(key, kernel, runner, time_s, 1.0)
        _incumbents[key].note(now_s)


def _set_incumbent(key: tuple[str, int], kernel: LoadedKernel, runner: Runner, time_s: float, drift: float) -> None:
    incumbent = _incumbents.get(key)
    if incumbent is None:
        _incumbents[key] = Incumbent(runner, time_s, drift, kernel=kernel)
    else:
        _incumbents[key] = incumbent.successor(runner, time_s, drift, kernel)


def _runner(kernel: LoadedKernel, usual_s: float = 0.0) -> Runner:
    """Find how many runs make a sample. `usual_s` is the time of other schedules of the task, or 0.

    A first run that is long, and much longer than usual, is repeated: a kernel of microseconds that was interrupted for
    milliseconds would pass for one that needs no second run. A second run that is implausibly long is repeated too: a
    thread of the kernel may have waited for its processor twice.
    """
    doubted_s = SLOWER_RATIO * usual_s
    for _ in range(MAX_RERUNS):
        if kernel.once_s < LONG_RUN_S or kernel.once_s <= doubted_s:
            break
        kernel.rerun()
        doubted_s = IMPLAUSIBLE_RATIO * usual_s if usual_s else inf
    return Runner(kernel.cold, sampling.repeats(kernel.cold, kernel.once_s), kernel.once_s)


def _time_in_race(
    measurement: Measurement,
    kernel: LoadedKernel,
    key: tuple[str, int],
    budget_s: float,
    best_s: float | None,
) -> Measurement:
    """The measurement with its samples, if all runs gave the same outputs. The fastest stays loaded."""
    incumbent = _incumbents.get(key)
    runner, outcome = _race(kernel, incumbent, budget_s, best_s)
    fault = kernel.recheck() if outcome.ran else kernel.damage()  # else the outputs may be another kernel's
    measurement = _with_check(measurement, (fault, measurement.max_rel_err))
    measurement = replace(measurement, provenance={**measurement.provenance, **kernel.provenance})
    if measurement.status is not Status.OK:
        return measurement
    if outcome.drift is not None:
        provenance = {**measurement.provenance, DRIFT: f"{outcome.drift:.3g}"}
        measurement = replace(measurement, incumbent_s=outcome.incumbent_s, provenance=provenance)
    if outcome.doubt:
        measurement = replace(measurement, provenance=measurement.provenance | {NOISE: outcome.doubt})
    measurement = sampling.with_samples(measurement, outcome.samples_s)
    if outcome.is_fastest:
        assert measurement.median_s is not None
        _set_incumbent(key, kernel, runner, measurement.median_s, outcome.drift or 1.0)
    return measurement


def _race(
    kernel: LoadedKernel, incumbent: Incumbent | None, budget_s: float, best_s: float | None
) -> tuple[Runner, RaceResult]:
    """Race a checked kernel, and again if there was much steal."""

    def attempt() -> tuple[Runner, RaceResult]:
        runner = _runner(kernel, incumbent.time_s * incumbent.drift if incumbent else best_s or 0.0)
        return runner, Race(runner, incumbent, best_s).run(budget_s)

    return _run_undisturbed(kernel, attempt, kernel.rerun)  # the run of the check may have been held up as well


def _run_undisturbed(
    kernel: LoadedKernel, attempt: Callable[[], Result], prepare_retry: Callable[[], None] = lambda: None
) -> Result:
    """Apply `run_undisturbed`, except on a GPU, which runs on while its processors are stolen."""
    return attempt() if isinstance(kernel, GpuKernel) else run_undisturbed(attempt, prepare_retry)


def _load_artifact(task_key: str, artifact: dict[str, Any], threads: int) -> tuple[Measurement, LoadedKernel | None]:
    """Load an artifact; a measurement without samples, of a failure if it can't be loaded."""
    _patience.renew()
    kernel_artifact = read_artifact(artifact)
    measurement = Measurement(Status.OK, object_sha256=kernel_artifact.sha256, provenance=_provenance())
    try:
        if not isinstance(kernel_artifact, GpuArtifact):
            return measurement, CpuKernel(_examples[task_key], kernel_artifact, _pool(threads))
        kernel = GpuKernel(_examples[task_key], kernel_artifact, gpu_driver(), _patience)
    except RuntimeError as error:
        return replace(measurement, status=Status.BUILD_ERROR, error=f"can't be loaded: {error}"), None
    return replace(measurement, provenance={**measurement.provenance, **kernel.provenance}), kernel


def _with_check(measurement: Measurement, outcome: tuple[str | None, float | None]) -> Measurement:
    fault, max_rel_err = outcome
    if fault:
        return replace(measurement, status=Status.WRONG_RESULT, error=fault, max_rel_err=max_rel_err)
    return replace(measurement, max_rel_err=max_rel_err)


def load(task_key: str, artifact: dict[str, Any], threads: int) -> dict[str, Any]:
    """Check an artifact and store it in memory for `sample`, under its `number`.

    `measurement` has no samples yet; nothing can be sampled unless its status is OK.
    """
    measurement, kernel = _load_artifact(task_key, artifact, threads)
    if kernel is None:
        return {"number": -1, "measurement": measurement.to_json()}
    measurement = _with_check(measurement, kernel.check())
    count = _runner(kernel).repeats if measurement.status is Status.OK else 0
    _compared_kernels.append(ComparedKernel(kernel, count))
    return {"number": len(_compared_kernels) - 1, "measurement": measurement.to_json()}


def sample(number: int) -> float:
    """One sample of a loaded kernel with cold constants.

    Another kernel has run before. A long run loads inputs and outputs by itself; a short one is preceded by a run for
    that.
    """
    kernel = _compared_kernels[number].kernel
    return _sample(number, kernel.cold, fills=kernel.once_s < LASTING_S)


def warm(number: int) -> float:
    """One sample of a loaded kernel with all operands in the caches, as far as they fit."""
    kernel = _compared_kernels[number].kernel
    return _sample(number, kernel.warm, warm_up_samples=0 if kernel.once_s >= LASTING_S else WARM_UP_SAMPLES)


def _sample(number: int, runs: sampling.Timeable, *, fills: bool = True, warm_up_samples: int = 0) -> float:
    entry = _compared_kernels[number]
    _patience.renew()

    def attempt() -> float:
        if fills:
            entry.kernel.fill()
        *_, time_s = runs.time(warm_up_samples + 1, entry.repeats)
        return time_s

    time_s = _run_undisturbed(entry.kernel, attempt)
    entry.fault = entry.fault or entry.kernel.recheck_outputs()
    return time_s


def recheck(number: int) -> dict[str, Any]:
    """The `fault` of a loaded kernel since its check, or null, and its `provenance`."""
    entry = _compared_kernels[number]
    return {"fault": entry.fault or entry.kernel.damage(), "provenance": {**_provenance(), **entry.kernel.provenance}}


CALLS: dict[str, Callable[..., Any]] = {
    "build": build_candidate,
    "open_gpu": open_gpu,
    "prepare": prepare,
    "measure": measure,
    "recall": recall,
    "load": load,
    "sample": sample,
    "warm": warm,
    "recheck": recheck,
}

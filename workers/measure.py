"""What a child does: build a candidate, check it, time it. `CALLS` are the requests that `process.Child` can make.

All arguments and results are plain data, as `wire` has them. Nothing is caught here but what a candidate can be
blamed for: a crash or a hang is for the parent to see.
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

from tunewright.codegen.build import BuildError, ObjectCache, build
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.build import build as gpu_build
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import DeviceFault
from tunewright.codegen.cuda.driver import driver as gpu_driver
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import machine
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import lower

from . import sampling
from .check import Example, Loaded
from .cold import LASTING_S
from .gpu import GpuLoaded, Patience
from .pool import Unfit
from .racing import CLEARLY, FIRST, LONG_S, Incumbent, Outcome, Race, Runner
from .stolen import Result, undisturbed
from .wire import LastTask, artifact_json, identity, read_artifact, read_candidate

EXAMPLES = 4
"""Tasks whose examples are kept: candidates come task by task."""

DOUBTS, BEYOND_BELIEF = 4, 10.0
"""How often a run that took too long is repeated: after the first time where it took so many times what others take."""

WARMING = 4
"""Samples before one with all operands in the caches: it takes some runs until constants are there which only a
last-level cache has room for. None where a run is lasting: it matters less there where so few bytes come from."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest schedule of a task that was measured here, in memory, with the one that is its standard."""

    loaded: Loaded | GpuLoaded
    incumbent: Incumbent
    standard: Fastest | None = None

    def succeeded(self, loaded: Loaded | GpuLoaded, incumbent: Incumbent) -> Fastest:
        """The next one. What nothing is put in proportion to any more is closed."""
        mine = [self, *([self.standard] if self.standard else [])]
        found = Fastest(loaded, incumbent, next((one for one in mine if one.incumbent is incumbent.standard), None))
        assert (found.standard is None) == (incumbent.standard is None)
        for one in mine:
            if one is not found.standard:
                one.loaded.close()
        return found

    def close(self) -> None:
        self.loaded.close()
        if self.standard is not None:
            self.standard.loaded.close()


@dataclass(slots=True)
class Kept:
    """A schedule that is being compared, and what was found wrong with it."""

    loaded: Loaded | GpuLoaded
    repeats: int
    fault: str | None = None


_examples: OrderedDict[str, Example] = OrderedDict()
_fastest: dict[tuple[str, int], Fastest] = {}  # by task and threads
_kept: list[Kept] = []
_last_task = LastTask()
_object_cache = cache(ObjectCache)
_pool = cache(shared_pool)
_provenance = cache(machine)
_patience = Patience()  # of the request


def build_candidate(candidate: dict[str, Any], objects: str) -> dict[str, Any]:
    """Lower and compile, or take from the cache in folder `objects`.

    `artifact` and its `identity`, or an `error`; and `build_s`.
    """
    start_s = time.perf_counter()
    one = read_candidate(candidate, _last_task)
    try:
        built = gpu_build if one.target.kind == CUDA else build
        data = artifact_json(built(lower(one), one.target, _object_cache(Path(objects))))
    except BuildError as error:
        return {"error": str(error), "build_s": time.perf_counter() - start_s}
    return {"artifact": data, "identity": identity(data), "build_s": time.perf_counter() - start_s}


def open_gpu() -> None:
    """Have the GPU at hand for the calls below: CUDA may take many seconds to start, which are no candidate's.

    Raises Unfit.
    """
    try:
        gpu_driver()
    except (NoDevice, NoCompiler, DeviceFault) as error:
        raise Unfit(f"it can't be opened: {error}") from error


def prepare(task: dict[str, Any]) -> None:
    """Compute the example of a task, unless it is at hand: the calls below need it."""
    one = Task.from_json(task)
    if one.key not in _examples:
        while len(_examples) >= EXAMPLES:
            _forget(_examples.popitem(last=False)[0])
        _examples[one.key] = Example(one)
    _examples.move_to_end(one.key)


def _forget(task_key: str) -> None:
    """The fastest schedules of a task whose example is not at hand any more."""
    for key in [key for key in _fastest if key[0] == task_key]:
        _fastest.pop(key).close()


def measure(
    task_key: str, artifact: dict[str, Any], threads: int, budget_s: float, best_s: float | None
) -> dict[str, Any]:
    """Check an artifact and time it, against the fastest one measured so far: its Measurement. See `racing.Race`.

    `is_fastest` says whether it is the next to be raced against, `is_standard` whether it is its own standard then.
    `unprepared` where the example is not at hand: the child that had prepared it is dead, and this one came after it.
    """
    if task_key not in _examples:
        return {"unprepared": True}
    _examples.move_to_end(task_key)
    begun, loaded = _begin(task_key, artifact, threads)
    if loaded is None:
        return {"measurement": begun.to_json(), "is_fastest": False, "is_standard": False}
    begun = _checked(begun, loaded.check())
    if begun.status is Status.OK:
        begun = _raced(begun, loaded, (task_key, threads), budget_s, best_s)
    fastest = _fastest.get((task_key, threads))
    if fastest is None or fastest.loaded is not loaded:
        loaded.close()
        return {"measurement": begun.to_json(), "is_fastest": False, "is_standard": False}
    return {"measurement": begun.to_json(), "is_fastest": True, "is_standard": fastest.standard is None}


def recall(task_key: str, known: list[dict[str, Any]], threads: int) -> None:
    """Have the fastest artifact of a task at hand, unless this child knows one itself. Others found it.

    `known`, each an `artifact` with its `time_s`: its standard, if it has one, then the fastest one.
    """
    key = task_key, threads
    if task_key not in _examples or key in _fastest:
        return
    for one in known:
        _, loaded = _begin(task_key, one["artifact"], threads)
        if loaded is None:
            return
        fault, _ = loaded.check()
        if fault:
            loaded.close()
            return
        runner, time_s = _runner(loaded), one["time_s"]
        now_s = sampling.interval(runner.samples(FIRST, time.monotonic() + sampling.LONGEST_S)).median_s
        _take_place(key, loaded, runner, time_s, now_s / time_s or 1.0)


def _take_place(key: tuple[str, int], loaded: Loaded | GpuLoaded, runner: Runner, time_s: float, pace: float) -> None:
    """Of the fastest one of a task, if there is one."""
    if (before := _fastest.get(key)) is None:
        _fastest[key] = Fastest(loaded, Incumbent(runner, time_s, pace))
    else:
        _fastest[key] = before.succeeded(loaded, before.incumbent.successor(runner, time_s, pace))


def _runner(loaded: Loaded | GpuLoaded, usual_s: float = 0.0) -> Runner:
    """`usual_s` is what others of the task take.

    A first run that took long, and much longer than that, is doubted: a kernel of microseconds that was interrupted for
    milliseconds would be taken for one that needs no second run. So is a second one that is beyond belief, as where a
    thread of the kernel had to wait for its processor twice.
    """
    doubted_s = CLEARLY * usual_s
    for _ in range(DOUBTS):
        if loaded.once_s < LONG_S or loaded.once_s <= doubted_s:
            break
        loaded.again()
        doubted_s = BEYOND_BELIEF * usual_s if usual_s else inf
    return Runner(loaded.cold, sampling.repeats(loaded.cold, loaded.once_s), loaded.once_s)


def _raced(
    begun: Measurement, loaded: Loaded | GpuLoaded, key: tuple[str, int], budget_s: float, best_s: float | None
) -> Measurement:
    """The measurement with its figures, if all runs gave the same. The fastest stays loaded."""
    incumbent = _fastest[key].incumbent if key in _fastest else None
    runner, outcome = _race(loaded, incumbent, budget_s, best_s)
    fault = loaded.recheck() if outcome.ran else loaded.damage()  # else another's outputs may lie there
    begun = _checked(begun, (fault, begun.max_rel_err))
    begun = replace(begun, provenance={**begun.provenance, **loaded.provenance})
    if begun.status is not Status.OK:
        return begun
    if outcome.pace is not None:
        provenance = {**begun.provenance, "pace": f"{outcome.pace:.3g}"}
        begun = replace(begun, incumbent_s=outcome.beside_s, provenance=provenance)
    begun = sampling.timed(begun, outcome.samples_s)
    if outcome.is_fastest:
        assert begun.median_s is not None
        _take_place(key, loaded, runner, begun.median_s, outcome.pace or 1.0)
    return begun


def _race(
    loaded: Loaded | GpuLoaded, incumbent: Incumbent | None, budget_s: float, best_s: float | None
) -> tuple[Runner, Outcome]:
    """A race of what was checked, begun anew where its time was stolen."""

    def attempt() -> tuple[Runner, Outcome]:
        runner = _runner(loaded, incumbent.time_s * incumbent.pace if incumbent else best_s or 0.0)
        return runner, Race(runner, incumbent, best_s).run(budget_s)

    return _undisturbed(loaded, attempt, loaded.again)  # the run of the check may have been held up as well


def _undisturbed(
    loaded: Loaded | GpuLoaded, attempt: Callable[[], Result], anew: Callable[[], None] = lambda: None
) -> Result:
    """See `undisturbed`. A GPU goes on by itself while the processors that wait for it are elsewhere."""
    return attempt() if isinstance(loaded, GpuLoaded) else undisturbed(attempt, anew)


def _begin(task_key: str, artifact: dict[str, Any], threads: int) -> tuple[Measurement, Loaded | GpuLoaded | None]:
    """The artifact in memory, and a measurement without figures; that of a failure if it can't be loaded."""
    _patience.renew()
    built = read_artifact(artifact)
    begun = Measurement(Status.OK, object_sha256=built.sha256, provenance=_provenance())
    try:
        if not isinstance(built, GpuArtifact):
            return begun, Loaded(_examples[task_key], built, _pool(threads))
        loaded = GpuLoaded(_examples[task_key], built, gpu_driver(), _patience)
    except RuntimeError as error:
        return replace(begun, status=Status.BUILD_ERROR, error=f"can't be loaded: {error}"), None
    return replace(begun, provenance={**begun.provenance, **loaded.provenance}), loaded


def _checked(begun: Measurement, outcome: tuple[str | None, float | None]) -> Measurement:
    fault, max_rel_err = outcome
    if fault:
        return replace(begun, status=Status.WRONG_RESULT, error=fault, max_rel_err=max_rel_err)
    return replace(begun, max_rel_err=max_rel_err)


def load(task_key: str, artifact: dict[str, Any], threads: int) -> dict[str, Any]:
    """Check an artifact and keep it in memory for `sample`: its `number`.

    `measurement` has no figures yet; unless its status is OK, there is nothing to sample.
    """
    begun, loaded = _begin(task_key, artifact, threads)
    if loaded is None:
        return {"number": -1, "measurement": begun.to_json()}
    begun = _checked(begun, loaded.check())
    count = _runner(loaded).repeats if begun.status is Status.OK else 0
    _kept.append(Kept(loaded, count))
    return {"number": len(_kept) - 1, "measurement": begun.to_json()}


def sample(number: int) -> float:
    """One sample of what was loaded, with its constants cold; another one has run before.

    A lasting run brings inputs and outputs, which all share, near by itself, as that of the other did; before a short
    one a run does that.
    """
    one = _kept[number]
    _patience.renew()

    def attempt() -> float:
        if one.loaded.once_s < LASTING_S:
            one.loaded.fill()
        [time_s] = one.loaded.cold.time(1, one.repeats)
        return time_s

    time_s = _undisturbed(one.loaded, attempt)
    one.fault = one.fault or one.loaded.recheck_outputs()
    return time_s


def warm(number: int) -> float:
    """One sample of what was loaded, with all operands in the caches, as far as these have room for them."""
    one = _kept[number]
    _patience.renew()
    warming = 0 if one.loaded.once_s >= LASTING_S else WARMING

    def attempt() -> float:
        one.loaded.fill()
        *_, time_s = one.loaded.warm.time(warming + 1, one.repeats)
        return time_s

    time_s = _undisturbed(one.loaded, attempt)
    one.fault = one.fault or one.loaded.recheck_outputs()
    return time_s


def recheck(number: int) -> dict[str, Any]:
    """Of what was loaded and has been sampled since: the `fault` that it has, or null, and its `provenance`."""
    one = _kept[number]
    return {"fault": one.fault or one.loaded.damage(), "provenance": {**_provenance(), **one.loaded.provenance}}


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

"""Timing whole models: on default and on found schedules, side by side.

`time_sessions` does it in this process, for a model that its user runs anyway. Models that were sent to the service are
strangers': `UploadTiming` runs them in a confined child, and whatever goes wrong there is a reason, not an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tunewright.codegen.build import ObjectCache
from tunewright.codegen.cuda.driver import DeviceFault, Unloadable
from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.target import Target
from tunewright.db.errors import NotFound
from tunewright.db.uploads import Uploads
from tunewright.graph.onnx_import import ModelError
from tunewright.search_space.schedule import Schedule
from tunewright.workers.latency import rest, rest_own, side_by_side
from tunewright.workers.lock import HostLock
from tunewright.workers.process import Child, ChildError, ChildLimits, Failed

from ..errors import Refused, message
from ..models.inputs import example_feeds
from ..models.model import Model, open_model
from ..running.session import InferenceSession
from ..text import printable

LOAD_S, TIME_S = 300.0, 120.0
"""What reading a model and building its kernels may take, and what timing it may."""

REASON_LETTERS = 300
"""Of a reason, which may have come out of a model."""


BUDGET_S = 0.8
"""Seconds that models are timed for, unless the fewest rounds take longer."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a model: on these schedules, and with what is fastest by these times (inf: fails); by task key."""

    schedules: Mapping[str, Schedule]
    times_s: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        schedules = {key: schedule.to_json() for key, schedule in self.schedules.items()}
        times_s = {key: time_s if isfinite(time_s) else None for key, time_s in self.times_s.items()}
        return {"schedules": schedules, "times_s": times_s}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Variant:
        """The inverse of `to_json`."""
        schedules = {key: Schedule.from_json(schedule) for key, schedule in data["schedules"].items()}
        return Variant(schedules, {key: inf if time_s is None else time_s for key, time_s in data["times_s"].items()})


Wanted = Mapping[str, Variant]
"""What to time, by name."""

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Seconds of one run of a model by name, of those wanted, and what it has no kernels for."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    fallback: Mapping[str, int] = field(default_factory=dict)  # op -> nodes
    reason: str = ""  # why nothing was timed, one line


Timing = Callable[[Wanted], ModelTimes]
"""Times one model."""


def is_here(target: Target) -> bool:
    """Whether this machine is the target's, so that its code can run in processes of this machine."""
    return detect(target.threads) == target and len(available_cores()) >= target.threads


def time_sessions(model: Model, target: Target, objects: Path, wanted: Wanted) -> ModelTimes:
    """Time a model in this process, when nobody builds or times candidates on this machine."""
    try:
        with ExitStack() as stack:
            calls = _calls(stack, model, target, ObjectCache(objects), wanted)
            with HostLock(objects).timing():
                return ModelTimes(_times_s(calls, model.fallback_ops), model.fallback_ops)
    except (DeviceFault, Unloadable, MemoryError) as fault:  # the findings of the job stand
        return ModelTimes(reason=_line(message(fault)))


def _calls(
    stack: ExitStack, model: Model, target: Target, cache: ObjectCache | None, wanted: Wanted
) -> dict[str, Callable[[], Any]]:
    feeds = example_feeds(model)
    return {
        name: partial(
            stack.enter_context(
                InferenceSession.of(model.chosen(variant.times_s), target, variant.schedules, cache)
            ).run,
            None,
            feeds,
        )
        for name, variant in wanted.items()
    }


def _times_s(calls: Mapping[str, Callable[[], Any]], fallback: Mapping[str, int]) -> dict[str, float]:
    """What has no kernel may run on threads that are not ours."""
    settle = rest if fallback else rest_own
    return {name: latency.median_s for name, latency in side_by_side(calls, BUDGET_S, settle).items()}


class UploadTiming:
    """Times a model that was uploaded. `objects` is the folder whose lock keeps others still meanwhile."""

    def __init__(self, uploads: Uploads, sha256: str, dims: Mapping[str, int], target: Target, objects: Path) -> None:
        self._uploads, self._sha256, self._dims, self._target, self._objects = uploads, sha256, dims, target, objects

    def __call__(self, wanted: Wanted) -> ModelTimes:
        if not self._sha256:
            return ModelTimes(reason="it is a job of tasks, without a model")
        if not is_here(self._target):
            return ModelTimes(reason=f"the machine that the job ran from is no {self._target}")
        try:
            return self._timed(wanted)
        except (NotFound, OSError, Failed) as fault:
            return ModelTimes(reason=_line(message(fault)))
        except (KeyError, TypeError, ValueError):
            return ModelTimes(reason="the process that timed it answered nonsense")
        except ChildError as bug:  # of what ran there: the findings of the job stand
            _log.warning("the whole model could not be timed: %s", bug)
            return ModelTimes(reason="the process that timed it failed")

    def _timed(self, wanted: Wanted) -> ModelTimes:
        lock = HostLock(self._objects)
        with (
            TemporaryDirectory(prefix="tunewright-") as folder,
            Child(ChildLimits(confined=True), calls="tunewright.tuner.jobs.whole_model") as child,
        ):
            path = self._written(Path(folder) / "model.onnx")
            with lock.building():
                loaded = child.request(
                    "load",
                    LOAD_S,
                    path=str(path),
                    dims=dict(self._dims),
                    target=self._target.to_json(),
                    wanted={name: variant.to_json() for name, variant in wanted.items()},
                )
            if loaded["reason"]:
                return ModelTimes(reason=_line(loaded["reason"]))
            with lock.timing():
                times_s = child.request("time", TIME_S)
        return ModelTimes(_checked_times(times_s, wanted), _checked_fallback(loaded["fallback"]))

    def _written(self, path: Path) -> Path:
        """The model as a file."""
        with path.open("wb") as file:
            file.writelines(self._uploads.read(self._sha256))
        return path


def _line(text: str) -> str:
    return printable(" ".join(text.split()))[:REASON_LETTERS]


def _checked_times(times_s: Any, wanted: Wanted) -> dict[str, float]:
    """What a confined child says is believed as far as it can be a time."""
    checked = {name: float(times_s[name]) for name in wanted}
    if not all(isfinite(time_s) and time_s > 0 for time_s in checked.values()):
        raise ValueError("no times")
    return checked


def _checked_fallback(fallback: Any) -> dict[str, int]:
    return {_line(str(op)): int(count) for op, count in dict(fallback).items()}


# What the child does

_loaded: dict[str, Callable[[], Any]] = {}
_fallback: dict[str, int] = {}
_stack = ExitStack()


def load(path: str, dims: dict[str, int], target: dict[str, Any], wanted: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Read a model and build its kernels, those of each name: `fallback`, or a `reason` why that can't be."""
    machine = Target.from_json(target)
    variants = {name: Variant.from_json(data) for name, data in wanted.items()}
    try:
        model = open_model(Path(path), dims)
        _loaded.update(_calls(_stack, model, machine, None, variants))
        _fallback.update(model.fallback_ops)
    except (ModelError, Refused, MemoryError) as fault:
        return {"reason": message(fault), "fallback": {}}
    return {"reason": "", "fallback": model.fallback_ops}


def time() -> dict[str, float]:
    """Seconds of one run of each that was loaded."""
    return _times_s(_loaded, _fallback)


CALLS: dict[str, Callable[..., Any]] = {"load": load, "time": time}

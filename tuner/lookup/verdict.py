"""Verdict: what a model runs on by its last job, where that is not the best schedule of each of its tasks.

It keeps the defaults where nothing that was found makes it faster as a whole; and where a vendor's runtime is faster
than our kernels, that runs it. Nothing here needs a database, but for the job that is looked up there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tunewright.codegen.codec import IN_MS, from_json, to_json
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import NOISE, Measurement, Status
from tunewright.search_space.sketches import default_schedule

from ..text import ONNX_RUNTIME, Interval, between, between_ms, duration, mark_noise, printable, ratio, times
from ..units import in_ms
from .result import LONGEST_TEXT, LookupResult, Match, seconds, unmeasured_result

if TYPE_CHECKING:
    from tunewright.db.store import Store

VENDOR = "vendor"
"""The `outcome` in the result of a job whose model a vendor's runtime runs faster."""


DEFAULTS_KEPT = "defaults_kept"
"""The `outcome` in the result of a job whose model keeps its defaults: see `search.report`."""

TASK_FIELDS = ("key", "chosen", "default_ms", "default_interval_ms", "default_schedule", "noise", "confirmed")
"""Fields of a task in the result of such a job that lookups use. Jobs of older versions lack the last ones."""

KeptDefaults = Mapping[str, Mapping[str, Any]]
"""These fields of each task of such a model, by key; but of those whose default was taken back since."""


@dataclass(frozen=True, slots=True)
class VendorTime:
    """What a run of a model takes in a vendor's runtime, and on our kernels in turn with it; None: it was not timed."""

    version: str = ""  # of the runtime; empty where it is not there
    time_s: Annotated[float | None, IN_MS] = None
    interval_s: Annotated[Interval | None, IN_MS] = None  # 95%, and so are the others
    own_s: Annotated[float | None, IN_MS] = None  # on our kernels, as they would run it
    own_interval_s: Annotated[Interval | None, IN_MS] = None
    speedup_interval: Interval | None = None  # how many times as fast as on our kernels it is
    fault: str = ""  # why it is not taken whatever it takes, for people
    noise: str = ""  # why the machine was too busy to rely on the times; empty where it was not
    runtime: str = ONNX_RUNTIME

    @property
    def name(self) -> str:
        """The runtime with its version, for people."""
        return printable(" ".join(filter(None, (self.runtime, self.version))))

    @property
    def speedup(self) -> float | None:
        """How many times as fast as on our kernels a run is."""
        return ratio(self.own_s, self.time_s)

    @property
    def text(self) -> str:
        """The times of both, in words."""
        if self.time_s is None or self.own_s is None:
            return f"{self.name} was not compared: {printable(self.fault)}"
        figures = duration(in_ms(self.time_s)), duration(in_ms(self.own_s)), times(self.speedup)
        time, own_time, speedup = (mark_noise(figure, self.noise) for figure in figures)
        interval_ms, own_interval_ms = map(_in_ms, (self.interval_s, self.own_interval_s))
        return (
            f"{self.name} takes {time}{between_ms(interval_ms)}, our kernels {own_time}{between_ms(own_interval_ms)}: "
            f"it is {speedup} as fast{between(self.speedup_interval)}"
        )

    def conclusion(self, is_taken: bool) -> str:
        """The same, and what comes of it for the model."""
        if self.time_s is None:
            return self.text
        if self.fault:
            return f"{self.text}, but {printable(self.fault)}, so our kernels run the model"
        return f"{self.text}, so {'it runs' if is_taken else 'our kernels run'} the model"

    @property
    def note(self) -> str:
        """The note on a model whose last job took the runtime: it runs the model, unless there is a fault by now."""
        return f"by the last tuning job {self.conclusion(is_taken=True)}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds; `read` inverts it."""
        data: dict[str, Any] = to_json(self)
        return data

    @staticmethod
    def read(data: Any) -> VendorTime | None:
        """The inverse of `to_json` for untrusted data of a runtime that was taken; None for None.

        Raises ValueError where it is no such data.
        """
        if data is None:
            return None
        told = from_json(VendorTime, data)
        if told.runtime != ONNX_RUNTIME or not told.time_s or not told.own_s:
            raise ValueError("it names no runtime that is known here, or no times")
        for time_s in (told.time_s, told.own_s, *(told.interval_s or ()), *(told.own_interval_s or ())):
            seconds(in_ms(time_s))
        if any(len(text) > LONGEST_TEXT for text in (told.version, told.fault, told.noise)):
            raise ValueError("its texts are too long")
        return told


def _in_ms(interval_s: Interval | None) -> Interval | None:
    return None if interval_s is None else (1e3 * interval_s[0], 1e3 * interval_s[1])


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """The verdict on a model; empty where each task runs on its best schedule."""

    kept: KeptDefaults | None = None  # the tasks that run on their defaults
    vendor: VendorTime | None = None  # the runtime that runs the model, where it is installed

    def to_json(self) -> dict[str, Any]:
        """Plain data; `read` inverts it."""
        return {
            "kept": None if self.kept is None else list(self.kept.values()),
            "vendor": None if self.vendor is None else self.vendor.to_json(),
        }

    @staticmethod
    def read(data: Any) -> ModelVerdict:
        """The inverse of `to_json`, for untrusted data. Raises ValueError for what is none."""
        if not isinstance(data, Mapping):
            raise ValueError("it is no verdict")
        kept = data.get("kept")
        if kept is not None and not (
            isinstance(kept, list) and all(isinstance(entry, dict) and "key" in entry for entry in kept)
        ):
            raise ValueError("it tells nothing of the tasks")
        by_key = None if kept is None else {str(entry["key"]): entry for entry in kept}
        return ModelVerdict(by_key, VendorTime.read(data.get("vendor")))


def model_verdict(store: Store, task_keys: Collection[str], target_key: str) -> ModelVerdict:
    """The verdict of the last job of a model with these tasks. Raises StoreError."""
    job = store.jobs.last_for_tasks(task_keys, target_key)
    if job is None or job.result is None:
        return ModelVerdict()
    result = job.result
    is_taken = result.get("outcome") == VENDOR
    vendor = VendorTime.read(result.get("vendor")) if is_taken else None
    if (result.get("own_outcome") if is_taken else result.get("outcome")) != DEFAULTS_KEPT:
        return ModelVerdict(vendor=vendor)
    voided = store.voids.in_force(task_keys, target_key)
    tasks = [task for task in result["tasks"] if (task["key"], task["default_schedule"]) not in voided]
    kept = {task["key"]: {name: task[name] for name in TASK_FIELDS if name in task} for task in tasks}
    return ModelVerdict(kept or None, vendor)  # None also where all are taken back


def default_results(
    results: Mapping[str, LookupResult], target: Target, kept_tasks: KeptDefaults
) -> dict[str, LookupResult] | None:
    """The default schedules of such a model, with their times. `results` are the best ones of its tasks.

    A task that `kept_tasks` lacks has its default taken back, and keeps its best. None where this version has other
    defaults than those that were timed. Raises ValueError where `kept_tasks` is not of these tasks.
    """
    if not kept_tasks or not kept_tasks.keys() <= results.keys():
        raise ValueError("it tells nothing of the tasks")
    try:
        kept = {key: (results[key], entry) for key, entry in kept_tasks.items()}
        if any(
            default_schedule(result.task, target).key != entry["default_schedule"] for result, entry in kept.values()
        ):
            return None
        return {**results, **{key: _default_result(result, target, entry) for key, (result, entry) in kept.items()}}
    except (KeyError, TypeError) as error:
        raise ValueError("it tells nothing of the tasks") from error


def _default_result(best: LookupResult, target: Target, entry: Mapping[str, Any]) -> LookupResult:
    """The default with its time."""
    task, told = best.task, default_time(entry)
    if told is None:
        return unmeasured_result(task, target)
    default, is_chosen = default_schedule(task, target), bool(entry["chosen"])
    if best.match is Match.EXACT and best.confirmed and best.schedule == default:  # the newest comparison of it
        return LookupResult(task, Match.DEFAULT, default, best.measurement, confirmed=True, is_chosen=is_chosen)
    return LookupResult(task, Match.DEFAULT, default, *told, is_chosen=is_chosen)


class DefaultTime(NamedTuple):
    """The time of a default by a job's result."""

    measurement: Measurement
    is_confirmed: bool  # it is of a comparison in fresh processes, else of a trial


def default_time(entry: Mapping[str, Any]) -> DefaultTime | None:
    """The time of a default by a task's fields in a job's result; None where there is none.

    Raises KeyError, TypeError or ValueError for other data.
    """
    if entry["default_ms"] is None:
        return None
    interval_ms, noise = entry["default_interval_ms"], entry.get("noise", "")
    low_s, high_s = map(seconds, interval_ms) if interval_ms else (None, None)
    measurement = Measurement(
        Status.OK,
        median_s=seconds(entry["default_ms"]),
        low_s=low_s,
        high_s=high_s,
        provenance={NOISE: str(noise)[:LONGEST_TEXT]} if noise else {},
    )
    return DefaultTime(measurement, entry.get("confirmed", True) is True)

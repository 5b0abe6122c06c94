"""KnownTimes: what a task's default and best take, as reports, events, pages and commands tell it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, Self

from tunewright.codegen.codec import to_json
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.device import driver_version
from tunewright.codegen.host import machine
from tunewright.codegen.target import CUDA, Target
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, Measurement, Status

from .noise import noise_of_measurement, total_noise
from .text import Interval
from .units import Time, TimeInterval

if TYPE_CHECKING:
    from tunewright.db.best import TaskComparisons
    from tunewright.db.store import Store

VERSIONS, GPU_VERSIONS = ("tunewright", "llvmlite", "llvm"), ("tunewright", "nvrtc", "driver")
"""Entries of a measurement's provenance with the versions of compiler and driver: others may make other code of it."""


def _names(kind: str) -> tuple[str, ...]:
    return GPU_VERSIONS if kind == CUDA else VERSIONS


@cache
def present_versions(kind: str) -> Mapping[str, str]:
    """The present versions for a kind of target. Those of GPUs are unknown where only nodes have them."""
    versions = machine()
    if kind == CUDA:
        with suppress(nvrtc.NoCompiler):
            versions["nvrtc"] = nvrtc.version()
            versions["driver"] = driver_version()
    return {name: versions[name] for name in _names(kind) if versions.get(name)}


def versions_of(provenance: Mapping[str, str], kind: str) -> Mapping[str, str]:
    """The versions by which something was measured on a kind of target, as far as they are known."""
    return {name: str(provenance[name]) for name in _names(kind) if provenance.get(name)}


def is_current(provenance: Mapping[str, str], target: Target) -> bool:
    """Whether the measured code came from the present versions for its target: else it is stale."""
    return present_versions(target.kind).items() <= provenance.items()


TIME_FIELDS = ("default_ms", "best_ms", "default_interval_ms", "best_interval_ms", "noise")
"""What reports and events have of two times that were confirmed."""


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Seconds of a task's default and best, as they are told; None where they are not known."""

    default_s: Time
    best_s: Time
    noise: str = ""  # why the machine was too busy to rely on both; empty where it was not
    is_confirmed: bool = False  # whether that of the best is of a comparison in fresh processes; else it is a trial's
    is_default_confirmed: bool = False  # whether that of the default is of one, the same
    is_apart: bool = False  # but that it is of a newer one, whose winner was taken back: they were not side by side
    is_as_trials: bool = False  # whether constants were cold then, and the default that of this version, as in trials
    default_interval_s: TimeInterval = None
    best_interval_s: TimeInterval = None

    @classmethod
    def of_confirmation(cls, measurement: Measurement, target: Target) -> Self:
        """The times of a confirmation, as `confirmation` makes it and the database keeps it."""
        return cls(
            measurement.incumbent_s,
            measurement.median_s,
            noise_of_measurement(measurement),
            is_confirmed=True,
            is_default_confirmed=True,
            is_as_trials=not is_warm(measurement) and is_current(measurement.provenance, target),
            default_interval_s=default_interval(measurement),
            best_interval_s=measurement.interval_s,
        )

    @classmethod
    def of_comparisons(cls, compared: TaskComparisons | None, target: Target) -> Self | None:
        """The default by the newest comparison, and the best by the newest that stands; None where there is neither.

        `compared` None: there was none. One that was taken back is passed over if it failed.
        """
        if compared is None:
            return None
        newest = compared.newest.measurement
        standing = compared.standing.measurement if compared.standing else None
        works = standing is not None and standing.status is Status.OK
        if newest.status is not Status.OK or newest == standing:
            return cls.of_confirmation(standing, target) if standing is not None and works else None
        times = cls.of_confirmation(newest, target)
        if standing is None or not works:
            return replace(times, best_s=None, best_interval_s=None, is_confirmed=False)
        noise = total_noise((times.noise, noise_of_measurement(standing)))
        return replace(times, best_s=standing.median_s, best_interval_s=standing.interval_s, noise=noise, is_apart=True)

    @classmethod
    def of_trial(cls, best: Measurement | None, default: KnownDefault, apart_noise: str = "") -> Self:
        """The times of a best that is a trial. `apart_noise`: why the two are hard to compare, of different moments."""
        return cls(
            default.time_s,
            best.median_s if best else None,
            noise_of_measurement(best) or default.noise or apart_noise,
            is_default_confirmed=default.is_confirmed,
            default_interval_s=default.interval_s,
            best_interval_s=best.interval_s if best else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as events have it of a task."""
        data = to_json(self)
        return {name: data[name] for name in TIME_FIELDS}


@dataclass(frozen=True, slots=True)
class KnownDefault:
    """The time of a task's default, as it is told beside a best that is a trial; None where it is not known."""

    time_s: float | None
    interval_s: Interval | None
    noise: str  # why the machine was too busy to rely on it; empty where it was not
    is_confirmed: bool  # whether it is of a comparison; else of its trial

    @classmethod
    def of_task(cls, store: Store, task_key: str, target: Target, default_key: str) -> Self | None:
        """As it is told beside the best of a task; None where it does not work or was taken back.

        `default_key` is that of the default schedule. Raises StoreError.
        """
        trial, best = store.trials.get(task_key, target.key, default_key), store.best(task_key, target.key)
        compared = store.comparisons([task_key], target.key).get(task_key)
        if (task_key, default_key) in store.voids.in_force([task_key], target.key):
            return None
        tried = trial.record.measurement if trial is not None and not trial.line.is_imported else None
        is_confirmed = best is not None and compared is not None and best == compared.standing
        return cls.beside_best(is_confirmed, tried, KnownTimes.of_comparisons(compared, target))

    @classmethod
    def beside_best(cls, is_confirmed: bool, trial: Measurement | None, compared: KnownTimes | None) -> Self | None:
        """As it is told beside a best that `is_confirmed`: by the newest comparison, else as beside a trial.

        `trial`: of the default, made here. None where it does not work.
        """
        if trial is not None and trial.status is not Status.OK:
            return None
        if not is_confirmed:
            return cls.beside_trial(trial, compared)
        if compared is None:
            return None
        return cls(compared.default_s, compared.default_interval_s, compared.noise, is_confirmed=True)

    @classmethod
    def beside_trial(cls, trial: Measurement | None, confirmed: KnownTimes | None) -> Self:
        """As it was confirmed last, where it was timed as trials are; else of its trial, which must work in any case.

        A single trial may be of a bad moment, and would stay.
        """
        works = trial is not None and trial.status is Status.OK
        if works and confirmed is not None and confirmed.default_s is not None and confirmed.is_as_trials:
            return cls(confirmed.default_s, confirmed.default_interval_s, confirmed.noise, is_confirmed=True)
        time_s, noise = trial.median_s if trial else None, noise_of_measurement(trial)
        return cls(time_s, trial.interval_s if trial else None, noise, is_confirmed=False)


def is_warm(confirmed: Measurement) -> bool:
    """Whether the time of a confirmation is with warm caches."""
    return confirmed.warm_s is not None and confirmed.median_s == confirmed.warm_s


def confirmation(best: Measurement, default: Measurement | None) -> Measurement:
    """The measurement to keep of what was chosen, with the default beside it; None where that failed.

    It is noisy where either is: from then on one mark is told of the two times and of their ratio.
    """
    provenance = {name: value for name, value in best.provenance.items() if name != DEFAULT_INTERVAL}
    if noise := total_noise(map(noise_of_measurement, (best, default))):
        provenance[NOISE] = noise
    if default is not None and (interval := default.interval_s) is not None:
        provenance[DEFAULT_INTERVAL] = " ".join(repr(float(edge_s)) for edge_s in interval)
    return replace(best, provenance=provenance, incumbent_s=default.median_s if default else None)


def default_interval(measurement: Measurement) -> Interval | None:
    """The interval of the default beside a confirmation; older versions kept none, and what is imported may be any."""
    with suppress(ValueError):
        low_s, high_s = map(float, measurement.provenance.get(DEFAULT_INTERVAL, "").split())
        if 0 < low_s < high_s < inf:
            return low_s, high_s
    return None

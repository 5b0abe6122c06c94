"""Report: what a tuning job found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..lookup.kept import DEFAULTS_KEPT
from ..running.coverage import fallback_share
from ..text import ratio
from ..units import in_ms, in_s


class Ended(StrEnum):
    """Why a search ended."""

    TRIALS = "trials"  # all of the budget were done
    MINUTES = "minutes"  # so was the time
    UNTIL = "until"  # another minute was expected to bring less than the budget asks for
    EXHAUSTED = "exhausted"  # no task had anything left to try


ENDINGS = {
    Ended.TRIALS: "all its trials were done",
    Ended.MINUTES: "its minutes were over",
    Ended.UNTIL: "another minute was expected to bring too little",
    Ended.EXHAUSTED: "nothing new was left to try",
}
"""The same for people."""


class Outcome(StrEnum):
    """What a job did for its model as a whole: trials and tasks may promise more than a run then shows."""

    FASTER = "faster"  # beyond the interval of the gain: what was found is in use
    DEFAULTS_KEPT = DEFAULTS_KEPT  # nothing found makes the model faster beyond it: its tasks keep their defaults
    UNTIMED = "untimed"  # the model could not be run on both: what was found for each task is in use


Interval = tuple[float, float]
"""The 95% interval of a median."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task: its default and the schedule chosen among the best, in turn in fresh processes after the search."""

    key: str
    op: str
    occurrences: int  # of the task in the model, also where it may stand for others or others for it
    chosen: int  # of these that the tuned model runs
    trials: int  # all that the database knows for this target
    flops: int
    default_s: float | None  # None where the default schedule failed
    best_s: float | None  # None where no schedule holds
    fraction_of_peak: float | None  # of the machine's multiply-add peak, measured by this process; None: not known
    schedule: dict[str, Any]
    default_interval_s: Interval | None = None  # of `default_s`, and the next of `best_s`; None: not known
    best_interval_s: Interval | None = None
    noise: str = ""  # why the machine was too busy to rely on the times, for people; empty where it was not
    default_key: str = ""  # of the default schedule: another version may have another one
    is_confirmed: bool = True  # whether it was compared; else there was nothing to compare, and times are of its trial

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations a second at the best time."""
        return self.flops / self.best_s / 1e9 if self.best_s else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds; `from_json` inverts it but for the last bits of times."""
        return {
            "key": self.key,
            "op": self.op,
            "occurrences": self.occurrences,
            "chosen": self.chosen,
            "trials": self.trials,
            "flops": self.flops,
            "default_ms": in_ms(self.default_s),
            "best_ms": in_ms(self.best_s),
            "gflops": self.gflops,
            "fraction_of_peak": self.fraction_of_peak,
            "schedule": self.schedule,
            "default_interval_ms": _in_ms(self.default_interval_s),
            "best_interval_ms": _in_ms(self.best_interval_s),
            "noise": self.noise,
            "confirmed": self.is_confirmed,
            "default_schedule": self.default_key,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TaskReport:
        """The inverse of `to_json`. Raises KeyError on other data."""
        return TaskReport(
            key=data["key"],
            op=data["op"],
            occurrences=data["occurrences"],
            chosen=data.get("chosen", data["occurrences"]),  # a job of before there was a choice
            trials=data["trials"],
            flops=data["flops"],
            default_s=in_s(data["default_ms"]),
            best_s=in_s(data["best_ms"]),
            fraction_of_peak=data["fraction_of_peak"],
            schedule=data["schedule"],
            default_interval_s=_in_s(data.get("default_interval_ms")),  # this and the rest: none of a job of before
            best_interval_s=_in_s(data.get("best_interval_ms")),
            noise=data.get("noise", ""),
            is_confirmed=data.get("confirmed", True),
            default_key=data.get("default_schedule", ""),
        )


def _in_ms(interval_s: Interval | None) -> list[float] | None:
    return None if interval_s is None else [1e3 * edge_s for edge_s in interval_s]


def _in_s(interval_ms: list[float] | None) -> Interval | None:
    return None if interval_ms is None else (interval_ms[0] / 1e3, interval_ms[1] / 1e3)


@dataclass(frozen=True, slots=True)
class Report:
    """One tuning job."""

    job_id: int
    model: str
    target: str
    trials: int  # measured by this job, over all the processes it took
    seconds: float  # of this process
    tasks: tuple[TaskReport, ...]
    default_s: float | None  # the whole model on default schedules, and tuned, run in turn; None where the schedule of
    tuned_s: float | None  # any task is known to fail, so that it can't be run
    peak_gflops: float | None  # None where the target is another machine
    failed: Mapping[str, int]  # status -> trials of this job
    fallback: Mapping[str, int]  # op -> nodes without a native kernel
    whole_model: str = ""  # why the whole model was not timed, one line; empty where it was
    ended_by: Ended | None = None  # None in a report from before that was told
    outcome: Outcome | None = None  # likewise
    default_interval_s: Interval | None = None  # of `default_s`
    tuned_interval_s: Interval | None = None
    speedup_interval: Interval | None = None  # of the ratio of both, taken round by round
    tasks_default_s: float | None = None  # what its tasks take of a run on defaults by their own times; None: not known
    rejected_s: float | None = None  # where the defaults were kept, what a run takes on what was found instead
    rejected_interval: Interval | None = None  # how many times as fast that was
    noise: str = ""  # why the machine was too busy to rely on these, for people; empty where it was not

    @property
    def speedup(self) -> float | None:
        """How many times as fast as by default the model is as it is run from now on; None where it was not timed."""
        return ratio(self.default_s, self.tuned_s)

    @property
    def kernels_s(self) -> float | None:
        """Seconds of a run of the tuned model that its tasks take, by their own times; None where one holds nowhere."""
        is_default = self.outcome is Outcome.DEFAULTS_KEPT
        used = [(task.chosen, task.default_s if is_default else task.best_s) for task in self.tasks if task.chosen]
        known_s = [count * time_s for count, time_s in used if time_s is not None]
        return sum(known_s) if len(known_s) == len(used) else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds; `from_json` inverts it but for the last bits of times."""
        return {
            "job": self.job_id,
            "model": self.model,
            "target": self.target,
            "trials": self.trials,
            "seconds": self.seconds,
            "tasks": [task.to_json() for task in self.tasks],
            "default_ms": in_ms(self.default_s),
            "tuned_ms": in_ms(self.tuned_s),
            "peak_gflops": self.peak_gflops,
            "failed": dict(self.failed),
            "fallback": dict(self.fallback),
            "fallback_share": fallback_share(self.fallback, in_ms(self.kernels_s), in_ms(self.tuned_s)),
            "whole_model": self.whole_model,
            "ended_by": None if self.ended_by is None else self.ended_by.value,
            "outcome": None if self.outcome is None else self.outcome.value,
            "default_interval_ms": _in_ms(self.default_interval_s),
            "tuned_interval_ms": _in_ms(self.tuned_interval_s),
            "speedup": self.speedup,
            "speedup_interval": None if self.speedup_interval is None else list(self.speedup_interval),
            "tasks_default_ms": in_ms(self.tasks_default_s),
            "tasks_tuned_ms": in_ms(self.kernels_s),
            "rejected_ms": in_ms(self.rejected_s),
            "rejected_interval": None if self.rejected_interval is None else list(self.rejected_interval),
            "noise": self.noise,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The inverse of `to_json`. Raises KeyError on other data."""
        return Report(
            job_id=data["job"],
            model=data["model"],
            target=data["target"],
            trials=data["trials"],
            seconds=data["seconds"],
            tasks=tuple(map(TaskReport.from_json, data["tasks"])),
            default_s=in_s(data["default_ms"]),
            tuned_s=in_s(data["tuned_ms"]),
            peak_gflops=data["peak_gflops"],
            failed=data["failed"],
            fallback=data["fallback"],
            whole_model=data["whole_model"],
            ended_by=None if data.get("ended_by") is None else Ended(data["ended_by"]),
            outcome=None if data.get("outcome") is None else Outcome(data["outcome"]),
            default_interval_s=_in_s(data.get("default_interval_ms")),
            tuned_interval_s=_in_s(data.get("tuned_interval_ms")),
            speedup_interval=_pair(data.get("speedup_interval")),
            tasks_default_s=in_s(data.get("tasks_default_ms")),
            rejected_s=in_s(data.get("rejected_ms")),
            rejected_interval=_pair(data.get("rejected_interval")),
            noise=data.get("noise", ""),
        )


def _pair(edges: list[float] | None) -> Interval | None:
    return None if edges is None else (edges[0], edges[1])

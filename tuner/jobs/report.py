"""Report: what a tuning job found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..running.coverage import fallback_share
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
        )


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

    @property
    def kernels_s(self) -> float | None:
        """Seconds of a run of the tuned model that its tasks take, by their own times; None where one holds nowhere."""
        times_s = [None if task.best_s is None else task.chosen * task.best_s for task in self.tasks if task.chosen]
        known_s = [time_s for time_s in times_s if time_s is not None]
        return sum(known_s) if len(known_s) == len(times_s) else None

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
        )

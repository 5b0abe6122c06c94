"""Report: what a tuning job found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task: its default and the schedule chosen among the best, timed in turn in one process after the search."""

    key: str
    op: str
    occurrences: int
    trials: int  # all that the database knows for this target
    flops: int
    default_s: float | None  # None where the default schedule failed
    best_s: float | None  # None where no schedule holds
    fraction_of_peak: float | None  # of the machine's multiply-add peak, measured in this job
    schedule: dict[str, Any]

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations a second at the best time."""
        return self.flops / self.best_s / 1e9 if self.best_s else None

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "op": self.op,
            "occurrences": self.occurrences,
            "trials": self.trials,
            "default_ms": _ms(self.default_s),
            "best_ms": _ms(self.best_s),
            "gflops": self.gflops,
            "fraction_of_peak": self.fraction_of_peak,
            "schedule": self.schedule,
        }


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
    peak_gflops: float
    failed: Mapping[str, int]  # status -> trials of this job
    fallback: Mapping[str, int]  # op -> nodes without a native kernel

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job_id,
            "model": self.model,
            "target": self.target,
            "trials": self.trials,
            "seconds": self.seconds,
            "tasks": [task.to_json() for task in self.tasks],
            "default_ms": _ms(self.default_s),
            "tuned_ms": _ms(self.tuned_s),
            "peak_gflops": self.peak_gflops,
            "failed": dict(self.failed),
            "fallback": dict(self.fallback),
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds

"""Watching: a job on a server as people see it, put together from its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tunewright.tuner.progress import Snapshot, TaskRow
from tunewright.tuner.stage import Stage
from tunewright.tuner.text import duration, printable, ratio, times

from .client import Job, JobEvent

KEY_LETTERS = 12
"""Of a task's key, where it is all that is known of the task."""

HEADLINES = {
    "queued": "waiting for a tuner process",
    "started": "a tuner process begins",
    "lost": "its tuner process is gone: waiting for another one",
    "returned": "waiting for another tuner process",
    "paused": "paused",
    "resumed": "waiting for a tuner process",
}
"""What a job is at after some events."""


@dataclass(slots=True)
class _Row:
    op: str
    occurrences: int
    default_ms: float | None = None
    best_ms: float | None = None


class Watched:
    """A job that is being watched."""

    def __init__(self, job: Job) -> None:
        self._rows = {
            task.key: _Row(printable(task.op) or task.key[:KEY_LETTERS], task.occurrences) for task in job.tasks
        }
        self._stage = Stage.READING
        self._headline = HEADLINES["queued"]
        self._note = ""
        self._trials, self._budget = 0, job.trials
        self._spent_s = 0.0
        self._left_s: float | None = None
        self._speedup: float | None = None
        self._take(job.progress or {})

    def tell(self, event: JobEvent) -> None:
        """Take an event in. What makes no sense in it is passed over."""
        data = event.data
        match event.kind:
            case "stage":
                with suppress(ValueError):
                    self._stage, self._headline = Stage(str(data.get("stage"))), ""
            case "progress":
                self._take(data)
            case "improved" | "confirmed":
                self._improve(data, event.kind == "improved")
            case "changed":
                self._note = ", ".join(f"{name}: {printable(value)[:40]}" for name, value in data.items())
        self._headline = HEADLINES.get(event.kind, self._headline)

    def snapshot(self) -> Snapshot:
        """The job as it is now."""
        rows = [
            TaskRow(row.op, row.occurrences, None, _seconds(row.default_ms), _seconds(row.best_ms))
            for row in self._rows.values()
        ]
        return Snapshot(
            stage=self._stage,
            trials=self._trials,
            budget=self._budget,
            elapsed_s=self._spent_s,
            left_s=self._left_s,
            speedup=self._speedup,
            known=0,
            tasks=tuple(sorted(rows, key=lambda row: -row.weight_s)),
            taken_at=time.monotonic(),
            headline=self._headline,
            note=self._note,
        )

    def _take(self, progress: Mapping[str, Any]) -> None:
        self._trials = int(_number(progress.get("trials")) or self._trials)
        self._budget = int(_number(progress.get("most_trials")) or self._budget)
        self._spent_s = _number(progress.get("spent_s")) or self._spent_s
        self._left_s = _number(progress.get("left_s"))
        self._speedup = _number(progress.get("speedup")) or self._speedup

    def _improve(self, data: Mapping[str, Any], is_news: bool) -> None:
        row = self._rows.get(str(data.get("task_key")))
        best_ms = _number(data.get("best_ms"))
        if row is None:
            return
        row.op = printable(data.get("op") or row.op)
        row.default_ms = _number(data.get("default_ms")) or row.default_ms
        row.best_ms = best_ms or row.best_ms
        if is_news and best_ms is not None:
            gain = ratio(row.default_ms, best_ms)
            told = f", {times(gain)} as fast as by default" if gain else ""
            trial = _number(data.get("trial"))
            place = f" after {int(trial)} trials" if trial is not None else ""
            self._note = f"improved{place}: {row.op} {duration(best_ms)}{told}"


def _number(value: object) -> float | None:
    """A finite number out of what a server said."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and 0 <= value < 1e15
    return float(value) if usable else None  # type: ignore[arg-type]


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3

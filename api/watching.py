"""Watching: a job on a server as people see it, put together from its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tunewright.tuner.insight import told
from tunewright.tuner.jobs.stage import Stage
from tunewright.tuner.jobs.view import Again, Line, Moment, shares
from tunewright.tuner.text import counted, duration, is_clear, printable, ratio, short, times
from tunewright.tuner.units import in_s

from .client import Job, JobEvent

HEADLINES = {
    "queued": "waiting for a tuner process",
    "started": "a tuner process begins",
    "lost": "its tuner process is gone: waiting for another one",
    "returned": "waiting for another tuner process",
    "paused": "paused",
}
"""What a job is at after some events."""

FOR_A_DEVICE = "waiting for a device"
"""What a job is at that has no target yet."""

RECALL_S = 5.0
"""What happened before the view began is told at once: after this long, all is news."""


@dataclass(slots=True)
class _Row:
    op: str
    occurrences: int
    chosen: int
    default_ms: float | None = None
    best_ms: float | None = None


class Watched:
    """A job that is being watched, from where it stands: of what happened before, only the times of tasks are told.

    `ahead` jobs go before it while it waits.
    """

    def __init__(self, job: Job, ahead: int = 0) -> None:
        self._rows = {
            task.key: _Row(printable(task.op) or short(task.key), task.occurrences, task.occurrences)
            for task in job.tasks
        }
        self._stage = Stage.READING
        self._ahead, self._has_device = ahead, bool(job.target)
        self._headline = self._waiting if job.state == "queued" else HEADLINES.get(job.state, HEADLINES["started"])
        self._recalled = None if job.progress is None else dict(job.progress)  # what the past ends with
        self._opened_s = time.monotonic()
        self._begun_s = self._opened_s if job.state == "running" else None
        self._confirmed: set[str] = set()
        self._note = ""
        self._trials, self._budget = 0, job.trials
        self._left_s: float | None = None
        self._speedup: float | None = None
        self._remaining_gain: float | None = None
        self._again: Again | None = None
        self._take(job.progress or {})
        if job.state == "running" and job.progress is not None:
            self._enter(job.progress.get("stage"))

    @property
    def is_paused(self) -> bool:
        """Whether the job rests until somebody has it go on."""
        return self._headline == HEADLINES["paused"]

    @property
    def _waiting(self) -> str:
        if not self._has_device:
            return FOR_A_DEVICE
        if not self._ahead:
            return HEADLINES["queued"]
        return f"waiting: behind {counted(self._ahead, 'job')}"

    def tell(self, event: JobEvent) -> None:
        """Take an event in. What makes no sense in it is passed over."""
        if self._recalled is not None and time.monotonic() - self._opened_s < RECALL_S:
            self._recall(event)
            return
        data = event.data
        match event.kind:
            case "queued":
                return  # with which every job begins: the view knows more
            case "started":
                self._begun_s = time.monotonic() if self._begun_s is None else self._begun_s
                self._has_device = True
            case "stage":
                self._enter(data.get("stage"))
            case "progress":
                self._take(data)
            case "default" | "improved" | "confirmed":
                self._improve(data, event.kind == "improved")
            case "changed":
                self._note = ", ".join(f"{name}: {printable(value)[:40]}" for name, value in data.items())
        if event.kind == "confirmed" and data.get("task_key") in self._rows:
            self._confirmed.add(str(data["task_key"]))
        self._headline = self._waiting if event.kind == "resumed" else HEADLINES.get(event.kind, self._headline)

    def _recall(self, event: JobEvent) -> None:
        """Take in what happened before the view began."""
        match event.kind:
            case "progress" if event.data == self._recalled:
                self._recalled = None
            case "default" | "improved" | "confirmed":
                self._improve(event.data, False)

    def _enter(self, stage: object) -> None:
        with suppress(ValueError):
            self._stage, self._headline = Stage(str(stage)), ""
            self._confirmed.clear()

    @property
    def _part(self) -> str:
        """How much is done of what the job is at, where events tell."""
        if self._headline or self._stage is not Stage.CONFIRMING or not self._confirmed:
            return ""
        return f"{len(self._confirmed)} of {counted(len(self._rows), 'task')}"

    def moment(self) -> Moment:
        """The job as it is now."""
        now = time.monotonic()
        every = self._rows.values()
        parts = shares([row.chosen for row in every], [row.best_ms for row in every])
        rows = [
            Line(row.op, row.occurrences, row.chosen, None, in_s(row.default_ms), in_s(row.best_ms), share=part)
            for row, part in zip(every, parts, strict=True)
        ]
        return Moment(
            stage=self._stage,
            trials=self._trials,
            budget=self._budget,
            elapsed_s=0.0 if self._begun_s is None else now - self._begun_s,
            left_s=self._left_s,
            speedup=self._speedup,
            remaining_gain=self._remaining_gain,
            known=0,
            tasks=tuple(sorted(rows, key=lambda row: -row.weight_s)),
            taken_at=now,
            headline=self._headline,
            part=self._part,
            note=self._note,
            again=self._again if self._stage is Stage.SEARCHING and not self._headline else None,
        )

    def _take(self, progress: Mapping[str, Any]) -> None:
        self._trials = int(told.finite(progress.get("trials")) or self._trials)
        if most := told.finite(progress.get("most_trials")):
            self._budget = int(most)
        self._left_s = told.finite(progress.get("left_s"))
        self._speedup = told.finite(progress.get("speedup")) or self._speedup
        self._remaining_gain = told.finite(progress.get("remaining_gain"))
        self._again = self._expected(progress)
        chosen = progress.get("chosen")
        if isinstance(chosen, list) and len(chosen) == len(self._rows):
            for row, count in zip(self._rows.values(), map(told.finite, chosen), strict=True):
                row.chosen = row.chosen if count is None else int(count)

    def _expected(self, progress: Mapping[str, Any]) -> Again | None:
        """What more budget would bring, where the progress tells."""
        from tunewright.tuner.jobs.scheduling.forecast import MINUTE_S  # takes a while to import

        gain, spent_s = told.finite(progress.get("again_gain")), told.finite(progress.get("spent_s"))
        gains, ops = progress.get("task_gains"), [row.op for row in self._rows.values()]
        if gain is None or spent_s is None or not isinstance(gains, list) or len(gains) != len(ops):
            return None
        return Again.of(max(spent_s, MINUTE_S), gain, ops, list(map(told.finite, gains)))

    def _improve(self, data: Mapping[str, Any], is_news: bool) -> None:
        row = self._rows.get(str(data.get("task_key")))
        best_ms = told.finite(data.get("best_ms"))
        if row is None:
            return
        row.op = printable(data.get("op") or row.op)
        row.default_ms = told.finite(data.get("default_ms")) or row.default_ms
        row.best_ms = best_ms or row.best_ms
        if is_news and best_ms is not None:
            gain = ratio(row.default_ms, best_ms)
            by = "" if gain is None else f", {times(gain)} as fast as by default" if is_clear(gain) else ", no gain"
            trial = told.finite(data.get("trial"))
            place = f" after {counted(int(trial) + 1, 'trial')}" if trial is not None else ""  # it tells those before
            self._note = f"improved{place}: {row.op} {duration(best_ms)}{by}"

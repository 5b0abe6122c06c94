"""The live view of a job on a server, made from its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tunewright.tuner.explain import values
from tunewright.tuner.explain.curves import NOISES
from tunewright.tuner.explain.gain import TaskSum
from tunewright.tuner.explain.regression import regression_words
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.stage import JobStage
from tunewright.tuner.search.view import FurtherGain, JobMoment, TaskFigures, shares
from tunewright.tuner.text import counted, duration, is_clear, mark_noise, printable, ratio, short, times
from tunewright.tuner.units import in_s

from . import Job, JobEvent

HEADLINES = {
    "queued": "waiting for a tuner process",
    "started": "a tuner process begins",
    "lost": "its tuner process is gone: waiting for another one",
    "returned": "waiting for another tuner process",
    "paused": "paused",
}
"""Headline of a job after an event of each kind."""

FOR_A_DEVICE = "waiting for a device"
"""Headline of a job without a target."""

RECALL_S = 5.0
"""Past events arrive within this time; all later ones are new."""


@dataclass(slots=True)
class _Row:
    op: str
    occurrences: int
    chosen: int
    default_ms: float | None = None
    best_ms: float | None = None
    is_confirmed: bool = False
    is_default_confirmed: bool = False
    noise: str = ""


class JobMonitor:
    """The view of a job from now on: of earlier events, only the times of tasks are used.

    `ahead` is the number of jobs before it in the queue.
    """

    def __init__(self, job: Job, ahead: int = 0) -> None:
        self._rows = {
            task.key: _Row(printable(task.op) or short(task.key), task.occurrences, task.occurrences)
            for task in job.tasks
        }
        self._stage = JobStage.READING
        self._ahead, self._has_device = ahead, bool(job.target)
        self._headline = self._queue_text if job.state == "queued" else HEADLINES.get(job.state, HEADLINES["started"])
        self._past_end = None if job.progress is None else _as_told(job.progress)  # what the past ends with
        self._opened_s = time.monotonic()
        self._spent_s, self._told_s = job.spent_s, self._opened_s  # of searching, and when that was known
        self._confirmed, self._to_confirm = 0, 0
        self._noise, self._is_tried = "", True
        self._note = ""
        self._trials, self._budget = 0, job.trials
        self._left_s: float | None = None
        self._speedup: float | None = None
        self._remaining_gain: float | None = None
        self._again: FurtherGain | None = None
        self._update_progress(job.progress or {})
        if job.state == "running" and job.progress is not None:
            self._enter_stage(job.progress.get("stage"))

    @property
    def is_paused(self) -> bool:
        """Whether the job rests until somebody has it go on."""
        return self._headline == HEADLINES["paused"]

    @property
    def _queue_text(self) -> str:
        if not self._has_device:
            return FOR_A_DEVICE
        if not self._ahead:
            return HEADLINES["queued"]
        return f"waiting: behind {counted(self._ahead, 'job')}"

    def update(self, event: JobEvent) -> None:
        """Take in an event. Values that make no sense are ignored."""
        if self._past_end is not None and time.monotonic() - self._opened_s < RECALL_S:
            self._take_past(event)
            return
        data, self._note = event.data, ""
        match event.kind:
            case "queued":
                return  # with which every job begins: the view knows more
            case "started":
                self._has_device = True
            case "stage":
                self._enter_stage(data.get("stage"))
            case "progress":
                self._update_progress(data)
            case "default" | "improved" | "confirmed":
                self._update_times(data, event.kind)
            case "regressed":
                self._note = f"slower than before: {printable(data.get('op'))} {regression_words(data)}"
            case "changed":
                self._note = ", ".join(f"{name}: {printable(value)[:40]}" for name, value in data.items())
        self._headline = self._headline_after(event)

    def _headline_after(self, event: JobEvent) -> str:
        """What the job is at after an event of this kind."""
        if event.kind == "returned" and event.data.get("state", "queued") != "queued":
            return self._headline  # nobody takes it up: what comes of it is told next
        return self._queue_text if event.kind == "resumed" else HEADLINES.get(event.kind, self._headline)

    def _take_past(self, event: JobEvent) -> None:
        """Take in an event from before the view began."""
        match event.kind:
            case "progress" if _as_told(event.data) == self._past_end:
                self._past_end = None
            case "default" | "improved" | "confirmed":
                self._update_times(event.data, event.kind, is_past=True)

    def _enter_stage(self, stage: object) -> None:
        with suppress(ValueError):
            self._stage, self._headline = JobStage(str(stage)), ""
            self._told_s = time.monotonic()

    def moment(self) -> JobMoment:
        """The job as it is now."""
        now = time.monotonic()
        every = self._rows.values()
        parts = shares([row.chosen for row in every], [row.best_ms for row in every])
        rows = [
            TaskFigures(
                row.op,
                row.occurrences,
                row.chosen,
                None,
                in_s(row.default_ms),
                in_s(row.best_ms),
                None,
                part,
                row.is_confirmed,
                row.is_default_confirmed,
                row.noise,
            )
            for row, part in zip(every, parts, strict=True)
        ]
        moment = JobMoment(
            stage=self._stage,
            trials=self._trials,
            budget=self._budget,
            elapsed_s=self._spent_s,
            left_s=self._left_s,
            speedup=self._speedup,
            remaining_gain=self._remaining_gain,
            known=0,
            tasks=tuple(sorted(rows, key=lambda row: -row.weight_s)),
            taken_at=now,
            headline=self._headline,
            noise=self._noise,
            is_tried=self._is_tried,
            confirmed=self._confirmed,
            to_confirm=self._to_confirm,
            note=self._note,
            is_search_clock=True,
        )
        if not moment.is_searching:
            return moment
        return replace(moment, elapsed_s=self._spent_s + now - self._told_s, again=self._again)

    def _update_progress(self, progress: Mapping[str, Any]) -> None:
        self._trials = int(values.finite(progress.get("trials")) or self._trials)
        if most := values.finite(progress.get("most_trials")):
            self._budget = int(most)
        if (spent_s := values.finite(progress.get("spent_s"))) is not None:
            self._spent_s, self._told_s = spent_s, time.monotonic()
        self._left_s = values.finite(progress.get("left_s"))
        self._speedup = values.finite(progress.get("speedup")) or self._speedup
        self._noise, self._is_tried = _noise(progress, "noise"), TaskSum.of_job(progress, None).is_tried
        self._confirmed, self._to_confirm = (
            int(values.number(progress, name) or 0) for name in ("confirmed", "to_confirm")
        )
        self._remaining_gain = values.finite(progress.get("remaining_gain"))
        self._again = self._forecast(progress)
        chosen = progress.get("chosen")
        if isinstance(chosen, list) and len(chosen) == len(self._rows):
            for row, count in zip(self._rows.values(), map(values.finite, chosen), strict=True):
                row.chosen = row.chosen if count is None else int(count)

    def _forecast(self, progress: Mapping[str, Any]) -> FurtherGain | None:
        """The gain expected of more budget, where the progress has it."""
        from tunewright.tuner.search.scheduling.outlook import MINUTE_S  # takes a while to import

        gain, spent_s = values.finite(progress.get("again_gain")), values.finite(progress.get("spent_s"))
        gains, ops = progress.get("task_gains"), [row.op for row in self._rows.values()]
        if gain is None or spent_s is None or not isinstance(gains, list) or len(gains) != len(ops):
            return None
        return FurtherGain.of(max(spent_s, MINUTE_S), gain, ops, list(map(values.finite, gains)))

    def _update_times(self, data: Mapping[str, Any], kind: str, is_past: bool = False) -> None:
        row = self._rows.get(str(data.get("task_key")))
        best_ms = values.finite(data.get("best_ms"))
        if row is None:
            return
        row.op = printable(data.get("op") or row.op)
        if isinstance(earlier := data.get("confirmed"), Mapping):  # by jobs before this one, beside its default's trial
            self._update_times({"task_key": data.get("task_key"), **earlier}, "confirmed", is_past)
            return
        row.default_ms = values.finite(data.get("default_ms")) or row.default_ms
        row.best_ms = best_ms or row.best_ms
        row.is_confirmed, row.noise = kind == "confirmed", total_noise(_noise(data, name) for name in NOISES)
        row.is_default_confirmed = row.is_confirmed or data.get("default_confirmed") is True
        if kind == "improved" and not is_past and best_ms is not None:
            gain = ratio(row.default_ms, best_ms)
            faster = mark_noise(times(gain), row.noise)
            by = f", {faster} as fast as by default" if gain is not None and is_clear(gain) else ""
            trial = values.finite(data.get("trial"))
            place = f" after {counted(int(trial) + 1, 'trial')}" if trial is not None else ""  # it tells those before
            self._note = (
                f"improved{place}: {row.op} {mark_noise(duration(best_ms), _noise(data, 'noise'))} by trial{by}"
            )


def _as_told(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The progress as its process told it: of a job, trials and seconds are those that are stored by now."""
    return {name: value for name, value in progress.items() if name not in ("trials", "spent_s")}


def _noise(data: Mapping[str, Any], name: str) -> str:
    return printable(values.word(data, name))

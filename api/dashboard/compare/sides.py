"""Sides: jobs as they are compared, each with its tasks and what confirms their times. Read `load_sides` first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain import values
from tunewright.tuner.explain.comparison import NOT_CONFIRMED, NOT_STORED, NOT_TIMED, RunSide, TaskSide
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.explain.upgrade import retimed_of
from tunewright.tuner.known_times import KnownTimes
from tunewright.tuner.noise import noise_of_measurement
from tunewright.tuner.units import in_ms

from ...http.schemas.jobs import dims_of
from ..job.history import Histories, JobHistory
from ..job.tasks import ModelRun, TaskLine, as_told, model_run, names, report_entries, schedule_of, task_lines

OF_OLD_TIMES = ("speedup", "speedup_interval", "before_ms", "before_share", "after_share", "saved_share", "peak_share")
"""What else of a task goes by its times as the job told them."""


class SideMoment(StrEnum):
    """The moment that a side tells of."""

    END = "end"  # as the job told at its end, or tells so far
    BEFORE = "before"  # what was known of its tasks before it timed them again
    TODAY = "today"  # what is known of its tasks by now, whichever job found it


@dataclass(frozen=True, slots=True)
class Side:
    """A job at a moment."""

    job: Job
    moment: SideMoment
    history: JobHistory
    run: ModelRun
    tasks: Mapping[str, TaskLine]  # by task key, those first that take most of a run
    task_sides: Mapping[str, TaskSide]  # likewise
    schedules: Mapping[str, Schedule]  # the best one of each task, where it is known

    @property
    def run_side(self) -> RunSide:
        """What it tells of the whole model, which only jobs time, at their end."""
        result = self.job.result if self.moment is SideMoment.END else None
        return RunSide.of_result((self.job.spec.model_sha256, dims_of(self.job)), self.job.spec.target_key, result)


def load_sides(store: Store, histories: Histories, jobs: Sequence[Job]) -> list[Side]:
    """The jobs at their end, or as they stand. Raises NotFound, StoreError."""
    ops = names(store, list(dict.fromkeys(task.task_key for job in jobs for task in job.spec.tasks)))
    return [_load(store, histories, job, ops) for job in mark_taken_back(store, jobs)]


def _load(store: Store, histories: Histories, job: Job, ops: Mapping[str, str]) -> Side:
    history = histories.of(job, store.jobs, store.trials)
    job = as_told(job, history)
    run = model_run(job, history)
    lines = {line.key: line for line in task_lines(job, history, run, None, ops)}
    entries = report_entries(job.result)
    records = store.comparisons_by_time(_confirmed_s(lines), job.spec.target_key)
    task_sides = {
        key: TaskSide(
            job.spec.target_key,
            records.get(key),
            values.word(entries.get(key), "default_schedule"),
            "" if key in records else _why_unconfirmed(line),
        )
        for key, line in lines.items()
    }
    schedules = {key: record.schedule for key, record in records.items()}
    others = {key: schedule_of(entry) for key, entry in entries.items() if key not in schedules}
    schedules |= {key: schedule for key, schedule in others.items() if schedule is not None}
    return Side(job, SideMoment.END, history, run, lines, task_sides, schedules)


def _confirmed_s(lines: Mapping[str, TaskLine]) -> dict[str, float]:
    """The times of the bests that are told as confirmed, by task key."""
    return {key: line.best_ms / 1e3 for key, line in lines.items() if line.is_confirmed and line.best_ms}


def _why_unconfirmed(line: TaskLine) -> str:
    if line.best_ms is None:
        return NOT_TIMED
    return NOT_STORED if line.is_confirmed else NOT_CONFIRMED


# Other moments of one job


def before_retiming(store: Store, side: Side) -> Side:
    """What was known of a job's tasks before it timed the stale ones again. Raises StoreError.

    The schedules then are known only where the time was of a confirmation that is stored here.
    """
    entries = report_entries(side.job.result)
    retimed = {key: told for key, entry in entries.items() if (told := retimed_of(entry)) is not None}
    times_s = {key: told.best_s for key, told in retimed.items() if told.best_s}
    records = store.comparisons_by_time(times_s, side.job.spec.target_key)
    lines, task_sides, schedules = dict(side.tasks), dict(side.task_sides), dict(side.schedules)
    for key, told in retimed.items():
        if key not in lines:
            continue
        record = records.get(key)
        times = KnownTimes(
            told.default_s,
            told.best_s,
            noise_of_measurement(record.measurement) if record else "",
            is_confirmed=record is not None,
            is_default_confirmed=record is not None,
            default_interval_s=told.default_interval_s,
            best_interval_s=told.best_interval_s,
        )
        lines[key] = _at_other_times(lines[key], times)
        why = "" if record else NOT_STORED if told.best_s else NOT_TIMED
        task_sides[key] = TaskSide(side.job.spec.target_key, record, "", why)
        schedules.pop(key, None)
        if record is not None:
            schedules[key] = record.schedule
    return Side(side.job, SideMoment.BEFORE, side.history, side.run, lines, task_sides, schedules)


def as_known_today(store: Store, side: Side) -> Side:
    """What is known of a job's tasks by now: what a session would use of each. Raises StoreError."""
    target_key = side.job.spec.target_key
    standings = store.standings(side.tasks, target_key)
    target = store.target(target_key)
    lines: dict[str, TaskLine] = {}
    task_sides: dict[str, TaskSide] = {}
    schedules: dict[str, Schedule] = {}
    for key, line in side.tasks.items():
        standing = standings.get(key)
        best = standing.best if standing else None
        compared = standing.comparisons if standing else None
        is_confirmed = best is not None and compared is not None and best == compared.standing
        times = KnownTimes.of_comparisons(compared, target) if is_confirmed else None
        if times is None:
            measured = best.measurement if best and best.measurement.status is Status.OK else None
            interval_s = measured.interval_s if measured else None
            time_s = measured.median_s if measured else None
            times = KnownTimes(None, time_s, noise_of_measurement(measured), best_interval_s=interval_s)
        lines[key] = _at_other_times(line, times)
        why = "" if is_confirmed else NOT_CONFIRMED if best else NOT_TIMED
        default_key = side.task_sides[key].default_key if key in side.task_sides else ""
        task_sides[key] = TaskSide(target_key, best if is_confirmed else None, default_key, why)
        if best is not None:
            schedules[key] = best.schedule
    return Side(side.job, SideMoment.TODAY, side.history, side.run, lines, task_sides, schedules)


def _at_other_times(line: TaskLine, times: KnownTimes) -> TaskLine:
    """The task with other times, without what goes by its old ones."""
    told = times.to_json()
    best_ms = in_ms(times.best_s)
    return line.model_copy(
        update={
            "default_ms": in_ms(times.default_s),
            "best_ms": best_ms,
            "default_interval_ms": _interval(told["default_interval_ms"]),
            "best_interval_ms": _interval(told["best_interval_ms"]),
            "noise": times.noise,
            "is_confirmed": times.is_confirmed,
            "is_default_confirmed": times.is_default_confirmed,
            "after_ms": None if best_ms is None else line.uses * best_ms,
            **dict.fromkeys(OF_OLD_TIMES),
            "best_voided": False,
            "default_voided": False,
        }
    )


def _interval(edges: Sequence[float] | None) -> tuple[float, float] | None:
    return None if edges is None else (edges[0], edges[1])

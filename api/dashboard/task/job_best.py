"""What a job found of a task, for who comes to the page of the task from the job: the same figures as on its page."""

from __future__ import annotations

from pydantic import Field

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.text import ratio

from ...http.schemas.base import Answer
from ..job.history import Histories, Times
from ..job.tasks import report_entries, report_times, schedule_of
from ..views import Text
from .schedules import Standing


class JobBest(Answer):
    """The best schedule of a job, by its report or, without one, by what it told so far."""

    best_ms: float | None = Field(description="Null: it found none that works.")
    best_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    speedup: float | None = Field(description="How many times as fast as by default; null: not known.")
    speedup_interval: tuple[float, float] | None = Field(
        description="Within which that lies, by both intervals; null: not known, or nothing confirmed it."
    )
    is_confirmed: bool = Field(description="Whether it was timed beside the default in fresh processes.")
    is_voided: bool = Field(description="Whether its schedule was taken back since.")
    noise: Text = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")
    is_best_known: bool = Field(description="Whether no better schedule of another job is known.")

    @staticmethod
    def load(store: Store, histories: Histories, job: Job, known: Standing) -> JobBest | None:
        """That of a task on a target; None where the job does not tune that. Raises StoreError."""
        key = known.task.key
        if job.spec.target_key != known.target.key or all(task.task_key != key for task in job.spec.tasks):
            return None
        [job] = mark_taken_back(store, [job])
        entry = report_entries(job.result).get(key, {})
        times_by_task = report_times(job.result) or histories.of(job, store.jobs, store.trials).times
        times = times_by_task.get(key, Times())
        return JobBest.show(
            times,
            speedup=ratio(times.default_ms, times.best_ms),
            speedup_interval=times.gain_interval,
            is_voided=entry.get("best_voided") is True,
            is_best_known=_is_best_known(job, times, schedule_of(entry), known),
        )


def _is_best_known(job: Job, times: Times, schedule: Schedule | None, known: Standing) -> bool:
    """Whether what is known is this `schedule`; where that is not told yet, whether it is the job's, or no faster."""
    if known.best is None:
        return True
    if schedule is not None:
        return known.best.schedule == schedule
    if known.best_trial is not None and known.best_trial.line.job_id == job.id:
        return True
    return times.best_ms is not None and times.best_ms <= 1e3 * known.best.median_s

"""The trials of a job, those of all its tasks, the newest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from pydantic import Field

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.db.trial import JobTrial
from tunewright.search_space.measurement import Status
from tunewright.tuner.noise import noise_of_line

from ...http.paging import bad_cursor
from ...http.schemas.base import FEW_HAVE_NONE, Answer, Digest
from ..views import Text
from .history import Counts

TRIAL_ROWS = 20
"""Trials on one page."""

MOST_TASKS = 200
"""Tasks that one can choose from."""


class JobTrialLine(Answer):
    """A trial of a job."""

    key: Text = Field(description="Of its task.")
    op: Text
    schedule: Digest = Field(description="Key of the schedule.")
    sketch: Text
    status: Status
    median_ms: float | None
    interval_ms: tuple[float, float] | None = Field(description=FEW_HAVE_NONE)
    noise: Text = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")
    error: Text
    ordinal: int | None = Field(description="0, 1, 2, ... within the job.")
    created_at: datetime

    @staticmethod
    def of(trial: JobTrial, ops: Mapping[str, str]) -> JobTrialLine:
        """A trial as views show it; `ops` are names by task key."""
        key, line = trial.task_key, trial.line
        noise = noise_of_line(line)
        names = {"key": key, "op": ops.get(key, ""), "schedule": line.schedule.key, "sketch": line.schedule.sketch}
        return JobTrialLine.show(line, **names, noise=noise)


class TrialsOfTask(Answer):
    """How many trials of a task a job has."""

    key: Text
    op: Text
    trials: int


class JobTrials(Answer):
    """A page of the trials of a job."""

    counts: dict[Status, int] = Field(description="How those ended that were not narrowed down to `status`.")
    tasks: list[TrialsOfTask] = Field(
        description=f"The tasks with most, {MOST_TASKS} at most, not narrowed down to `task`."
    )
    rows: list[JobTrialLine] = Field(description="The newest first.")
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")


def job_trials(
    store: Store,
    job: Job,
    counts: Counts,
    ops: Mapping[str, str],
    *,
    task: str,
    statuses: Collection[Status],
    cursor: str | None,
) -> JobTrials:
    """The trials of a task, or of all, that ended in one of these ways, or in any. Raises Problem, StoreError."""
    selected = frozenset(statuses or Status)
    of_task = {key: found for key, found in counts.items() if task in ("", key)}
    kinds = [(key, status) for key, found in of_task.items() for status in found if status in selected]
    try:
        page = store.trials.page_of_job(job.id, kinds, cursor=cursor, limit=TRIAL_ROWS)
    except ValueError as error:
        raise bad_cursor() from error
    by_status = {status: sum(found.get(status, 0) for found in of_task.values()) for status in Status}
    by_task = Counter({key: sum(found.get(status, 0) for status in selected) for key, found in counts.items()})
    return JobTrials(
        counts={status: count for status, count in by_status.items() if count},
        tasks=[
            TrialsOfTask(key=key, op=ops.get(key, ""), trials=count)
            for key, count in by_task.most_common(MOST_TASKS)
            if count
        ],
        rows=[JobTrialLine.of(trial, ops) for trial in page.trials],
        next=page.next,
    )

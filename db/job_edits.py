"""What people change of a job: its name, tags, notes and priority, and its budget. All of it on a locked row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

from sqlalchemy import delete, select

from .job import UNFINISHED, Conflict, EventKind, JobEdit, JobState, NoSuchBound, SearchBudget, check_notes
from .leases import Change
from .tables import JobRow, JobTagRow
from .translate import clean


def edit_job(change: Change, row: JobRow, edit: JobEdit) -> None:
    """Change a locked job as asked, and add one event of all that is another now.

    Raises Conflict for the priority of a finished job, ValueError as `check_tags` and `check_notes`.
    """
    if edit.priority is not None and JobState(row.state) not in UNFINISHED:
        raise Conflict(f"job {row.id} is {row.state} already")
    values: dict[str, Any] = {
        "priority": edit.priority,
        "label": None if edit.label is None else clean(edit.label).strip(),
        "notes": None if edit.notes is None else clean_notes(edit.notes),
    }
    news = {name: value for name, value in values.items() if value is not None and value != getattr(row, name)}
    for name, value in news.items():
        setattr(row, name, value)
    before = tuple(change.session.scalars(select(JobTagRow.tag).where(JobTagRow.job_id == row.id)))
    tags = edit.edited_tags(before)
    if set(tags) != set(before):
        news["tags"] = list(tags)
        removed = set(before) - set(tags)
        change.session.execute(delete(JobTagRow).where(JobTagRow.job_id == row.id, JobTagRow.tag.in_(removed)))
        add_tags(change, row.id, [tag for tag in tags if tag not in before])
    if news:
        change.add_event(row, EventKind.CHANGED, **news)


def clean_notes(notes: str) -> str:
    """Notes as they are stored. Raises ValueError where they are too long."""
    return check_notes(clean(notes).strip())


def add_tags(change: Change, job_id: int, tags: Iterable[str]) -> None:
    """Store tags that a job does not have yet."""
    change.session.add_all(JobTagRow(job_id=job_id, tag=tag) for tag in tags)


def raise_budget(change: Change, row: JobRow, trials: int | None, seconds: float | None) -> None:
    """Raise the bounds that an unfinished job has. One whose time was over is queued, and its minutes are those added.

    Raises NoSuchBound where it has not all of those that are added to.
    """
    budget = SearchBudget.from_json(row.budget)
    if (trials and budget.trials is None) or (seconds and budget.seconds == inf) or not (trials or seconds):
        raise NoSuchBound(row.id, budget)
    raised = budget.raised(trials, seconds)
    is_out_of_time = row.state == JobState.PAUSED.value and row.result is not None and raised.seconds > budget.seconds
    if is_out_of_time and seconds is not None:
        raised = replace(raised, seconds=seconds, before_s=row.spent_s)
    row.budget = raised.to_json()
    news: dict[str, Any] = {"trials": raised.trials} if trials else {}
    if seconds:
        news["minutes"] = raised.seconds / 60
    change.add_event(row, EventKind.CHANGED, **news)
    if is_out_of_time:
        detach(change, row)


def detach(change: Change, row: JobRow) -> None:
    """Queue a job of a command that is paused or lost, for any process.

    The minutes of a command are those of one run, but of a job of the queue those of all runs from here on.
    """
    if row.state == JobState.RUNNING.value:
        change.end_lease(row)
    if row.attached:
        row.budget = replace(SearchBudget.from_json(row.budget), before_s=row.spent_s).to_json()
    row.attached, row.attempts, row.wish = False, 0, None
    change.settle(row, JobState.QUEUED)
    change.add_event(row, EventKind.RESUMED)

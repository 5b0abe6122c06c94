"""Progress of jobs that finished long ago: of the thousands of moments that a long job tells, a sample stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from .database import DatabasePart, read_session, write_session
from .job import PRUNED, UNFINISHED, EventKind
from .prunable import in_ranges, spared_progress
from .retention import MOST_PROGRESS, ROWS_AT_ONCE, Pruned
from .tables import EventRow, JobRow

THINNED = "is_thinned"
"""What `PRUNED` has of a job whose progress was thinned."""

IS_FINISHED = JobRow.state.not_in([state.value for state in UNFINISHED])
"""Condition on a job."""


def mark_pruned(row: JobRow, name: str, value: Any) -> None:
    """Store with a locked job what was removed of it."""
    told = row.progress or {}
    row.progress = told | {PRUNED: told.get(PRUNED, {}) | {name: value}}


class ProgressPruning(DatabasePart):
    """The part of `Pruning` for the events of jobs."""

    def prune(self, before: datetime, dry_run: bool) -> Iterator[Pruned]:
        """Thin the progress of jobs that finished before a moment: what each transaction removes."""
        for job_id in self._jobs(before):
            told = self._moments(job_id)
            spared = spared_progress(told, MOST_PROGRESS)
            if dry_run:
                yield Pruned(events=len(told) - len(spared))
                continue
            gone = [number for number, _ in told if number not in spared]
            for first, last in in_ranges(gone, ROWS_AT_ONCE):
                stay = [number for number in spared if first <= number <= last]
                yield Pruned(events=self._delete(job_id, first, last, stay))
            self._mark_thinned(job_id)

    @read_session
    def _jobs(self, session: Session, before: datetime) -> list[int]:
        """Jobs that finished before a moment, and may have told more of their progress than is kept."""
        is_thinned = func.coalesce(JobRow.progress[(PRUNED, THINNED)].as_boolean(), False)
        conditions = IS_FINISHED, JobRow.updated_at < before, JobRow.events > MOST_PROGRESS, is_thinned.is_(False)
        return list(session.scalars(select(JobRow.id).where(*conditions).order_by(JobRow.id)))

    @read_session
    def _moments(self, session: Session, job_id: int) -> list[tuple[int, bool]]:
        """The numbers of a job's progress, and whether each told what more budget would bring."""
        tells = EventRow.data["again_gain"].as_string().is_not(None)
        query = select(EventRow.number, tells).where(*_progress_of(job_id)).order_by(EventRow.number)
        return [(number, bool(does)) for number, does in session.execute(query)]

    @write_session
    def _delete(self, session: Session, job_id: int, first: int, last: int, stay: Sequence[int]) -> int:
        """Delete the progress of a job from one number to another, but for a few; how much."""
        conditions = EventRow.number.between(first, last), EventRow.number.not_in(stay)
        return session.connection().execute(delete(EventRow).where(*_progress_of(job_id), *conditions)).rowcount

    @write_session
    def _mark_thinned(self, session: Session, job_id: int) -> None:
        row = session.get(JobRow, job_id, with_for_update=True)
        if row is not None:  # it was deleted
            mark_pruned(row, THINNED, True)


def _progress_of(job_id: int) -> tuple[ColumnElement[bool], ...]:
    return EventRow.job_id == job_id, EventRow.kind == EventKind.PROGRESS.value

"""Progress of jobs that finished long ago: of the thousands of moments that a long job tells, a sample stays.

The same of what the machine did meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from ..database import REMOVED_AT_ONCE, Database, DatabasePart, read_session, write_session
from ..errors import Damaged
from ..job import EventKind
from ..pruned_of_job import IS_THINNED, PrunedOfJob
from ..tables import IS_FINISHED, EventRow, JobRow
from .policy import MOST_PROGRESS, Pruned
from .rules import in_ranges, spared_evenly, spared_progress

THINNED = (EventKind.PROGRESS, EventKind.MACHINE)
"""Kinds of events that come now and then all the time."""

_log = logging.getLogger("tunewright.db")


class ProgressPruning(DatabasePart):
    """The part of `Pruning` for the events of jobs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._damaged: set[int] = set()  # jobs

    def prune(self, before: datetime, dry_run: bool) -> Iterator[Pruned]:
        """Thin the progress of jobs that finished before a moment: what each transaction removes."""
        for job_id in self._jobs(before):
            if job_id in self._damaged:
                continue
            try:
                yield from self._thin(job_id, dry_run)
            except Damaged as error:  # the other jobs are none the worse
                self._damaged.add(job_id)
                _log.warning("progress not pruned", extra={"job": job_id, "reason": str(error)})

    def _thin(self, job_id: int, dry_run: bool) -> Iterator[Pruned]:
        """Thin the progress of a job."""
        for kind in THINNED:
            told = self._moments(job_id, kind)
            spared = _spared(kind, told)
            if dry_run:
                yield Pruned(events=len(told) - len(spared))
                continue
            gone = [number for number, _ in told if number not in spared]
            for first, last in in_ranges(gone, REMOVED_AT_ONCE):
                stay = [number for number in spared if first <= number <= last]
                yield Pruned(events=self._delete(job_id, kind, first, last, stay))
        if not dry_run:
            self._mark_thinned(job_id)

    @read_session
    def _jobs(self, session: Session, before: datetime) -> list[int]:
        """Jobs that finished before a moment, and may have told more of their progress than is kept."""
        conditions = IS_FINISHED, JobRow.updated_at < before, JobRow.events > MOST_PROGRESS, IS_THINNED.is_(False)
        return list(session.scalars(select(JobRow.id).where(*conditions).order_by(JobRow.id)))

    @read_session
    def _moments(self, session: Session, job_id: int, kind: EventKind) -> list[tuple[int, bool]]:
        """The numbers of a job's events of a kind, and whether each told what more budget would bring."""
        tells = EventRow.data["again_gain"].as_string().is_not(None)
        query = select(EventRow.number, tells).where(*_are_of(job_id, kind)).order_by(EventRow.number)
        return [(number, bool(does)) for number, does in session.execute(query)]

    @write_session
    def _delete(
        self, session: Session, job_id: int, kind: EventKind, first: int, last: int, stay: Sequence[int]
    ) -> int:
        """Delete the events of a job and kind from one number to another, but for a few; how much."""
        conditions = EventRow.number.between(first, last), EventRow.number.not_in(stay)
        return session.connection().execute(delete(EventRow).where(*_are_of(job_id, kind), *conditions)).rowcount

    @write_session
    def _mark_thinned(self, session: Session, job_id: int) -> None:
        row = session.get(JobRow, job_id, with_for_update=True)
        if row is not None:  # it was deleted
            replace(PrunedOfJob.of(row.progress), is_thinned=True).store(row)


def _spared(kind: EventKind, told: Sequence[tuple[int, bool]]) -> set[int]:
    """The numbers of events of a kind that stay."""
    if kind is EventKind.PROGRESS:
        return spared_progress(told, MOST_PROGRESS)
    return spared_evenly([number for number, _ in told], MOST_PROGRESS)


def _are_of(job_id: int, kind: EventKind) -> tuple[ColumnElement[bool], ...]:
    return EventRow.job_id == job_id, EventRow.kind == kind.value

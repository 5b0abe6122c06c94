"""SqlWorkload: who was at work and what waits, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session

from .database import Database, batches, patient
from .jobs import EventKind, JobState
from .leases import is_lost
from .models import IS_UNFINISHED, EventRow, JobRow
from .workload import Queue, Shift, Shifts, Workload

ENDS = (
    EventKind.PAUSED,
    EventKind.RETURNED,
    EventKind.LOST,
    EventKind.SUCCEEDED,
    EventKind.FAILED,
    EventKind.CANCELLED,
)
"""What ends the shift that goes on, if one does. Another process that starts ends it too."""

STATES = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""Those that a `Queue` counts, in its order."""

Told = SqlRow[int, int, str, datetime, str | None]
"""Of an event: its job, number, kind, moment, and the holder where it names one."""

AT_ONCE = 100
"""Jobs whose events are read with one query."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the events of a job tell."""

    events: int = 0  # how many were read
    shifts: tuple[Shift, ...] = ()  # the last one goes on where it has no end


class SqlWorkload(Workload):
    """See `Workload`.

    A job that goes on for days has events by the hundred thousand. So what was read of a job is kept while anybody may
    ask for it, and the next look reads what is new.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._known: Mapping[int, _Known] = {}  # by job; replaced as a whole, so threads need no lock

    @patient
    def shifts(self, last_s: float) -> Shifts:
        with self.database.read() as session:
            until = self.database.now(session)
            since = until - timedelta(seconds=last_s)
            # A job that nobody changed since, and nobody works on, has no shift since: few are left to look at.
            jobs = session.execute(
                select(JobRow.id, JobRow.events, JobRow.leased_until).where(
                    or_(JobRow.updated_at >= since, JobRow.state == JobState.RUNNING.value)
                )
            ).all()
            self._known = known = _read(session, self._known, {job.id: job.events for job in jobs})
        found = [shift for job in jobs for shift in _until_lost(known[job.id].shifts, job.leased_until, until)]
        kept = [shift for shift in found if shift.ended_at is None or shift.ended_at > since]
        return Shifts(since, until, tuple(sorted(kept, key=lambda shift: (shift.begun_at, shift.job_id))))

    @patient
    def queues(self) -> list[Queue]:
        with self.database.read() as session:
            query: Select[*tuple[Any, ...]] = (
                select(
                    JobRow.target_key,
                    *(_number(JobRow.state == state.value) for state in STATES),
                    _number(is_lost(self.database.now(session))),
                    func.min(case((JobRow.state == JobState.QUEUED.value, JobRow.updated_at), else_=None)),
                )
                .where(IS_UNFINISHED)
                .group_by(JobRow.target_key)
            )
            queues = [Queue(key or "", *numbers) for key, *numbers in session.execute(query)]
        return sorted(queues, key=lambda queue: (-queue.queued, queue.target_key))


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    """Of how many rows it is true."""
    return func.sum(case((condition, 1), else_=0))


def _read(session: Session, known: Mapping[int, _Known], events: Mapping[int, int]) -> dict[int, _Known]:
    """What the first so many `events` of each job tell, of which some may be known."""
    kept = {job_id: known.get(job_id, _Known()) for job_id in events}
    grown = [job_id for job_id, count in events.items() if count > kept[job_id].events]
    holder = case((EventRow.kind == EventKind.STARTED.value, EventRow.data["holder"].as_string()), else_=None)
    query = select(EventRow.job_id, EventRow.number, EventRow.kind, EventRow.created_at, holder).where(
        EventRow.kind.in_([EventKind.STARTED.value, *(kind.value for kind in ENDS)])
    )
    for batch in batches(grown, AT_ONCE):
        told: dict[int, list[Told]] = {job_id: [] for job_id in batch}
        new = [and_(EventRow.job_id == job_id, EventRow.number > kept[job_id].events) for job_id in batch]
        for row in session.execute(query.where(or_(*new)).order_by(EventRow.job_id, EventRow.number)):
            if row.number <= events[row.job_id]:  # those behind may have come in since the jobs were read
                told[row.job_id].append(row)
        for job_id, rows in told.items():
            kept[job_id] = _Known(events[job_id], _shifts(kept[job_id].shifts, rows))
    return kept


def _shifts(before: tuple[Shift, ...], told: Iterable[Told]) -> tuple[Shift, ...]:
    """The shifts of a job: those before, and what its next events tell."""
    shifts = list(before)
    for job_id, _, kind, created_at, holder in told:
        if shifts and shifts[-1].ended_at is None:
            shifts[-1] = replace(shifts[-1], ended_at=created_at)
        if kind == EventKind.STARTED.value:
            shifts.append(Shift(job_id, holder or "", created_at, None))
    return tuple(shifts)


def _until_lost(shifts: tuple[Shift, ...], leased_until: datetime | None, now: datetime) -> tuple[Shift, ...]:
    """The shifts of a job. Nothing tells of the end of a process: its last one ends with the lease."""
    if not shifts or shifts[-1].ended_at is not None or leased_until is None or leased_until > now:
        return shifts
    return (*shifts[:-1], replace(shifts[-1], ended_at=leased_until))

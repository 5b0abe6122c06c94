"""Workload: the shifts of tuner processes, and the queues of jobs that wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session

from .database import Database, DatabasePart, batches, read_session
from .job import EventKind, JobState
from .leases import is_lease_over
from .tables import IS_UNFINISHED, EventRow, JobRow


@dataclass(frozen=True, slots=True)
class Shift:
    """A period in which a process had a job leased."""

    job_id: int
    holder: str  # the process, for people: host and process; hostile text is possible
    begun_at: datetime  # UTC; it may be long before the period
    ended_at: datetime | None  # UTC; None: it goes on


@dataclass(frozen=True, slots=True)
class Shifts:
    """The shifts of a period, by their begin."""

    since: datetime  # UTC, by the clock that all processes share
    until: datetime  # UTC; the moment of the query
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class TargetQueue:
    """The unfinished jobs for a target."""

    target_key: str  # empty: those that wait for any device
    queued: int
    running: int
    paused: int
    lost: int  # running ones with an expired lease, for another process to take up
    oldest_at: datetime | None  # UTC; of the queued job that waits longest; None where none waits


SHIFT_ENDS = (
    EventKind.PAUSED,
    EventKind.RETURNED,
    EventKind.LOST,
    EventKind.SUCCEEDED,
    EventKind.FAILED,
    EventKind.CANCELLED,
)
"""Events that end a shift. Another process that starts ends it too."""

STATES = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""The states that a `TargetQueue` counts, in its order."""

EventHead = SqlRow[int, int, str, datetime, str | None]
"""Job, number, kind and moment of an event, and the holder where it has one."""

JOBS_AT_ONCE = 100
"""Jobs whose events are read with one query."""


@dataclass(frozen=True, slots=True)
class _JobShifts:
    """The shifts of a job by its first events."""

    events: int = 0  # number of events that were read
    shifts: tuple[Shift, ...] = ()  # the last one may be open


class Workload(DatabasePart):
    """Each method reads at one moment, and may raise StoreError.

    A job of some days has hundreds of thousands of events. So the shifts of recent jobs are cached, and a query reads
    the new events only.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._jobs: Mapping[int, _JobShifts] = {}  # by id; replaced as a whole, so threads need no lock

    @read_session
    def shifts(self, session: Session, last_s: float) -> Shifts:
        """The shifts of the last seconds, by the events of the jobs.

        A process that vanished was at work until its lease expired, or another one took the job up.
        """
        until = self.database.now(session)
        since = until - timedelta(seconds=last_s)
        # Jobs that have not changed since, and are not running, have no shift since: few are left.
        jobs = session.execute(
            select(JobRow.id, JobRow.events, JobRow.leased_until).where(
                or_(JobRow.updated_at >= since, JobRow.state == JobState.RUNNING.value)
            )
        ).all()
        self._jobs = job_shifts = _read_shifts(session, self._jobs, {job.id: job.events for job in jobs})
        shifts = [shift for job in jobs for shift in _end_at_lease(job_shifts[job.id].shifts, job.leased_until, until)]
        shifts = [shift for shift in shifts if shift.ended_at is None or shift.ended_at > since]
        return Shifts(since, until, tuple(sorted(shifts, key=lambda shift: (shift.begun_at, shift.job_id))))

    @read_session
    def queues(self, session: Session) -> list[TargetQueue]:
        """The unfinished jobs by target, those with the most queued ones first."""
        query: Select[*tuple[Any, ...]] = (
            select(
                JobRow.target_key,
                *(_count_if(JobRow.state == state.value) for state in STATES),
                _count_if(is_lease_over(self.database.now(session))),
                func.min(case((JobRow.state == JobState.QUEUED.value, JobRow.updated_at), else_=None)),
            )
            .where(IS_UNFINISHED)
            .group_by(JobRow.target_key)
        )
        queues = [TargetQueue(key or "", *numbers) for key, *numbers in session.execute(query)]
        return sorted(queues, key=lambda queue: (-queue.queued, queue.target_key))


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    """The number of rows with a condition."""
    return func.sum(case((condition, 1), else_=0))


def _read_shifts(
    session: Session, cached: Mapping[int, _JobShifts], events: Mapping[int, int]
) -> dict[int, _JobShifts]:
    """The shifts by the first so many `events` of each job, of which some are `cached`."""
    jobs = {job_id: cached.get(job_id, _JobShifts()) for job_id in events}
    changed = [job_id for job_id, count in events.items() if count > jobs[job_id].events]
    holder = case((EventRow.kind == EventKind.STARTED.value, EventRow.data["holder"].as_string()), else_=None)
    query = select(EventRow.job_id, EventRow.number, EventRow.kind, EventRow.created_at, holder).where(
        EventRow.kind.in_([EventKind.STARTED.value, *(kind.value for kind in SHIFT_ENDS)])
    )
    for batch in batches(changed, JOBS_AT_ONCE):
        heads: dict[int, list[EventHead]] = {job_id: [] for job_id in batch}
        conditions = [and_(EventRow.job_id == job_id, EventRow.number > jobs[job_id].events) for job_id in batch]
        for row in session.execute(query.where(or_(*conditions)).order_by(EventRow.job_id, EventRow.number)):
            if row.number <= events[row.job_id]:  # later ones may have been stored after the jobs were read
                heads[row.job_id].append(row)
        for job_id, rows in heads.items():
            jobs[job_id] = _JobShifts(events[job_id], _shifts(jobs[job_id].shifts, rows))
    return jobs


def _shifts(earlier: tuple[Shift, ...], events: Iterable[EventHead]) -> tuple[Shift, ...]:
    """The shifts of a job: the `earlier` ones, and those of its next events."""
    shifts = list(earlier)
    for job_id, _, kind, created_at, holder in events:
        if shifts and shifts[-1].ended_at is None:
            shifts[-1] = replace(shifts[-1], ended_at=created_at)
        if kind == EventKind.STARTED.value:
            shifts.append(Shift(job_id, holder or "", created_at, None))
    return tuple(shifts)


def _end_at_lease(shifts: tuple[Shift, ...], leased_until: datetime | None, now: datetime) -> tuple[Shift, ...]:
    """The shifts of a job. The end of a process is no event: an open shift ends with the lease."""
    if not shifts or shifts[-1].ended_at is not None or leased_until is None or leased_until > now:
        return shifts
    return (*shifts[:-1], replace(shifts[-1], ended_at=leased_until))

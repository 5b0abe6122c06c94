"""Leases: how a job changes hands. All of it happens on a row that is locked, within one transaction."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, or_, select, update
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session

from .database import Database
from .errors import NotFound
from .jobs import ATTEMPTS, UNFINISHED, Conflict, EventKind, JobState, Lease, LeaseLost, NewEvent, Wish
from .models import ClaimRow, EventRow, JobRow
from .translate import clean

OfJob = TypeVar("OfJob", bound=JobRow | SqlRow[*tuple[Any, ...]])

BACKOFF_S = 2.0
"""How long a job is left alone, about, after the second loss in a row; twice as long after each further one."""

LONGEST_BACKOFF_S = 60.0

NO_TARGET = JobRow.target_key.is_(None)
"""Of a job that waits for any device."""

HELD_BY = select(JobRow.target_key, JobRow.epoch, JobRow.leased_until).where(JobRow.id == bindparam("job"))
"""Under which lease a job is."""

HELD = HELD_BY.with_for_update()
"""The same, of a job that is locked by it."""

IS_NAMED = ClaimRow.task_key == bindparam("task"), ClaimRow.target_key == bindparam("target")

CLAIM = select(ClaimRow.job_id, ClaimRow.epoch).where(*IS_NAMED).with_for_update()
"""Who has a task, the claim being locked."""

CLAIMED = update(ClaimRow).where(*IS_NAMED).values(job_id=bindparam("by"), epoch=bindparam("since"))
"""A claim goes over to another epoch, of this job or another one."""


@contextmanager
def changing(database: Database) -> Iterator[Change]:
    """A transaction that changes jobs."""
    with database.write() as session:
        yield Change(database, session)


class Change:
    """The transaction and its moment; events are told with what they report."""

    def __init__(self, database: Database, session: Session) -> None:
        self.database = database
        self.session = session
        self.now = database.now(session)

    def job(self, job_id: int) -> JobRow:
        """The job, locked. Raises NotFound."""
        row = self.session.get(JobRow, job_id, with_for_update=True)
        if row is None:
            raise NotFound(f"{self.database}: there is no job {job_id}")
        return row

    def unfinished(self, job_id: int) -> JobRow:
        """The job, locked. Raises NotFound, and Conflict where it is finished."""
        row = self.job(job_id)
        if JobState(row.state) not in UNFINISHED:
            raise Conflict(f"job {job_id} is {row.state} already")
        return row

    def held(self, lease: Lease, write: str) -> JobRow | None:
        """The job of a lease, locked. Raises LeaseLost.

        `write` is the id of what is to be written: None is returned where just that is written already, which happens
        where it is tried again since the connection was lost between its commit and the answer.
        """
        row = under(self.session.get(JobRow, lease.job_id, with_for_update=True), lease)
        if row.written == write:
            return None
        if row.leased_until is None:
            raise lost(lease)
        row.written = write
        return row

    def until(self, lease_s: float) -> datetime:
        """When a lease that begins or is renewed now is over."""
        return self.now + timedelta(seconds=lease_s)

    def is_leased(self, row: JobRow) -> bool:
        """Whether somebody has the job, and said so not too long ago."""
        return row.leased_until is not None and row.leased_until > self.now

    def tell(self, row: JobRow, kind: EventKind, **data: Any) -> None:
        """Store an event of a job that is locked."""
        self.tell_all(row, [NewEvent(kind, data)])

    def tell_all(self, row: JobRow, events: Iterable[NewEvent]) -> None:
        """Store events of a job that is locked: so numbers follow the order of commits, without a gap."""
        for values in event_values(row.id, row.events, events, self.now):
            row.events += 1
            self.session.add(EventRow(**values))
            self.database.announce(self.session)

    def take(self, row: JobRow, holder: str, lease_s: float) -> Lease:
        """Begin a new epoch of the job."""
        holder = clean(holder)
        row.epoch += 1
        row.attempts += 1
        row.state, row.holder, row.wish, row.written, row.not_before = JobState.RUNNING.value, holder, None, "", None
        row.leased_until = self.until(lease_s)
        row.updated_at = self.now
        row.result = None  # of when it was paused: it goes on from there
        self.tell(row, EventKind.STARTED, holder=holder, attempt=row.attempts)
        return Lease(row.id, row.epoch, holder)

    def lose(self, row: JobRow) -> None:
        """End a lease that is over, which its holder may not know. What becomes of the job is for the caller."""
        if row.leased_until is not None:
            self.tell(row, EventKind.LOST, holder=row.holder)
        row.leased_until = None

    def requeue_lost(self, row: JobRow) -> bool:
        """Settle a running job whose lease is over. Whether it can be taken up at once."""
        holder = row.holder
        self.lose(row)
        if row.wish is not None:
            self.settle(row, JobState.QUEUED)
        elif row.attempts >= ATTEMPTS:
            error = f"{row.attempts} processes in a row went away from it without a new trial, the last one {holder}"
            self.settle(row, JobState.FAILED, error=error)
        elif row.attempts > 1:
            pause_s = min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0 ** (row.attempts - 2)) * random.uniform(0.5, 1.5)
            self.settle(row, JobState.QUEUED)
            row.not_before = self.now + timedelta(seconds=pause_s)
        else:
            return True
        return False

    def settle(self, row: JobRow, state: JobState, *, result: Mapping[str, Any] | None = None, error: str = "") -> None:
        """End the lease, if any, and put the job into a state; one that would go on obeys what was wished of it."""
        if state in UNFINISHED and row.wish is not None:
            state = {Wish.PAUSE: JobState.PAUSED, Wish.CANCEL: JobState.CANCELLED}[Wish(row.wish)]
        row.state, row.holder, row.wish, row.leased_until, row.not_before = state.value, "", None, None, None
        row.updated_at = self.now
        self.session.execute(delete(ClaimRow).where(ClaimRow.job_id == row.id))
        match state:
            case JobState.QUEUED:
                pass  # why it is queued again is told by whoever does that
            case JobState.SUCCEEDED:
                row.result = None if result is None else dict(result)
                self.tell_all(row, [NewEvent(EventKind.SUCCEEDED, row.result or {})])
            case JobState.FAILED:
                row.result, row.error = None if result is None else dict(result), clean(" ".join(error.split()))
                self.tell(row, EventKind.FAILED, error=row.error)
            case _:
                row.result = None if result is None else dict(result)
                self.tell(row, EventKind(state.value))


def claimed(database: Database, connection: Connection, lease: Lease, task_key: str) -> bool:
    """Have a task for the epoch of a job. False where another lease in force has it. Raises LeaseLost."""
    job = under(connection.execute(HELD, {"job": lease.job_id}).one_or_none(), lease)
    if job.leased_until is None:
        raise lost(lease)
    names = {"task": task_key, "target": job.target_key}
    mine = {"task_key": task_key, "target_key": job.target_key, "job_id": lease.job_id, "epoch": lease.epoch}
    while not database.add(connection, ClaimRow, ["task_key", "target_key"], [mine]):
        claim = connection.execute(CLAIM, names).one_or_none()
        if claim is None:  # it was let go of in between
            continue
        if claim.job_id != lease.job_id:
            # Read after the claim was locked: what is in force now, not when this transaction began.
            other = connection.execute(HELD_BY, {"job": claim.job_id}).one()
            is_leased = other.leased_until is not None and other.leased_until > database.now(connection)
            if other.epoch == claim.epoch and is_leased:
                return False
        connection.execute(CLAIMED, names | {"by": lease.job_id, "since": lease.epoch})
        break
    return True


def under(row: OfJob | None, lease: Lease) -> OfJob:
    """The row, which is of a lease's job and locked, if nobody has taken the job up since. Raises LeaseLost.

    The lease may be over. A write that ended it may be tried again nevertheless: see `Change.held`.
    """
    if row is None or row.epoch != lease.epoch:
        raise lost(lease)
    return row


def lost(lease: Lease) -> LeaseLost:
    """To be raised where somebody else has the job, or nobody."""
    return LeaseLost(f"job {lease.job_id} is no longer leased to {lease.holder}")


def event_values(job_id: int, before: int, events: Iterable[NewEvent], now: datetime) -> list[dict[str, Any]]:
    """The columns of EventRows of a job that has `before` events."""
    return [
        {"job_id": job_id, "number": number, "kind": event.kind.value, "data": dict(event.data), "created_at": now}
        for number, event in enumerate(events, before + 1)
    ]


def is_lost(now: datetime) -> ColumnElement[bool]:
    """Of a JobRow: it is running, and its lease is over."""
    is_over = or_(JobRow.leased_until.is_(None), JobRow.leased_until <= now)
    return and_(JobRow.state == JobState.RUNNING.value, is_over)


def may_be_taken(now: datetime) -> ColumnElement[bool]:
    """Of a JobRow: any process may take it up, or settle it since its lease is over."""
    is_queued = and_(
        JobRow.state == JobState.QUEUED.value,
        or_(JobRow.not_before.is_(None), JobRow.not_before <= now),
    )
    return and_(JobRow.attached.is_(False), or_(is_queued, is_lost(now)))


def next_to_take(now: datetime, keys: Collection[str], unfit: Collection[int] | None) -> Select[JobRow]:
    """The job to do next for these targets, and locks it.

    Also for any device, but those that are `unfit` for it; where that is None, none such.
    """
    is_wanted: ColumnElement[bool] = JobRow.target_key.in_(keys)
    if unfit is not None:
        is_wanted = or_(is_wanted, and_(NO_TARGET, JobRow.id.not_in(unfit)))
    query = select(JobRow).where(may_be_taken(now), is_wanted)
    return query.order_by(JobRow.priority.desc(), JobRow.id).limit(1).with_for_update(skip_locked=True)

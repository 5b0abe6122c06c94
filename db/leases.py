"""Leases: how a job changes hands. All of it happens on a locked row, within one transaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, or_, select, update
from sqlalchemy import Row as SqlRow
from sqlalchemy.orm import Session

from .bounds import LARGEST_ID, LONGEST_LEASE_S
from .database import Database, DatabasePart, in_transaction, is_repeated
from .errors import NotFound
from .job import ATTEMPTS, UNFINISHED, Conflict, EventKind, JobState, Lease, LeaseLost, NewEvent, Wish
from .tables import ClaimRow, EventRow, JobRow
from .translate import clean
from .webhooks import queue_deliveries

Owner = TypeVar("Owner", bound=DatabasePart)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
OfJob = TypeVar("OfJob", bound=JobRow | SqlRow[*tuple[Any, ...]])

BACKOFF_S = 2.0
"""Pause of a job after the second loss in a row, about; twice as long after each further one."""

LONGEST_BACKOFF_S = 60.0

NO_TARGET = JobRow.target_key.is_(None)
"""Condition: a job that waits for any device."""

LEASE_OF = select(JobRow.target_key, JobRow.epoch, JobRow.leased_until).where(JobRow.id == bindparam("job"))
"""The lease of a job."""

LEASE_LOCKED = LEASE_OF.with_for_update()
"""The same, and lock the job."""

IS_NAMED = ClaimRow.task_key == bindparam("task"), ClaimRow.target_key == bindparam("target")

CLAIM = select(ClaimRow.job_id, ClaimRow.epoch).where(*IS_NAMED).with_for_update()
"""The owner of a claim, which is locked."""

TAKE_CLAIM = update(ClaimRow).where(*IS_NAMED).values(job_id=bindparam("by"), epoch=bindparam("since"))
"""Move a claim to another epoch, of this job or another one."""


@contextmanager
def begin_change(database: Database) -> Iterator[Change]:
    """A transaction that changes jobs."""
    with database.write() as session:
        yield Change(database, session)


def change_jobs(
    method: Callable[Concatenate[Owner, Change, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Make a method one such transaction, repeated as by `retry`. Its first argument is the change."""
    return in_transaction(method, begin_change)


class Change:
    """The transaction and its moment."""

    def __init__(self, database: Database, session: Session) -> None:
        self.database = database
        self.session = session
        self.now = database.now(session)

    def job(self, job_id: int) -> JobRow:
        """The job, locked. Raises NotFound."""
        return job_row(self.database, self.session, job_id, lock=True)

    def unfinished_job(self, job_id: int) -> JobRow:
        """The job, locked. Raises NotFound, and Conflict where it is finished."""
        row = self.job(job_id)
        if JobState(row.state) not in UNFINISHED:
            raise Conflict(f"job {job_id} is {row.state} already")
        return row

    def leased_job(self, lease: Lease, write: str) -> JobRow | None:
        """The job of a lease, locked; None if this write is stored already. Raises LeaseLost.

        `write` is the id of the write: it is repeated if the connection was lost between its commit and the answer.
        """
        row = check_lease(self.session.get(JobRow, lease.job_id, with_for_update=True), lease)
        if is_repeated(row.written, write):
            return None
        if row.leased_until is None:
            raise lease_lost_error(lease)
        row.written = write
        return row

    def lease_end(self, lease_s: float) -> datetime:
        """When a lease that begins or is renewed now expires. Raises ValueError for a length that none has."""
        if not 0 <= lease_s <= LONGEST_LEASE_S:
            raise ValueError(f"a lease lasts from 0 s to {LONGEST_LEASE_S:,.0f} s, not {lease_s}")
        return self.now + timedelta(seconds=lease_s)

    def is_leased(self, row: JobRow) -> bool:
        """Whether a lease of the job is in force."""
        return row.leased_until is not None and row.leased_until > self.now

    def add_event(self, row: JobRow, kind: EventKind, **data: Any) -> None:
        """Store an event of a locked job."""
        self.add_events(row, [NewEvent(kind, data)])

    def add_events(self, row: JobRow, events: Iterable[NewEvent]) -> None:
        """Store events of a locked job, so that numbers follow the order of commits without a gap.

        And the deliveries of those that webhooks are told of.
        """
        new = event_values(row.id, row.events, events, self.now)
        for values in new:
            row.events += 1
            self.session.add(EventRow(**values))
            self.database.announce(self.session)
        queue_deliveries(self.session, row, new, self.now)

    def begin_lease(self, row: JobRow, holder: str, lease_s: float) -> Lease:
        """Begin a new epoch of the job."""
        holder = clean(holder)
        row.epoch += 1
        row.attempts += 1
        row.state, row.holder, row.wish, row.written, row.not_before = JobState.RUNNING.value, holder, None, "", None
        row.leased_until = self.lease_end(lease_s)
        row.updated_at = self.now
        row.result = None  # of a pause, from where it goes on
        self.add_event(row, EventKind.STARTED, holder=holder, attempt=row.attempts)
        return Lease(row.id, row.epoch, holder)

    def end_lease(self, row: JobRow) -> None:
        """End an expired lease, maybe unknown to its holder. The caller decides what becomes of the job."""
        if row.leased_until is not None:
            self.add_event(row, EventKind.LOST, holder=row.holder)
        row.leased_until = None

    def requeue_lost(self, row: JobRow) -> bool:
        """Settle a running job whose lease has expired. Whether it can be taken up at once."""
        holder = row.holder
        self.end_lease(row)
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
        """End the lease, if any, and set the state; an unfinished job obeys the wish for it."""
        state = obey(row, state)
        row.state, row.holder, row.wish, row.leased_until, row.not_before = state.value, "", None, None, None
        row.updated_at = self.now
        self.session.execute(delete(ClaimRow).where(ClaimRow.job_id == row.id))
        match state:
            case JobState.QUEUED:
                pass  # the caller adds the event
            case JobState.SUCCEEDED:
                row.result = None if result is None else dict(result)
                self.add_events(row, [NewEvent(EventKind.SUCCEEDED, row.result or {})])
            case JobState.FAILED:
                row.result, row.error = None if result is None else dict(result), clean(" ".join(error.split()))
                self.add_event(row, EventKind.FAILED, error=row.error)
            case _:
                row.result = None if result is None else dict(result)
                self.add_event(row, EventKind(state.value))


def obey(row: JobRow, state: JobState) -> JobState:
    """The state that a job is left in: an unfinished one obeys the wish for it."""
    if state not in UNFINISHED or row.wish is None:
        return state
    return {Wish.PAUSE: JobState.PAUSED, Wish.CANCEL: JobState.CANCELLED}[Wish(row.wish)]


def job_row(database: Database, session: Session, job_id: int, *, lock: bool = False) -> JobRow:
    """The row of a job. Raises NotFound."""
    row = session.get(JobRow, job_id, with_for_update=lock) if 0 < job_id <= LARGEST_ID else None
    if row is None:
        raise NotFound(f"{database}: there is no job {job_id}")
    return row


def claim_task(database: Database, connection: Connection, lease: Lease, task_key: str) -> bool:
    """Claim a task for the epoch of a job. False where another lease in force has it. Raises LeaseLost."""
    job = check_lease(connection.execute(LEASE_LOCKED, {"job": lease.job_id}).one_or_none(), lease)
    if job.leased_until is None:
        raise lease_lost_error(lease)
    parameters = {"task": task_key, "target": job.target_key}
    values = {"task_key": task_key, "target_key": job.target_key, "job_id": lease.job_id, "epoch": lease.epoch}
    while not database.add(connection, ClaimRow, ["task_key", "target_key"], [values]):
        claim = connection.execute(CLAIM, parameters).one_or_none()
        if claim is None:  # it was released in between
            continue
        if claim.job_id != lease.job_id:
            # Read after locking the claim: the state now, not at the begin of this transaction.
            other_lease = connection.execute(LEASE_OF, {"job": claim.job_id}).one()
            is_leased = other_lease.leased_until is not None and other_lease.leased_until > database.now(connection)
            if other_lease.epoch == claim.epoch and is_leased:
                return False
        connection.execute(TAKE_CLAIM, parameters | {"by": lease.job_id, "since": lease.epoch})
        break
    return True


def check_lease(row: OfJob | None, lease: Lease) -> OfJob:
    """The locked row of a lease's job, unless a new epoch has begun. Raises LeaseLost.

    The lease may have expired: a repeated write may have ended it (`Change.leased_job`).
    """
    if row is None or row.epoch != lease.epoch:
        raise lease_lost_error(lease)
    return row


def lease_lost_error(lease: Lease) -> LeaseLost:
    """The error where another process has the job, or none."""
    return LeaseLost(f"job {lease.job_id} is no longer leased to {lease.holder}")


def event_values(job_id: int, before: int, events: Iterable[NewEvent], now: datetime) -> list[dict[str, Any]]:
    """The columns of EventRows of a job that has `before` events."""
    return [
        {"job_id": job_id, "number": number, "kind": event.kind.value, "data": dict(event.data), "created_at": now}
        for number, event in enumerate(events, before + 1)
    ]


def is_lease_over(now: datetime) -> ColumnElement[bool]:
    """Condition on a JobRow: it is running, and its lease has expired."""
    is_over = or_(JobRow.leased_until.is_(None), JobRow.leased_until <= now)
    return and_(JobRow.state == JobState.RUNNING.value, is_over)


def is_available(now: datetime) -> ColumnElement[bool]:
    """Condition on a JobRow: any process may take it up, or settle it as its lease has expired."""
    is_queued = and_(
        JobRow.state == JobState.QUEUED.value,
        or_(JobRow.not_before.is_(None), JobRow.not_before <= now),
    )
    return and_(JobRow.attached.is_(False), or_(is_queued, is_lease_over(now)))


def next_job(now: datetime, keys: Collection[str], unfit: Collection[int] | None) -> Select[JobRow]:
    """The query that selects and locks the next job for these targets.

    Also jobs for any device, but those that are `unfit` for the devices at hand; where that is None, none of them.
    """
    is_candidate: ColumnElement[bool] = JobRow.target_key.in_(keys)
    if unfit is not None:
        is_candidate = or_(is_candidate, and_(NO_TARGET, JobRow.id.not_in(unfit)))
    query = select(JobRow).where(is_available(now), is_candidate)
    return query.order_by(JobRow.priority.desc(), JobRow.id).limit(1).with_for_update(skip_locked=True)

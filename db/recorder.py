"""Recorder: stores trials and confirmations.

Trials are stored without the mapper, as a search waits for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, select, update
from sqlalchemy import exc as sql

from tunewright.search_space.measurement import Record

from .choice import (
    STANDING_BEST,
    confirmation_created_at,
    lock_pairs,
    trial_created_at,
    update_best_by_trial,
    update_bests,
)
from .database import Database, DatabasePart, is_repeated, retry
from .errors import NotFound
from .exchange import check_measurement
from .job import Lease, NewEvent
from .leases import begin_change, check_lease, event_values, lease_lost_error
from .tables import ConfirmationRow, EventRow, JobRow, JobTaskRow, RepeatRow, TrialRow, VoidRow
from .transfer import CREATION_KEY, TRIAL_KEY
from .translate import measurement_values
from .voids import void_marks, voids_in_force

REPEAT_COLUMNS = tuple(column.key for column in RepeatRow.__table__.columns if column.key != "id")
"""The columns of a trial that a repeat has too."""

STANDING_BEST_AND_VOIDS = STANDING_BEST.add_columns(
    select(func.count())
    .select_from(VoidRow)
    .where(VoidRow.target_key == bindparam("target"), VoidRow.task_key == bindparam("task"))
    .scalar_subquery()
    .label("voids")
)
"""`STANDING_BEST`, and the number of voids of the task, lifted ones too."""

NEXT_ORDINAL = (
    select(func.coalesce(func.max(TrialRow.ordinal) + 1, 0))
    .where(TrialRow.job_id == bindparam("job"))
    .scalar_subquery()
)
"""The ordinal of a job's next trial; read while the job is locked."""

IS_OF_JOB = and_(
    JobRow.target_key == bindparam("target"),
    select(JobTaskRow.job_id).where(JobTaskRow.job_id == JobRow.id, JobTaskRow.task_key == bindparam("task")).exists(),
)
"""Whether a task on a target is among those of a job."""

STANDING_BEST_UNDER_LEASE = (
    STANDING_BEST_AND_VOIDS.add_columns(
        JobRow.epoch, JobRow.leased_until, JobRow.written, JobRow.events, IS_OF_JOB.label("is_of_job")
    )
    .where(JobRow.id == bindparam("job"))
    .with_for_update()
)
"""`STANDING_BEST_AND_VOIDS`, and the columns of a job that a trial under its lease depends on; locks the job."""

ADVANCE_JOB = (
    update(JobRow)
    .where(JobRow.id == bindparam("job"))
    .values(written=bindparam("write"), updated_at=bindparam("now"), attempts=0, events=bindparam("last_event"))
)
"""Update a job for a new trial under its lease, with events up to this number."""


def _check_is_of_job(is_of_job: bool | None, record: Record) -> None:
    """Raises ValueError for a measurement of what is none of the job's."""
    if not is_of_job:
        raise ValueError(f"task {record.task_key} on target {record.target_key} is none of the job's")


class Recorder(DatabasePart):
    """The methods of `Store` for measurements of this database."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._insert = database.insert_new(TrialRow, TRIAL_KEY)
        self._insert_next = self._insert.values(ordinal=NEXT_ORDINAL)

    def record(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> bool:
        """Store a trial. False where the same schedule was stored before, which stays as it is.

        `lease` is that of the job that measured it. `events` of the job are stored with a new trial. Raises LeaseLost,
        NotFound where task or target is unknown, and ValueError for a measurement that contradicts itself (OK without a
        positive time, a time that is no number).
        """
        check_measurement(record.measurement)
        with self._write(lease) as write:
            return self._record(write, record, lease, events)

    @retry
    def _record(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> bool:
        with self._raise_not_found(record), self.database.write_core() as connection:
            if lease is not None:
                return self._add_with_lease(lease, write, connection, record, events)
            parameters = {"task": record.task_key, "target": record.target_key}
            best_state = connection.execute(STANDING_BEST_AND_VOIDS, parameters).one()
            return self._add(connection, record, self.database.now(connection), best_state)

    def confirm(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> None:
        """Store a confirmation: the schedule chosen when the best trials of a task were compared side by side.

        One that is not OK says that no schedule tried so far works: `best` then considers later trials only. `lease`
        and `events` are of the job that compared them. Raises LeaseLost, NotFound where task or target is unknown, and
        ValueError as `record` does.
        """
        check_measurement(record.measurement)
        with self._write(lease) as write:
            self._confirm(write, record, lease, events)

    @retry
    def _confirm(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> None:
        pair = record.target_key, record.task_key
        with self._raise_not_found(record), begin_change(self.database) as change:
            if lease is not None:
                job = change.leased_job(lease, write)
                if job is None:
                    return
                of_job = select(IS_OF_JOB).where(JobRow.id == job.id)
                parameters = {"task": record.task_key, "target": record.target_key}
                _check_is_of_job(change.session.scalar(of_job, parameters), record)
                change.add_events(job, events)
            lock_pairs(self.database, change.session.connection(), [pair])
            moment = confirmation_created_at(change.session, change.now, record.task_key, record.target_key)
            values = measurement_values(record, moment)
            marks = void_marks(voids_in_force(change.session, record.target_key, [record.task_key]), values)
            change.session.add(ConfirmationRow(**values | marks))
            update_bests(self.database, change.session, [pair])

    def _write(self, lease: Lease | None) -> AbstractContextManager[str]:
        """The id of a write; under a lease by `Database.leased_writes`, and of no meaning without one."""
        return nullcontext("") if lease is None else self.database.leased_writes()

    @contextmanager
    def _raise_not_found(self, record: Record) -> Iterator[None]:
        """Raises NotFound where the task or the target of a record is not stored."""
        try:
            yield
        except sql.IntegrityError as error:
            missing = f"task {record.task_key} or target {record.target_key} is not stored"
            raise NotFound(f"{self.database}: {missing}") from error

    # Within a transaction

    def _add_with_lease(
        self, lease: Lease, write: str, connection: Connection, record: Record, events: Sequence[NewEvent]
    ) -> bool:
        """Store a trial of a job, with its events if it is new. True also if this write is stored already.

        Raises LeaseLost. `write` is the id of the write, as in `Change.leased_job`.
        """
        parameters = {"job": lease.job_id, "task": record.task_key, "target": record.target_key}
        job = check_lease(connection.execute(STANDING_BEST_UNDER_LEASE, parameters).one_or_none(), lease)
        if is_repeated(job.written, write):
            return True
        _check_is_of_job(job.is_of_job, record)
        if job.leased_until is None:
            raise lease_lost_error(lease)
        now = self.database.now(connection)
        if not self._add(connection, record, now, job, lease.job_id):
            return False  # also if this is repeated
        job_values = {"job": lease.job_id, "write": write, "now": now, "last_event": job.events + len(events)}
        connection.execute(ADVANCE_JOB, job_values)
        if events:
            connection.execute(insert(EventRow), event_values(lease.job_id, job.events, events, now))
            self.database.announce(connection)
        return True

    def _add(
        self, connection: Connection, record: Record, now: datetime, best_state: Row[Any], job_id: int | None = None
    ) -> bool:
        """Store a trial, of a locked job or of none. Whether it was new."""
        values, statement = measurement_values(record, trial_created_at(now, best_state.confirmed_at)), self._insert
        if job_id is not None:
            values, statement = values | {"job_id": job_id, "job": job_id}, self._insert_next
        lock_pairs(self.database, connection, [(record.target_key, record.task_key)])
        if best_state.voids or not self.database.is_sqlite:  # it may have been taken back since then
            values |= void_marks(voids_in_force(connection, record.target_key, [record.task_key]), values)
        is_new = connection.execute(statement, values).one_or_none() is not None
        if not is_new and (new_id := self._move_to_repeats(connection, values)) is not None:
            is_new = connection.execute(statement, values | new_id).one_or_none() is not None
        if is_new:
            update_best_by_trial(self.database, connection, values, best_state)
        return is_new

    def _move_to_repeats(self, connection: Connection, values: dict[str, Any]) -> dict[str, Any] | None:
        """Move an imported trial of the same schedule to the repeats; None where there was none.

        Else the id of the new trial, which must be greater than any before: SQLite would use that of the newest trial
        again, if that is the one that was moved.
        """
        conditions = *TrialRow.of(*(values[name] for name in TRIAL_KEY)), TrialRow.is_imported
        query = select(*(getattr(TrialRow, name) for name in REPEAT_COLUMNS)).where(*conditions)
        move = self.database.insert(RepeatRow).from_select(list(REPEAT_COLUMNS), query)
        connection.execute(move.on_conflict_do_nothing(index_elements=list(CREATION_KEY)))
        newest = connection.scalar(select(func.max(TrialRow.id))) if self.database.is_sqlite else None
        if not connection.execute(delete(TrialRow).where(*conditions)).rowcount:
            return None
        return {} if newest is None else {"id": newest + 1}

"""Recording: how a trial gets into the database. Past the mapper, as a search waits for it after each of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from tunewright.search_space.measurement import Record

from .bests import STANDING, note_trial, take_turn
from .choice import trial_moment
from .database import Database
from .jobs import Lease, NewEvent
from .leases import event_values, lost, under
from .models import EventRow, JobRow, RepeatRow, TrialRow, VoidRow
from .sql_exchange import MOMENT_KEY, TRIAL_KEY
from .sql_voids import voided
from .translate import measured_values

KEPT = tuple(column.key for column in RepeatRow.__table__.columns if column.key != "id")
"""The columns of a trial that a repeat has too."""

ASKED = STANDING.add_columns(
    select(func.count())
    .select_from(VoidRow)
    .where(VoidRow.target_key == bindparam("target"), VoidRow.task_key == bindparam("task"))
    .scalar_subquery()
    .label("voids")
)
"""`STANDING`, and how often anything of the task was taken back, or that was lifted."""

NEXT = (
    select(func.coalesce(func.max(TrialRow.ordinal) + 1, 0))
    .where(TrialRow.job_id == bindparam("job"))
    .scalar_subquery()
)
"""The ordinal of a job's next trial, read where nobody can add another one meanwhile: after the job was locked."""

HELD_STANDING = (
    ASKED.add_columns(JobRow.epoch, JobRow.leased_until, JobRow.written, JobRow.events)
    .where(JobRow.id == bindparam("job"))
    .with_for_update()
)
"""`ASKED`, and of a job, which is locked, what a trial under its lease depends on."""

ADVANCED = (
    update(JobRow)
    .where(JobRow.id == bindparam("job"))
    .values(written=bindparam("write"), updated_at=bindparam("now"), attempts=0, events=bindparam("last_event"))
)
"""A new trial came under the lease, with events up to this number."""


class Recording:
    """Stores trials, within transactions of others."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._adding = database.adding(TrialRow, TRIAL_KEY)
        self._adding_next = self._adding.values(ordinal=NEXT)

    def add(self, connection: Connection, record: Record) -> bool:
        """Store a trial. Whether it was new."""
        standing = connection.execute(ASKED, {"task": record.task_key, "target": record.target_key}).one()
        return self._added(connection, record, self._database.now(connection), standing)

    def add_under(
        self, lease: Lease, write: str, connection: Connection, record: Record, events: Sequence[NewEvent]
    ) -> bool:
        """Store a trial of a job, and events with it if it is new; which it is also where this write had been made.

        Raises LeaseLost. `write` is the id of the write: see `Change.held`.
        """
        names = {"job": lease.job_id, "task": record.task_key, "target": record.target_key}
        held = under(connection.execute(HELD_STANDING, names).one_or_none(), lease)
        if held.written == write:
            return True
        if held.leased_until is None:
            raise lost(lease)
        now = self._database.now(connection)
        if not self._added(connection, record, now, held, lease.job_id):
            return False  # as it is where this is tried again
        advanced = {"job": lease.job_id, "write": write, "now": now, "last_event": held.events + len(events)}
        connection.execute(ADVANCED, advanced)
        if events:
            connection.execute(insert(EventRow), event_values(lease.job_id, held.events, events, now))
            self._database.announce(connection)
        return True

    def _added(
        self, connection: Connection, record: Record, now: datetime, standing: Row[Any], job_id: int | None = None
    ) -> bool:
        """Store a trial, of a job that is locked or of none. Whether it was new."""
        values, adding = measured_values(record, trial_moment(now, standing.confirmed_at)), self._adding
        if job_id is not None:
            values, adding = values | {"job_id": job_id, "job": job_id}, self._adding_next
        take_turn(self._database, connection, [(record.target_key, record.task_key)])
        if standing.voids or not self._database.is_sqlite:  # others may have taken it back since that was read
            values |= voided(connection, values)
        is_new = connection.execute(adding, values).one_or_none() is not None
        if not is_new and self._give_way(connection, values):
            is_new = connection.execute(adding, values).one_or_none() is not None
        if is_new:
            note_trial(self._database, connection, values, standing)
        return is_new

    def _give_way(self, connection: Connection, values: dict[str, Any]) -> bool:
        """Put the trial of the same schedule among the repeats where it was imported. Whether it was."""
        same = *(getattr(TrialRow, name) == values[name] for name in TRIAL_KEY), TrialRow.is_imported
        kept = select(*(getattr(TrialRow, name) for name in KEPT)).where(*same)
        moving = self._database.insert(RepeatRow).from_select(list(KEPT), kept)
        connection.execute(moving.on_conflict_do_nothing(index_elements=list(MOMENT_KEY)))
        return connection.execute(delete(TrialRow).where(*same)).rowcount > 0

"""The tables. Rows stay inside `db`: `translate` turns them into domain objects and back.

JSON columns are of type `json`, not `jsonb`: the order of the knobs in a schedule is part of it. Names of states and
statuses are plain text, so that a new one needs no migration.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only what is declared INTEGER
Key = String(64)  # a SHA-256 in hexadecimal


class Instant(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps no zones, so it is taken off there and put back on."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class Row(DeclarativeBase):
    """A row of any table."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class TaskRow(Row):
    """A task that any trial or job names."""

    __tablename__ = "tasks"

    key: Mapped[str] = mapped_column(Key, primary_key=True)
    op: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)  # Task.to_json


class TargetRow(Row):
    """A target that any trial or job names."""

    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(Key, primary_key=True)
    kind: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)  # Target.to_json


IS_UNFINISHED = text("state IN ('queued', 'running', 'paused')")
"""`store.UNFINISHED` in SQL."""


class JobRow(Row):
    """A job; its tasks are in `job_tasks`."""

    __tablename__ = "jobs"
    __table_args__ = (
        # One unfinished job a spec: of two commands that start it at once, one makes it and the other joins it.
        Index(
            "ix_jobs_unfinished", "spec_key", unique=True, sqlite_where=IS_UNFINISHED, postgresql_where=IS_UNFINISHED
        ),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    spec_key: Mapped[str] = mapped_column(Key)
    model_sha256: Mapped[str] = mapped_column(Key)
    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"))
    label: Mapped[str] = mapped_column(Text)
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class JobTaskRow(Row):
    """One task of a job."""

    __tablename__ = "job_tasks"

    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"))
    occurrences: Mapped[int] = mapped_column(Integer)


LAST = 1
"""Place of a column after those of the classes above its own, which otherwise come behind."""


class Measured:
    """What a trial and a confirmation have in common; the columns from `status` to `provenance` are the Measurement."""

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"))
    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"))
    schedule_key: Mapped[str] = mapped_column(Key)
    schedule: Mapped[dict[str, Any]] = mapped_column(JSON)  # Schedule.to_json
    sketch: Mapped[str] = mapped_column(Text)
    sketch_version: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(32))
    median_s: Mapped[float | None] = mapped_column(Double)
    low_s: Mapped[float | None] = mapped_column(Double)
    high_s: Mapped[float | None] = mapped_column(Double)
    samples_s: Mapped[list[float]] = mapped_column(JSON)
    max_rel_err: Mapped[float | None] = mapped_column(Double)  # may be infinite
    error: Mapped[str] = mapped_column(Text)
    build_s: Mapped[float] = mapped_column(Double)
    object_sha256: Mapped[str] = mapped_column(Text)
    provenance: Mapped[dict[str, str]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(Instant)


class TrialRow(Measured, Row):
    """A trial."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("task_key", "target_key", "schedule_key"),
        UniqueConstraint("job_id", "ordinal"),
        Index(None, "task_key", "target_key", "status", "median_s"),  # lookup of the best
    )

    job_id: Mapped[int | None] = mapped_column(Id, ForeignKey("jobs.id"), sort_order=LAST)
    ordinal: Mapped[int | None] = mapped_column(Integer, sort_order=LAST)  # within the job


class ConfirmationRow(Measured, Row):
    """The schedule chosen for a task when its best trials were compared side by side; the newest one counts."""

    __tablename__ = "confirmations"
    __table_args__ = (Index(None, "task_key", "target_key", "last_trial_id"),)

    last_trial_id: Mapped[int] = mapped_column(Id, sort_order=LAST)  # the task's newest trial then; 0 if it had none

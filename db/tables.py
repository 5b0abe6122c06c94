"""The tables, without the log's (`logs.tables`). Rows stay inside `db`: `translate` converts them from and to objects.

Types of columns are in `columns`. JSON is of type `json`, not `jsonb`: the order of a schedule's knobs matters.
Names of states and statuses are plain text, so that a new one needs no migration.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .access import is_in_force
from .columns import Id, Instant, Json, Key, ReadType

LONG_AGO = "1970-01-01 00:00:00.000000"
"""The moment of rows of older versions, which stored none."""


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

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for column in cls.__table__.columns:
            if isinstance(column.type, ReadType):
                column.type.place = cls.__tablename__, column.name


class TaskRow(Row):
    """A task of any trial or job."""

    __tablename__ = "tasks"

    key: Mapped[str] = mapped_column(Key, primary_key=True)
    op: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(Json)  # Task.to_json
    family: Mapped[str] = mapped_column(Key, index=True)  # that of tasks which differ in numbers only, see `family`
    shape: Mapped[str] = mapped_column(Text, server_default=text("''"))  # Task.shape; empty: stored by an older version


class TargetRow(Row):
    """A target of any trial or job."""

    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(Key, primary_key=True)
    kind: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(Json)  # Target.to_json


IS_UNFINISHED = text("state IN ('queued', 'running', 'paused')")
"""`jobs.UNFINISHED` in SQL."""

IS_FINISHED = text("state NOT IN ('queued', 'running', 'paused')")
"""Condition on a job: none that meets it changes."""


class JobRow(Row):
    """A job; its tasks are in `job_tasks`."""

    __tablename__ = "jobs"
    __table_args__ = (
        # One unfinished job a spec: of two commands that start it at once, one makes it and the other joins it.
        Index(
            "ix_jobs_unfinished", "spec_key", unique=True, sqlite_where=IS_UNFINISHED, postgresql_where=IS_UNFINISHED
        ),
        Index("ix_jobs_queue", "state", "priority", "id"),
        Index(None, "owner", "id"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    spec_key: Mapped[str] = mapped_column(Key)
    model_sha256: Mapped[str] = mapped_column(Key)  # empty: a job of tasks without a model
    target_key: Mapped[str | None] = mapped_column(Key, ForeignKey("targets.key"))  # none: that of the first device
    label: Mapped[str] = mapped_column(Text)
    settings: Mapped[dict[str, Any]] = mapped_column(Json)
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)
    result: Mapped[dict[str, Any] | None] = mapped_column(Json(none_as_null=True))
    budget: Mapped[dict[str, Any]] = mapped_column(Json)  # SearchBudget.to_json
    attached: Mapped[bool] = mapped_column(Boolean, default=False)
    priority: Mapped[int] = mapped_column(Integer, default=0)
    spent_s: Mapped[float] = mapped_column(Double, default=0.0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    epoch: Mapped[int] = mapped_column(Integer, default=0)  # of the newest lease; 0 before the first
    holder: Mapped[str] = mapped_column(Text, default="")
    leased_until: Mapped[datetime | None] = mapped_column(Instant)  # none: nobody has it leased
    not_before: Mapped[datetime | None] = mapped_column(Instant)  # when it may be leased again after a loss
    wish: Mapped[str | None] = mapped_column(String(16))
    progress: Mapped[dict[str, Any] | None] = mapped_column(Json(none_as_null=True))
    error: Mapped[str] = mapped_column(Text, default="")
    owner: Mapped[str] = mapped_column(String(32), default="")
    written: Mapped[str] = mapped_column(String(16), default="")  # id of the newest write under the lease, see `leases`
    events: Mapped[int] = mapped_column(Integer, default=0)  # how many there were: the number of the newest
    notes: Mapped[str] = mapped_column(Text, default="", server_default=text("''"))  # of people


class JobTagRow(Row):
    """A word that people mark a job with."""

    __tablename__ = "job_tags"
    __table_args__ = (Index(None, "tag", "job_id"),)

    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)


class JobTaskRow(Row):
    """One task of a job."""

    __tablename__ = "job_tasks"

    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"), index=True)
    occurrences: Mapped[int] = mapped_column(Integer)


class EventRow(Row):
    """Something that happened to a job."""

    __tablename__ = "job_events"

    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(Instant)


class ClaimRow(Row):
    """A task that a job has claimed, as long as its lease of that epoch is in force."""

    __tablename__ = "claims"

    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"), primary_key=True)
    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"), primary_key=True)
    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"), index=True)
    epoch: Mapped[int] = mapped_column(Integer)


class SubmissionRow(Row):
    """An idempotency key and its job."""

    __tablename__ = "submissions"

    owner: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(Key)
    job_id: Mapped[int] = mapped_column(Id, ForeignKey("jobs.id"))
    created_at: Mapped[datetime] = mapped_column(Instant)


class UploadRow(Row):
    """An uploaded model; its bytes are in `upload_pieces`."""

    __tablename__ = "uploads"

    sha256: Mapped[str] = mapped_column(Key, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    label: Mapped[str] = mapped_column(Text)
    with_weights: Mapped[bool] = mapped_column(Boolean)
    description: Mapped[dict[str, Any]] = mapped_column(Json)
    owner: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(Instant, index=True)
    used_at: Mapped[datetime] = mapped_column(Instant, server_default=LONG_AGO)  # when it was sent or submitted last


class UploadPieceRow(Row):
    """A piece of a model's bytes."""

    __tablename__ = "upload_pieces"

    sha256: Mapped[str] = mapped_column(Key, ForeignKey("uploads.sha256"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class KeyRow(Row):
    """An API key, without its secret."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    secret_sha256: Mapped[str] = mapped_column(Key)
    scopes: Mapped[list[str]] = mapped_column(Json)
    is_passing: Mapped[bool] = mapped_column(Boolean)  # a browser session or a link: forgotten when it is over
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    namespaces: Mapped[list[str] | None] = mapped_column(Json(none_as_null=True))  # of the log; none: all of them

    def is_valid(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return is_in_force(self.expires_at, self.revoked_at, now)


class TunerRow(Row):
    """A process that takes jobs."""

    __tablename__ = "tuners"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    version: Mapped[str] = mapped_column(Text)
    pool: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime] = mapped_column(Instant)
    seen_at: Mapped[datetime] = mapped_column(Instant)
    devices: Mapped[list[Any]] = mapped_column(Json)
    job_id: Mapped[int | None] = mapped_column(Id, ForeignKey("jobs.id"))
    draining: Mapped[bool] = mapped_column(Boolean)
    owner: Mapped[str] = mapped_column(String(32), default="", server_default=text("''"))  # id of its API key, if any
    wish: Mapped[str | None] = mapped_column(String(16))  # what it is to do


class DeviceOrderRow(Row):
    """What people want of a device, whichever processes have it. Names are of any length, so they are no key."""

    __tablename__ = "device_orders"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    until: Mapped[datetime | None] = mapped_column(Instant)  # of a quarantine; none: one is to end
    reason: Mapped[str] = mapped_column(Text)
    given_at: Mapped[datetime] = mapped_column(Instant)


class WebhookRow(Row):
    """An address that is told of jobs."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(Text)  # what deliveries are signed with
    events: Mapped[list[str]] = mapped_column(Json)  # kinds of events
    owner: Mapped[str] = mapped_column(String(32), index=True)
    created_at: Mapped[datetime] = mapped_column(Instant)


class DeliveryRow(Row):
    """An event that is to be told to a webhook, or was. It is stored in the transaction of the event."""

    __tablename__ = "deliveries"
    __table_args__ = (Index(None, "webhook_id", "id"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(String(32), ForeignKey("webhooks.id"))
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, Any]] = mapped_column(Json)  # its content
    created_at: Mapped[datetime] = mapped_column(Instant)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    due_at: Mapped[datetime | None] = mapped_column(Instant, index=True)  # of the next attempt; none: it is over
    status: Mapped[int | None] = mapped_column(Integer)  # that the last attempt was answered with
    error: Mapped[str] = mapped_column(Text, default="")  # of the last attempt


SORT_LAST, SORT_ADDED = 1, 2
"""Sort orders of columns behind those of the classes that inherit them: migrations append columns."""


class MeasurementColumns:
    """The columns of trials, repeats and confirmations. `status` to `provenance`, and the later ones, are of the
    measurement.
    """

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"))
    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"))
    schedule_key: Mapped[str] = mapped_column(Key)
    schedule: Mapped[dict[str, Any]] = mapped_column(Json)  # Schedule.to_json
    sketch: Mapped[str] = mapped_column(Text)
    sketch_version: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(32))
    median_s: Mapped[float | None] = mapped_column(Double)
    low_s: Mapped[float | None] = mapped_column(Double)
    high_s: Mapped[float | None] = mapped_column(Double)
    samples_s: Mapped[list[float]] = mapped_column(Json)
    max_rel_err: Mapped[float | None] = mapped_column(Double)  # may be infinite
    error: Mapped[str] = mapped_column(Text)
    build_s: Mapped[float] = mapped_column(Double)
    object_sha256: Mapped[str] = mapped_column(Text)
    provenance: Mapped[dict[str, str]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(Instant)
    incumbent_s: Mapped[float | None] = mapped_column(Double, sort_order=SORT_ADDED)
    warm_s: Mapped[float | None] = mapped_column(Double, sort_order=SORT_ADDED)
    is_imported: Mapped[bool] = mapped_column(Boolean, server_default=false(), sort_order=SORT_ADDED)  # not timed here
    # Of one that was taken back, whose status is "voided": when, why, and how it had ended.
    voided_at: Mapped[datetime | None] = mapped_column(Instant, sort_order=SORT_ADDED)
    void_reason: Mapped[str] = mapped_column(Text, server_default=text("''"), sort_order=SORT_ADDED)
    measured_status: Mapped[str | None] = mapped_column(String(32), sort_order=SORT_ADDED)

    @property
    def samples(self) -> int:
        """The number of its samples."""
        return len(self.samples_s)

    @classmethod
    def of(cls, task_key: Any, target_key: Any, schedule_key: Any = None) -> list[ColumnElement[bool]]:
        """Conditions on the rows of a task on a target, or of one schedule."""
        of_task = [cls.task_key == task_key, cls.target_key == target_key]
        return of_task if schedule_key is None else [*of_task, cls.schedule_key == schedule_key]


class TrialRow(MeasurementColumns, Row):
    """A trial."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("task_key", "target_key", "schedule_key"),
        UniqueConstraint("job_id", "ordinal"),
        # The best of all, and pages in order of time taken: also those of one job, which is picked out in the index.
        Index(None, "task_key", "target_key", "status", "median_s", "id", "job_id"),
        # The best since a confirmation, and pages in order of creation.
        Index(None, "task_key", "target_key", "status", "created_at"),
        # What a job did: how many trials ended each way, and its pages in order of creation.
        Index(None, "job_id", "task_key", "status", "created_at"),
    )

    job_id: Mapped[int | None] = mapped_column(Id, ForeignKey("jobs.id"), sort_order=SORT_LAST)
    ordinal: Mapped[int | None] = mapped_column(Integer, sort_order=SORT_LAST)  # within the job


class RepeatRow(MeasurementColumns, Row):
    """An imported trial of a schedule that has a trial here too."""

    __tablename__ = "repeats"
    __table_args__ = (
        UniqueConstraint("task_key", "target_key", "schedule_key", "created_at"),
        Index(None, "task_key", "target_key", "status", "created_at"),
    )


class ConfirmationRow(MeasurementColumns, Row):
    """The schedule chosen for a task when its best trials were compared side by side; the newest one counts."""

    __tablename__ = "confirmations"
    __table_args__ = (
        UniqueConstraint("task_key", "target_key", "schedule_key", "created_at"),
        Index(None, "task_key", "target_key", "created_at"),
    )


class VoidRow(Row):
    """A schedule of a task on a target was taken back here, or that was lifted; the newest row of a schedule counts."""

    __tablename__ = "voids"
    __table_args__ = (Index(None, "task_key", "target_key", "schedule_key", "id"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"))
    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"))
    schedule_key: Mapped[str] = mapped_column(Key)
    reason: Mapped[str] = mapped_column(Text)
    is_lifted: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime] = mapped_column(Instant)


class BestRow(Row):
    """The best of a task on a target, which follows from the trials and confirmations (`choice`)."""

    __tablename__ = "bests"
    __table_args__ = (Index(None, "created_at", "target_key", "task_key"),)  # search, the newest first

    target_key: Mapped[str] = mapped_column(Key, ForeignKey("targets.key"), primary_key=True)
    task_key: Mapped[str] = mapped_column(Key, ForeignKey("tasks.key"), primary_key=True)
    schedule: Mapped[dict[str, Any]] = mapped_column(Json)  # Schedule.to_json
    sketch: Mapped[str] = mapped_column(Text)
    sketch_version: Mapped[int] = mapped_column(Integer)
    median_s: Mapped[float] = mapped_column(Double)
    low_s: Mapped[float | None] = mapped_column(Double)
    high_s: Mapped[float | None] = mapped_column(Double)
    provenance: Mapped[dict[str, str]] = mapped_column(Json)
    is_confirmed: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime] = mapped_column(Instant, server_default=LONG_AGO)  # of the trial or confirmation
    is_imported: Mapped[bool] = mapped_column(Boolean, server_default=false())
    samples: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # their number; 0 also: not known


class CostModelRow(Row):
    """A snapshot of a cost model (`snapshots`). Its metrics stay when its content is dropped."""

    __tablename__ = "cost_models"
    __table_args__ = (UniqueConstraint("target_kind", "sha256"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    target_kind: Mapped[str] = mapped_column(Text)
    features_version: Mapped[str] = mapped_column(Text)
    made_at: Mapped[datetime] = mapped_column(Instant)
    sha256: Mapped[str] = mapped_column(Key)  # of the content
    size_bytes: Mapped[int] = mapped_column(Integer)  # likewise
    parent_sha256: Mapped[str | None] = mapped_column(Key)  # it may be of a model that is in no database
    trials: Mapped[int] = mapped_column(Integer)
    newest_trial_id: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any]] = mapped_column(Json)
    job_id: Mapped[int | None] = mapped_column(Id, ForeignKey("jobs.id"))
    content: Mapped[bytes | None] = mapped_column(LargeBinary)  # last: SQLite reads what is before it without it

"""What the service needs: leases, events, claims, uploads, API keys, tuners, families of tasks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = sa.String(64)
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _add_families()
    _add_leases()
    _create_events()
    _create_uploads()
    _create_access()


def _add_families() -> None:
    op.add_column("tasks", sa.Column("family", KEY, nullable=True))
    tasks = sa.table("tasks", sa.column("key", KEY), sa.column("data", sa.JSON()), sa.column("family", KEY))
    connection = op.get_bind()
    for key, data in connection.execute(sa.select(tasks.c.key, tasks.c.data)).all():
        connection.execute(sa.update(tasks).where(tasks.c.key == key).values(family=_family(data)))
    with op.batch_alter_table("tasks") as table:
        table.alter_column("family", existing_type=KEY, nullable=False)
    op.create_index("ix_tasks_family", "tasks", ["family"])


def _family(data: Any) -> str:
    """SHA-256 over the canonical JSON without the label, every number replaced by 0."""
    nameless = {name: _numbers_erased(value) for name, value in data.items() if name != "op"}
    text = json.dumps(nameless, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers_erased(data: Any) -> Any:
    match data:
        case bool() | str() | None:
            return data
        case int() | float():
            return 0
        case list():
            return [_numbers_erased(item) for item in data]
        case _:
            return {name: _numbers_erased(item) for name, item in data.items()}


def _add_leases() -> None:
    # What is there was made by commands, which take their jobs up themselves.
    columns: list[sa.Column[Any]] = [
        sa.Column("budget", sa.JSON(), nullable=False, server_default='{"trials": 0, "seconds": null}'),
        sa.Column("attached", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("spent_s", sa.Double(), nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("epoch", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("holder", sa.Text(), nullable=False, server_default=""),
        sa.Column("leased_until", INSTANT, nullable=True),
        sa.Column("not_before", INSTANT, nullable=True),
        sa.Column("wish", sa.String(16), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False, server_default=""),
        sa.Column("owner", sa.String(32), nullable=False, server_default=""),
        sa.Column("written", sa.String(16), nullable=False, server_default=""),
        sa.Column("events", sa.Integer(), nullable=False, server_default="0"),
    ]
    with op.batch_alter_table("jobs") as table:
        for column in columns:
            table.add_column(column)
    with op.batch_alter_table("jobs") as table:  # from now on the program says what a new row holds
        for column in columns:
            if not column.nullable:
                table.alter_column(column.name, server_default=None)
    op.create_index("ix_jobs_queue", "jobs", ["state", "priority", "id"])


def _create_events() -> None:
    op.create_table(
        "job_events",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", name="pk_job_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_events_job_id_jobs"),
    )
    op.create_table(
        "claims",
        sa.Column("task_key", KEY, nullable=False),
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("task_key", "target_key", name="pk_claims"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_claims_task_key_tasks"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_claims_target_key_targets"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_claims_job_id_jobs"),
    )
    op.create_index("ix_claims_job_id", "claims", ["job_id"])
    op.create_table(
        "submissions",
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("fingerprint", KEY, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name="pk_submissions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_submissions_job_id_jobs"),
    )


def _create_uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("sha256", KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("with_weights", sa.Boolean(), nullable=False),
        sa.Column("description", sa.JSON(), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_uploads"),
    )
    op.create_index("ix_uploads_created_at", "uploads", ["created_at"])
    op.create_table(
        "upload_pieces",
        sa.Column("sha256", KEY, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "position", name="pk_upload_pieces"),
        sa.ForeignKeyConstraint(["sha256"], ["uploads.sha256"], name="fk_upload_pieces_sha256_uploads"),
    )


def _create_access() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_sha256", KEY, nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("is_passing", sa.Boolean(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.Column("last_used_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_table(
        "tuners",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("pool", sa.String(16), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("seen_at", INSTANT, nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("job_id", ID, nullable=True),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuners"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_tuners_job_id_jobs"),
    )

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
    _let_records_travel()
    _add_repeats()
    _create_bests()


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


def _let_records_travel() -> None:
    # What a confirmation supersedes is told by moments now: the order of storing means nothing elsewhere.
    op.drop_index("ix_confirmations_task_key_target_key_last_trial_id", "confirmations")
    with op.batch_alter_table("confirmations") as table:
        table.drop_column("last_trial_id")
        table.create_unique_constraint(
            "uq_confirmations_task_key_target_key_schedule_key_created_at",
            ["task_key", "target_key", "schedule_key", "created_at"],
        )
    op.create_index(
        "ix_confirmations_task_key_target_key_created_at", "confirmations", ["task_key", "target_key", "created_at"]
    )
    op.create_index(
        "ix_trials_task_key_target_key_status_created_at", "trials", ["task_key", "target_key", "status", "created_at"]
    )


def _add_repeats() -> None:
    op.create_table(
        "repeats",
        sa.Column("id", ID, nullable=False),
        sa.Column("task_key", KEY, nullable=False),
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("schedule_key", KEY, nullable=False),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("sketch", sa.Text(), nullable=False),
        sa.Column("sketch_version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=True),
        sa.Column("low_s", sa.Double(), nullable=True),
        sa.Column("high_s", sa.Double(), nullable=True),
        sa.Column("samples_s", sa.JSON(), nullable=False),
        sa.Column("max_rel_err", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("build_s", sa.Double(), nullable=False),
        sa.Column("object_sha256", sa.Text(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_repeats"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_repeats_task_key_tasks"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_repeats_target_key_targets"),
        sa.UniqueConstraint(
            "task_key",
            "target_key",
            "schedule_key",
            "created_at",
            name="uq_repeats_task_key_target_key_schedule_key_created_at",
        ),
    )
    op.create_index(
        "ix_repeats_task_key_target_key_status_created_at",
        "repeats",
        ["task_key", "target_key", "status", "created_at"],
    )


def _create_bests() -> None:
    op.create_table(
        "bests",
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("task_key", KEY, nullable=False),
        *_chosen(),
        sa.Column("is_confirmed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("target_key", "task_key", name="pk_bests"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_bests_target_key_targets"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_bests_task_key_tasks"),
    )
    _fill_bests()


def _chosen() -> list[sa.Column[Any]]:
    return [
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("sketch", sa.Text(), nullable=False),
        sa.Column("sketch_version", sa.Integer(), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("low_s", sa.Double(), nullable=True),
        sa.Column("high_s", sa.Double(), nullable=True),
        sa.Column("provenance", sa.JSON(), nullable=False),
    ]


def _fill_bests() -> None:
    """The fastest of the newest confirmation and the good trials created after it."""
    names = ["target_key", "task_key", *(column.name for column in _chosen())]

    def measured(name: str) -> Any:
        keys: list[Any] = [sa.column(key) for key in ("id", "task_key", "target_key", "status")]
        return sa.table(name, *keys, sa.column("created_at", INSTANT), *_chosen())

    trials, confirmations = measured("trials"), measured("confirmations")
    bests = sa.table("bests", sa.column("target_key"), sa.column("task_key"), *_chosen(), sa.column("is_confirmed"))
    connection = op.get_bind()
    for task_key, target_key in connection.execute(sa.select(trials.c.task_key, trials.c.target_key).distinct()).all():

        def of(table: Any, task_key: str = task_key, target_key: str = target_key) -> Any:
            return sa.select(table).where(table.c.task_key == task_key, table.c.target_key == target_key)

        newest = connection.execute(of(confirmations).order_by(confirmations.c.created_at.desc()).limit(1)).first()
        good = of(trials).where(trials.c.status == "ok")
        if newest:
            good = good.where(trials.c.created_at > newest.created_at)
        best = connection.execute(good.order_by(trials.c.median_s, trials.c.created_at).limit(1)).first()
        is_confirmed = newest is not None and newest.status == "ok" and (not best or newest.median_s <= best.median_s)
        if chosen := newest if is_confirmed else best:
            values = {name: getattr(chosen, name) for name in names}
            connection.execute(sa.insert(bests).values(**values, is_confirmed=is_confirmed))

"""Tasks, targets, jobs, trials, confirmations."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = sa.String(64)


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("key", KEY, nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_tasks"),
    )
    op.create_table(
        "targets",
        sa.Column("key", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_targets"),
    )
    _create_jobs()
    _create_trials()
    _create_confirmations()


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("spec_key", KEY, nullable=False),
        sa.Column("model_sha256", KEY, nullable=False),
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_jobs_target_key_targets"),
    )
    unfinished = sa.text("state IN ('queued', 'running', 'paused')")
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["spec_key"],
        unique=True,
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_table(
        "job_tasks",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task_key", KEY, nullable=False),
        sa.Column("occurrences", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "position", name="pk_job_tasks"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_tasks_job_id_jobs"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_job_tasks_task_key_tasks"),
    )


def _create_trials() -> None:
    op.create_table(
        "trials",
        *_measured(),
        sa.Column("job_id", ID, nullable=True),
        sa.Column("ordinal", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_trials_task_key_tasks"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_trials_target_key_targets"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_trials_job_id_jobs"),
        sa.UniqueConstraint(
            "task_key", "target_key", "schedule_key", name="uq_trials_task_key_target_key_schedule_key"
        ),
        sa.UniqueConstraint("job_id", "ordinal", name="uq_trials_job_id_ordinal"),
    )
    op.create_index(
        "ix_trials_task_key_target_key_status_median_s", "trials", ["task_key", "target_key", "status", "median_s"]
    )


def _create_confirmations() -> None:
    op.create_table(
        "confirmations",
        *_measured(),
        sa.Column("last_trial_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_confirmations"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_confirmations_task_key_tasks"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_confirmations_target_key_targets"),
    )
    op.create_index(
        "ix_confirmations_task_key_target_key_last_trial_id",
        "confirmations",
        ["task_key", "target_key", "last_trial_id"],
    )


def _measured() -> list[sa.Column[Any]]:
    """The columns that trials and confirmations have in common."""
    return [
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
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    ]

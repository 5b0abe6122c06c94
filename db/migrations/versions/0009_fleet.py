"""Tags and notes of jobs, owners and wishes of tuners, webhooks, releases of the log, last uses of models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)
EMPTY = sa.text("''")
LONG_AGO = "1970-01-01 00:00:00.000000"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("notes", sa.Text(), server_default=EMPTY, nullable=False))
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])
    op.add_column("tuners", sa.Column("owner", sa.String(32), server_default=EMPTY, nullable=False))
    op.add_column("tuners", sa.Column("wish", sa.String(16), nullable=True))
    op.create_table(
        "job_tags",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "tag", name="pk_job_tags"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_tags_job_id_jobs"),
    )
    op.create_index("ix_job_tags_tag_job_id", "job_tags", ["tag", "job_id"])
    op.add_column("uploads", sa.Column("used_at", MOMENT, server_default=LONG_AGO, nullable=False))
    op.execute("UPDATE uploads SET used_at = created_at")
    _create_webhooks()
    _create_releases()


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_owner", "webhooks", ["owner"])
    op.create_table(
        "deliveries",
        sa.Column("id", ID, nullable=False),
        sa.Column("webhook_id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", MOMENT, nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name="fk_deliveries_webhook_id_webhooks"),
    )
    op.create_index("ix_deliveries_webhook_id_id", "deliveries", ["webhook_id", "id"])
    op.create_index("ix_deliveries_due_at", "deliveries", ["due_at"])


def _create_releases() -> None:
    op.add_column("log_namespaces", sa.Column("release_id", ID, nullable=True))
    op.create_table(
        "log_releases",
        sa.Column("id", ID, nullable=False),
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_releases"),
        sa.UniqueConstraint("namespace_id", "name", name="uq_log_releases_namespace_id_name"),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["log_namespaces.id"], name="fk_log_releases_namespace_id_log_namespaces"
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "log_release_entries",
        sa.Column("release_id", ID, nullable=False),
        sa.Column("entry_id", ID, nullable=False),
        sa.PrimaryKeyConstraint("release_id", "entry_id", name="pk_log_release_entries"),
        sa.ForeignKeyConstraint(
            ["release_id"], ["log_releases.id"], name="fk_log_release_entries_release_id_log_releases"
        ),
        sa.ForeignKeyConstraint(["entry_id"], ["log_entries.id"], name="fk_log_release_entries_entry_id_log_entries"),
    )
    op.create_index("ix_log_release_entries_entry_id", "log_release_entries", ["entry_id"])
    op.create_table(
        "log_promotions",
        sa.Column("id", ID, nullable=False),
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("release_id", ID, nullable=True),
        sa.Column("name", sa.String(64), nullable=True),
        sa.Column("left_name", sa.String(64), nullable=True),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_promotions"),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["log_namespaces.id"], name="fk_log_promotions_namespace_id_log_namespaces"
        ),
        sa.ForeignKeyConstraint(["release_id"], ["log_releases.id"], name="fk_log_promotions_release_id_log_releases"),
    )
    op.create_index("ix_log_promotions_namespace_id_id", "log_promotions", ["namespace_id", "id"])

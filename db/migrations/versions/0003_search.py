"""What searching needs: a schedule timed beside the fastest one, times with warm caches, snapshots of cost models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = sa.String(64)


def upgrade() -> None:
    for table in ("trials", "repeats", "confirmations"):
        # One after the other and not in batch mode, which would write large tables anew.
        for name in ("incumbent_s", "warm_s"):
            op.add_column(table, sa.Column(name, sa.Double(), nullable=True))
    op.create_table(
        "cost_models",
        sa.Column("id", ID, nullable=False),
        sa.Column("target_kind", sa.Text(), nullable=False),
        sa.Column("features_version", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sha256", KEY, nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("parent_sha256", KEY, nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("newest_trial_id", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("job_id", ID, nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_cost_models"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_cost_models_job_id_jobs"),
        sa.UniqueConstraint("target_kind", "sha256", name="uq_cost_models_target_kind_sha256"),
    )

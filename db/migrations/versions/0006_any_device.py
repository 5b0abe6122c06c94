"""Jobs that wait for any device, whose target is known once a tuner process has one for them; jobs found by a task."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as table:  # SQLite writes it anew: there are few jobs, however many trials
        table.alter_column("target_key", existing_type=sa.String(64), nullable=True)
    op.create_index("ix_job_tasks_task_key", "job_tasks", ["task_key"])

"""Of how many samples what is best is: the interval of few is not told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIMES = ("task_key", "target_key", "median_s", "created_at")


def upgrade() -> None:
    # With a default, as an older process that is still at work knows nothing of it. Not in batch mode, which would
    # write the table anew.
    op.add_column("bests", sa.Column("samples", sa.Integer(), nullable=False, server_default=sa.text("0")))
    bests = sa.table("bests", *map(sa.column, TIMES), sa.column("is_confirmed", sa.Boolean()), sa.column("samples"))

    def samples_in(name: str) -> sa.ScalarSelect[int]:
        """The number of samples of the row that is the best."""
        measured = sa.table(name, *map(sa.column, TIMES), sa.column("samples_s", sa.JSON()))
        is_it = (measured.c[column] == bests.c[column] for column in TIMES)
        query = sa.select(sa.func.min(sa.func.json_array_length(measured.c.samples_s))).where(*is_it)
        return query.correlate(bests).scalar_subquery()

    of_trial = sa.func.coalesce(samples_in("trials"), samples_in("repeats"), 0)
    found = sa.case((bests.c.is_confirmed, sa.func.coalesce(samples_in("confirmations"), 0)), else_=of_trial)
    op.execute(sa.update(bests).values(samples=found))

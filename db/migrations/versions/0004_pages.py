"""What pages need: trials of a job in order, shapes of tasks, and when what is best was created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEY = sa.String(64)
LONG_AGO = "1970-01-01 00:00:00.000000"
ROWS_AT_ONCE = 500


def upgrade() -> None:
    _sort_trials()
    _add_shapes()
    _add_moments()


def _sort_trials() -> None:
    op.create_index(
        "ix_trials_job_id_task_key_status_created_at", "trials", ["job_id", "task_key", "status", "created_at"]
    )
    op.create_index(
        "ix_trials_task_key_target_key_status_median_s_id_job_id",
        "trials",
        ["task_key", "target_key", "status", "median_s", "id", "job_id"],
    )
    op.drop_index("ix_trials_task_key_target_key_status_median_s", "trials")  # the begin of the one before


def _add_shapes() -> None:
    # With a default, as an older process that is still at work knows nothing of it. Not in batch mode, which would
    # write the table anew.
    op.add_column("tasks", sa.Column("shape", sa.Text(), nullable=False, server_default=sa.text("''")))
    tasks = sa.table("tasks", sa.column("key", KEY), sa.column("data", sa.JSON()), sa.column("shape", sa.Text()))
    fill = sa.update(tasks).where(tasks.c.key == sa.bindparam("of")).values(shape=sa.bindparam("text"))
    some = sa.select(tasks.c.key, tasks.c.data).order_by(tasks.c.key).limit(ROWS_AT_ONCE)
    connection = op.get_bind()
    after = ""
    while rows := connection.execute(some.where(tasks.c.key > after)).all():
        connection.execute(fill, [{"of": key, "text": _shape(data)} for key, data in rows])
        after = rows[-1].key


def _shape(data: Mapping[str, Any]) -> str:
    """The shapes of the inputs and the outputs, e.g. "4x8, 8x3 -> 4x3"."""

    def listed(tensors: list[Mapping[str, Any]]) -> str:
        return ", ".join("x".join(map(str, tensor["shape"])) or "scalar" for tensor in tensors) or "nothing"

    return f"{listed(data['inputs'])} -> {listed(data['outputs'])}"


def _add_moments() -> None:
    moment = sa.DateTime(timezone=True)
    op.add_column("bests", sa.Column("created_at", moment, nullable=False, server_default=LONG_AGO))

    def table(name: str, *more: str) -> sa.TableClause:
        names = ("task_key", "target_key", "median_s", "created_at", *more)
        return sa.table(name, *map(sa.column, names))

    bests, confirmations = table("bests"), table("confirmations", "status")
    is_confirmed = sa.column("is_confirmed", sa.Boolean())
    bests.append_column(is_confirmed)

    def of_best(measured: sa.TableClause) -> tuple[Any, ...]:
        return measured.c.task_key == bests.c.task_key, measured.c.target_key == bests.c.target_key

    newest = sa.select(sa.func.max(confirmations.c.created_at)).where(*of_best(confirmations)).correlate(bests)
    confirmed_at = newest.scalar_subquery()

    def first(name: str) -> Any:
        """When the first was created of those as fast as the best that no confirmation speaks for."""
        measured = table(name, "status")
        alike = measured.c.status == "ok", measured.c.median_s == bests.c.median_s
        query = sa.select(sa.func.min(measured.c.created_at)).where(*of_best(measured), *alike).correlate(bests)
        return query.where(sa.or_(confirmed_at.is_(None), measured.c.created_at > confirmed_at)).scalar_subquery()

    tried, repeated = first("trials"), first("repeats")
    earlier = sa.case((repeated < tried, repeated), else_=sa.func.coalesce(tried, repeated))
    found = sa.case((is_confirmed, confirmed_at), else_=earlier)
    op.execute(sa.update(bests).values(created_at=sa.func.coalesce(found, bests.c.created_at)))
    op.create_index("ix_bests_created_at_target_key_task_key", "bests", ["created_at", "target_key", "task_key"])

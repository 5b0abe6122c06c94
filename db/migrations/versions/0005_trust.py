"""What was timed here is told from what was imported, and records can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = sa.String(64)
MOMENT = sa.DateTime(timezone=True)
MEASURED = ("trials", "repeats", "confirmations")
COPIED: tuple[sa.Column[Any], ...] = (
    sa.Column("schedule", sa.JSON()),
    sa.Column("sketch", sa.Text()),
    sa.Column("sketch_version", sa.Integer()),
    sa.Column("median_s", sa.Double()),
    sa.Column("low_s", sa.Double()),
    sa.Column("high_s", sa.Double()),
    sa.Column("provenance", sa.JSON()),
    sa.Column("created_at", MOMENT),
)
"""What a best takes over from the row that it is."""


def upgrade() -> None:
    for table in (*MEASURED, "bests"):
        # Not in batch mode, which would write large tables anew.
        op.add_column(table, sa.Column("is_imported", sa.Boolean(), nullable=False, server_default=sa.false()))
    for table in MEASURED:
        op.add_column(table, sa.Column("voided_at", MOMENT, nullable=True))
        op.add_column(table, sa.Column("void_reason", sa.Text(), nullable=False, server_default=sa.text("''")))
        op.add_column(table, sa.Column("measured_status", sa.String(32), nullable=True))
    _create_voids()
    _tell_imported()
    _choose_anew()


def _create_voids() -> None:
    op.create_table(
        "voids",
        sa.Column("id", ID, nullable=False),
        sa.Column("task_key", KEY, nullable=False),
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("schedule_key", KEY, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("is_lifted", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_voids"),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.key"], name="fk_voids_task_key_tasks"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_voids_target_key_targets"),
    )
    columns = ["task_key", "target_key", "schedule_key", "id"]
    op.create_index("ix_voids_task_key_target_key_schedule_key_id", "voids", columns)


def _table(name: str) -> sa.TableClause:
    keys = [sa.column(key, KEY) for key in ("task_key", "target_key", "schedule_key")]
    others: list[Any] = [sa.column("job_id"), sa.column("status"), sa.column("is_imported", sa.Boolean())]
    return sa.table(name, *keys, *others, *(sa.column(column.name, column.type) for column in COPIED))


def _tell_imported() -> None:
    """A trial of no job was imported, and all repeats; a confirmation, where no job here had the task on the target."""
    trials, repeats, confirmations = map(_table, MEASURED)
    op.execute(sa.update(repeats).values(is_imported=sa.true()))
    op.execute(sa.update(trials).where(trials.c.job_id.is_(None)).values(is_imported=sa.true()))
    jobs = sa.table("jobs", sa.column("id"), sa.column("target_key", KEY))
    job_tasks = sa.table("job_tasks", sa.column("job_id"), sa.column("task_key", KEY))
    tuned = sa.select(sa.literal(1)).where(
        jobs.c.id == job_tasks.c.job_id,
        job_tasks.c.task_key == confirmations.c.task_key,
        jobs.c.target_key == confirmations.c.target_key,
    )
    is_ours = tuned.correlate(confirmations).exists()
    op.execute(sa.update(confirmations).where(~is_ours).values(is_imported=sa.true()))


def _choose_anew() -> None:
    """What was imported is the best only where nothing was timed here."""
    bests = _table("bests")
    bests.append_column(sa.column("is_confirmed", sa.Boolean()))
    connection = op.get_bind()
    for task_key, target_key in _changed(connection):
        is_it = bests.c.task_key == task_key, bests.c.target_key == target_key
        chosen = _chosen(connection, task_key, target_key, False) or _chosen(connection, task_key, target_key, True)
        if chosen is None:
            connection.execute(sa.delete(bests).where(*is_it))
            continue
        row, is_confirmed = chosen
        values = {column.name: getattr(row, column.name) for column in COPIED}
        values |= {"is_confirmed": is_confirmed, "is_imported": row.is_imported}
        if not connection.execute(sa.update(bests).where(*is_it).values(**values)).rowcount:
            connection.execute(sa.insert(bests).values(task_key=task_key, target_key=target_key, **values))


def _changed(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """The tasks and targets of what was imported."""
    imported = [
        sa.select(table.c.task_key, table.c.target_key).where(table.c.is_imported) for table in map(_table, MEASURED)
    ]
    yield from ((row.task_key, row.target_key) for row in connection.execute(sa.union(*imported)).all())


def _chosen(
    connection: sa.Connection, task_key: str, target_key: str, is_imported: bool
) -> tuple[sa.Row[Any], bool] | None:
    """The fastest of the newest confirmation and the good trials created after it, and whether it is the former."""
    trials, repeats, confirmations = map(_table, MEASURED)

    def of(table: sa.TableClause) -> sa.Select[Any]:
        names = [table.c[column.name] for column in COPIED]
        query = sa.select(table.c.schedule_key, table.c.status, table.c.is_imported, *names)
        query = query.where(table.c.task_key == task_key, table.c.target_key == target_key)
        return query.where(table.c.is_imported == is_imported)

    newest_first = confirmations.c.created_at.desc(), confirmations.c.schedule_key.desc()
    newest = connection.execute(of(confirmations).order_by(*newest_first).limit(1)).first()
    found = [(newest, True)] if newest is not None and newest.status == "ok" else []
    failed = sa.select(trials.c.schedule_key).where(
        trials.c.task_key == task_key, trials.c.target_key == target_key, ~trials.c.is_imported, trials.c.status != "ok"
    )
    for table in (trials, repeats):
        good = of(table).where(table.c.status == "ok", table.c.schedule_key.not_in(failed))
        if newest is not None:
            good = good.where(table.c.created_at > newest.created_at)
        order = table.c.median_s, table.c.created_at, table.c.schedule_key
        fastest = connection.execute(good.order_by(*order).limit(1)).first()
        found += [(fastest, False)] if fastest is not None else []

    def rank(one: tuple[sa.Row[Any], bool]) -> tuple[Any, ...]:
        return one[0].median_s, not one[1], one[0].created_at, one[0].schedule_key

    return min(found, key=rank, default=None)

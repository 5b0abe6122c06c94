"""Bests: a table of what `choice` chooses, kept in the transactions that change it, so that lookups need not choose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status

from .choice import best_rows
from .database import KEYS_AT_ONCE, Database, batches
from .models import BestRow, ConfirmationRow, Measured

COPIED = (
    "target_key",
    "task_key",
    "schedule",
    "sketch",
    "sketch_version",
    "median_s",
    "low_s",
    "high_s",
    "provenance",
    "created_at",
    "is_imported",
)
"""What a best takes over from the row that it is. The first two are its key."""

IS_BEST = BestRow.target_key == bindparam("target"), BestRow.task_key == bindparam("task")

STANDING = select(
    # What was imported is nothing beside what is timed here.
    select(BestRow.median_s).where(*IS_BEST, BestRow.is_imported.is_(False)).scalar_subquery().label("best_s"),
    select(func.max(ConfirmationRow.created_at))
    .where(ConfirmationRow.target_key == bindparam("target"), ConfirmationRow.task_key == bindparam("task"))
    .scalar_subquery()
    .label("confirmed_at"),
    select(BestRow.is_imported).where(*IS_BEST).scalar_subquery().label("is_imported"),
)
"""The time of the best for a task that was timed here, when it was last confirmed, and whether the best is an imported
one; null where there is none."""

TURNS, LANES = 0x62657374, 256  # "best"
"""PostgreSQL's advisory locks: their space, and how many there are. A large import must not use up the lock table."""


def note(database: Database, session: Session, pairs: Iterable[tuple[str, str]]) -> None:
    """Something was stored of these pairs of target and task: choose anew. The last thing that a transaction does.

    Transactions that change the same pair take turns, so each chooses from what the one before it has stored.
    """
    pairs = set(pairs)
    take_turn(database, session.connection(), pairs)
    by_target: dict[str, list[str]] = {}
    for target_key, task_key in sorted(pairs):
        by_target.setdefault(target_key, []).append(task_key)
    for target_key, task_keys in by_target.items():
        for keys in batches(task_keys, KEYS_AT_ONCE):
            _choose(database, session, target_key, keys)


def note_trial(database: Database, connection: Connection, values: dict[str, Any], standing: Row[Any]) -> None:
    """`note` for one trial, as it was stored just now: only comparing it with what was best is much cheaper.

    `standing` is what `STANDING` said before, in the same transaction, which has taken its turn since.
    """
    target_key, task_key, is_ok = values["target_key"], values["task_key"], values["status"] == Status.OK.value
    if not is_ok and not standing.is_imported:  # failures move nothing but what was imported
        return
    if not database.is_sqlite:  # others may have stored something since; SQLite has one writer
        standing = connection.execute(STANDING, {"target": target_key, "task": task_key}).one()
    best_s, confirmed_at = standing.best_s, standing.confirmed_at
    is_superseded = confirmed_at is not None and confirmed_at >= values["created_at"]  # while it was being stored
    if not is_ok or is_superseded or best_s == values["median_s"]:  # it depends on more than the times
        with Session(connection) as session:
            _choose(database, session, target_key, [task_key])
    elif best_s is None or values["median_s"] < best_s:
        _put(database, connection, [{name: values[name] for name in COPIED} | {"is_confirmed": False}])


def _choose(database: Database, session: Session, target_key: str, task_keys: Sequence[str]) -> None:
    """Put there what is best of these tasks."""
    best = best_rows(session, task_keys, target_key)
    _put(database, session.connection(), [_values(best[key]) for key in task_keys if key in best])
    gone = [key for key in task_keys if key not in best]
    if gone:
        session.execute(delete(BestRow).where(BestRow.target_key == target_key, BestRow.task_key.in_(gone)))


def take_turn(database: Database, connection: Connection, pairs: Iterable[tuple[str, str]]) -> None:
    """Wait for others who change these pairs of target and task; SQLite has one writer anyway.

    Before anything of them is read that others may change, such as what was taken back. Lanes ascend, so nobody waits
    in a circle. To take the same turn again costs little.
    """
    if database.is_sqlite:
        return
    lanes = {_lane(target_key, task_key) for target_key, task_key in pairs}
    for lane in sorted(lanes):
        connection.execute(select(func.pg_advisory_xact_lock(TURNS, lane)))


def _lane(target_key: str, task_key: str) -> int:
    """Which of the locks a pair is under."""
    digest = hashlib.sha256(f"{target_key} {task_key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % LANES


def _values(row: Measured) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COPIED} | {"is_confirmed": isinstance(row, ConfirmationRow)}


def _put(database: Database, connection: Connection, values: list[dict[str, Any]]) -> None:
    if not values:
        return
    insert = database.insert(BestRow)
    fresh = {name: insert.excluded[name] for name in (*COPIED[2:], "is_confirmed")}
    connection.execute(insert.on_conflict_do_update(index_elements=COPIED[:2], set_=fresh), values)

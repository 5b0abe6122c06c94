"""Choice: the schedule to use for a task, and the table that stores it, so that lookups need not choose.

Measurements of this database count; imported ones count only for tasks without any.

Among either, moments decide, not the order of storing. The newest confirmation supersedes all that was created until
then; the fastest of it and of what was created later is used. What is taken back does not count.

Imported schedules that failed here are not used, nor points of sketches of other versions.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from math import isclose
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    Select,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from tunewright.search_space.measurement import Status
from tunewright.search_space.sketches import current

from .database import KEYS_AT_ONCE, Database, batches
from .tables import BestRow, ConfirmationRow, MeasurementColumns, RepeatRow, TaskRow, TrialRow

MAX_LEAP = timedelta(seconds=1)
"""Longest time by which a trial is dated after a confirmation from a clock that is ahead."""

SAME_TIME = 1e-9
"""Times that differ by this part of them at most are one: that is what other units make of it."""

BEST_COLUMNS = (
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
    "samples",
)
"""Columns of a best that are copied from the measurement. The first two are its key."""

IS_BEST = BestRow.target_key == bindparam("target"), BestRow.task_key == bindparam("task")

STANDING_BEST = select(
    # Imported bests do not count beside measurements of this database.
    select(BestRow.median_s).where(*IS_BEST, BestRow.is_imported.is_(False)).scalar_subquery().label("best_s"),
    select(func.max(ConfirmationRow.created_at))
    .where(*ConfirmationRow.of(bindparam("task"), bindparam("target")))
    .scalar_subquery()
    .label("confirmed_at"),
)
"""The time of the best of a task that was timed here, and its last confirmation; null where there is none."""

LOCK_SPACE, LOCK_COUNT = 0x62657374, 256  # "best"
"""PostgreSQL's advisory locks: their space, and their number. A large import must not fill the lock table."""

LATEST: dict[type[MeasurementColumns], Select[Any]] = {
    row: select(func.max(row.created_at)).where(*row.of(bindparam("task"), bindparam("target")))
    for row in (TrialRow, RepeatRow, ConfirmationRow)
}
"""The newest creation of a task's rows on a target."""


# The table of bests


def update_bests(database: Database, session: Session, pairs: Iterable[tuple[str, str]]) -> None:
    """Choose anew for pairs of target and task that something was stored of. The last step of a transaction.

    Transactions that change the same pair take turns, so each chooses from what the one before it has stored.
    """
    pairs = set(pairs)
    lock_pairs(database, session.connection(), pairs)
    by_target: dict[str, list[str]] = {}
    for target_key, task_key in sorted(pairs):
        by_target.setdefault(target_key, []).append(task_key)
    for target_key, task_keys in by_target.items():
        for keys in batches(task_keys, KEYS_AT_ONCE):
            _store_best(database, session, target_key, keys)


def update_best_by_trial(
    database: Database, connection: Connection, values: dict[str, Any], best_state: Row[Any]
) -> None:
    """`update_bests` for one trial that was stored just now: comparing it with the best is much cheaper.

    `best_state` is the row of `STANDING_BEST` before it, in the same transaction, which has locked the pair since.
    """
    target_key, task_key, is_ok = values["target_key"], values["task_key"], values["status"] == Status.OK.value
    if not is_ok and best_state.best_s is not None:  # failures change no best that was timed here
        return
    if not database.is_sqlite:  # other transactions may have stored something since
        best_state = connection.execute(STANDING_BEST, {"target": target_key, "task": task_key}).one()
    best_s, confirmed_at = best_state.best_s, best_state.confirmed_at
    is_superseded = confirmed_at is not None and confirmed_at >= values["created_at"]  # while it was being stored
    if not is_ok or is_superseded or best_s == values["median_s"]:  # more than the times decides
        with Session(connection) as session:
            _store_best(database, session, target_key, [task_key])
    elif best_s is None or values["median_s"] < best_s:
        copied = values | {"samples": len(values["samples_s"]), "is_confirmed": False}
        _upsert(database, connection, [{name: copied[name] for name in (*BEST_COLUMNS, "is_confirmed")}])


def _store_best(database: Database, session: Session, target_key: str, task_keys: Sequence[str]) -> None:
    """Store the bests of these tasks."""
    best = best_rows(session, task_keys, target_key)
    rows = [best[key] for key in task_keys if key in best]
    values = [
        {name: getattr(row, name) for name in BEST_COLUMNS} | {"is_confirmed": isinstance(row, ConfirmationRow)}
        for row in rows
    ]
    _upsert(database, session.connection(), values)
    missing = [key for key in task_keys if key not in best]
    if missing:
        session.execute(delete(BestRow).where(BestRow.target_key == target_key, BestRow.task_key.in_(missing)))


def lock_pairs(database: Database, connection: Connection, pairs: Iterable[tuple[str, str]]) -> None:
    """Wait for other transactions that change these pairs of target and task. Not needed on SQLite with its one writer.

    It comes before reading anything that those may change, such as voids. Locks are taken in ascending order, against
    deadlocks. Taking one again costs little.
    """
    if database.is_sqlite:
        return
    digests = (hashlib.sha256(f"{target_key} {task_key}".encode()).digest() for target_key, task_key in pairs)
    for number in sorted({int.from_bytes(digest[:8], "big") % LOCK_COUNT for digest in digests}):
        connection.execute(select(func.pg_advisory_xact_lock(LOCK_SPACE, number)))


def _upsert(database: Database, connection: Connection, values: list[dict[str, Any]]) -> None:
    if not values:
        return
    insert = database.insert(BestRow)
    new_values = {name: insert.excluded[name] for name in (*BEST_COLUMNS[2:], "is_confirmed")}
    connection.execute(insert.on_conflict_do_update(index_elements=BEST_COLUMNS[:2], set_=new_values), values)


# The choice


def best_rows(session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, MeasurementColumns]:
    """The row to use of each task that has one: see `Store.best`."""
    best: dict[str, MeasurementColumns] = {}
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        best |= _best_rows(session, keys, target_key, is_imported=False)
        if missing := [key for key in keys if key not in best]:
            best |= _best_rows(session, missing, target_key, is_imported=True)
    return best


def _best_rows(
    session: Session, keys: list[str], target_key: str, *, is_imported: bool
) -> dict[str, MeasurementColumns]:
    tables: tuple[type[MeasurementColumns], ...] = (
        (ConfirmationRow, TrialRow, RepeatRow) if is_imported else (ConfirmationRow, TrialRow)
    )
    ids = session.execute(_candidate_ids(tables[1:], is_imported), _values(keys, target_key)).all()
    working: dict[str, list[MeasurementColumns]] = {}
    for table, column in zip(tables, zip(*ids, strict=True), strict=False):
        for row in _rows(session, table, column):
            if row.status == Status.OK.value:
                working.setdefault(row.task_key, []).append(row)

    def rank(table: MeasurementColumns) -> tuple[Any, ...]:
        return table.median_s, not isinstance(table, ConfirmationRow), table.created_at, table.schedule_key

    return {key: min(rows, key=rank) for key, rows in working.items()}


def newest_confirmations(session: Session, task_keys: Iterable[str], target_key: str) -> Iterator[ConfirmationRow]:
    """The newest confirmation of each task, of any status: of those made here, else of the imported ones."""
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        ids = session.scalars(_newest_confirmation_ids(), _values(keys, target_key)).all()
        yield from _rows(session, ConfirmationRow, ids)


def newest_comparisons(
    session: Session, task_keys: Iterable[str], target_key: str
) -> Iterator[tuple[ConfirmationRow | None, ConfirmationRow]]:
    """Of each task the newest confirmations that were made here: the newest not taken back, if any, and that of all."""
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        pairs = session.execute(_newest_comparison_ids(), _values(keys, target_key)).all()
        rows = {row.id: row for row in _rows(session, ConfirmationRow, {number for pair in pairs for number in pair})}
        for numbers in pairs:
            found = [rows[number] for number in numbers if number is not None]
            if found:
                yield rows.get(numbers[0]), max(found, key=_moment)


def comparisons_by_time(session: Session, times_s: Mapping[str, float], target_key: str) -> Iterator[ConfirmationRow]:
    """Of each task the confirmation made here whose best took that time, the newest of several.

    Times that were told in another unit since are the same but for their last bits.
    """
    for keys in batches(times_s, KEYS_AT_ONCE):
        medians = session.execute(_comparison_times(), {"keys": keys, "target": target_key})
        ids = {
            row.task_key: row.id for row in medians if isclose(row.median_s, times_s[row.task_key], rel_tol=SAME_TIME)
        }
        yield from _rows(session, ConfirmationRow, ids.values())


def _moment(row: ConfirmationRow) -> tuple[datetime, str]:
    return row.created_at, row.schedule_key


def trial_created_at(now: datetime, confirmed_at: datetime | None) -> datetime:
    """The creation of a trial that is stored now: after the newest confirmation, whatever clock that came from.

    The distance is random, since another database with the confirmation may store a trial of the same schedule.
    """
    if confirmed_at is None or confirmed_at < now:
        return now
    return confirmed_at + timedelta(microseconds=random.randint(1, MAX_LEAP // timedelta(microseconds=1)))


def confirmation_created_at(session: Session, now: datetime, task_key: str, target_key: str) -> datetime:
    """The creation of a confirmation that is stored now: after all that is stored of the task."""
    tables: tuple[type[MeasurementColumns], ...] = (TrialRow, RepeatRow)
    latest = [_latest(session, row, task_key, target_key) for row in tables]
    confirmed_at = _latest(session, ConfirmationRow, task_key, target_key)
    return max([trial_created_at(now, confirmed_at), *(moment for moment in latest if moment)])


def _latest(session: Session, row: type[MeasurementColumns], task_key: str, target_key: str) -> datetime | None:
    # Without the mapper, which would flush changes first.
    moment: datetime | None = session.connection().scalar(LATEST[row], {"task": task_key, "target": target_key})
    return moment


def _rows(session: Session, row: type[MeasurementColumns], ids: Iterable[int | None]) -> list[Any]:
    row_ids = [number for number in ids if number is not None]
    return list(session.scalars(select(row).where(row.id.in_(row_ids)))) if row_ids else []


# Queries are made once: to make one takes SQLAlchemy many times as long as to run it.


def _values(keys: list[str], target_key: str) -> dict[str, Any]:
    """The values of the parameters of `_candidate_ids` and `_newest_confirmation_ids`."""
    return {"keys": keys, "target": target_key, "sketches": sorted(current())}


@cache
def _candidate_ids(tables: tuple[type[MeasurementColumns], ...], is_imported: bool) -> Select[Any]:
    """Of each task the ids of its newest confirmation, and of the fastest in each table."""
    columns = [_newest_confirmation(is_imported), *(_fastest(table, is_imported) for table in tables)]
    return select(*columns).where(TaskRow.key.in_(bindparam("keys", expanding=True)))


@cache
def _newest_confirmation_ids() -> Select[Any]:
    """Of each task the id of its newest confirmation here, else of the newest imported one."""
    ids = func.coalesce(*map(_newest_confirmation, (False, True)))
    return select(ids).where(TaskRow.key.in_(bindparam("keys", expanding=True)))


@cache
def _newest_comparison_ids() -> Select[Any]:
    """Of each task the ids of its newest confirmation here, and of the newest here that was taken back."""
    columns: list[Any] = [_newest_confirmation(False, is_voided=is_voided) for is_voided in (False, True)]
    return select(*columns).where(TaskRow.key.in_(bindparam("keys", expanding=True)))


@cache
def _comparison_times() -> Select[Any]:
    """The confirmations of tasks that were made here, with their times, the oldest first."""
    columns: list[Any] = [ConfirmationRow.id, ConfirmationRow.task_key, ConfirmationRow.median_s]
    return (
        select(*columns)
        .where(
            ConfirmationRow.task_key.in_(bindparam("keys", expanding=True)),
            ConfirmationRow.target_key == bindparam("target"),
            ConfirmationRow.is_imported.is_(False),
            ConfirmationRow.median_s.is_not(None),
        )
        .order_by(ConfirmationRow.created_at, ConfirmationRow.schedule_key)
    )


# Subqueries for a TaskRow of the outer query, each with an index:


def _usable(row: type[MeasurementColumns], is_imported: bool) -> list[ColumnElement[bool]]:
    """Conditions on the rows that may be used: of those timed here, or of those imported."""
    conditions = [*row.of(TaskRow.key, bindparam("target")), row.is_imported.is_(is_imported)]
    if not is_imported:
        return conditions
    is_current = tuple_(row.sketch, row.sketch_version).in_(bindparam("sketches", expanding=True))
    return [*conditions, is_current, ~_is_failure_here(row)]


def _is_failure_here(row: type[MeasurementColumns]) -> ColumnElement[bool]:
    """Whether a schedule failed when it was timed here."""
    conditions = []
    for table in (TrialRow, ConfirmationRow):
        own_row: Any = aliased(table)
        query = select(own_row.id).where(
            *own_row.of(row.task_key, row.target_key, row.schedule_key),
            own_row.is_imported.is_(False),
            own_row.status != Status.OK.value,
        )
        conditions.append(query.exists())
    return or_(*conditions)


def _newest_confirmation(is_imported: bool, *, is_voided: bool = False) -> ScalarSelect[int]:
    """The id of the newest confirmation, of those that were taken back or of the others."""
    is_taken_back = ConfirmationRow.status == Status.VOIDED.value
    conditions = *_usable(ConfirmationRow, is_imported), is_taken_back if is_voided else ~is_taken_back
    query = select(ConfirmationRow.id).where(*conditions)
    query = query.order_by(ConfirmationRow.created_at.desc(), ConfirmationRow.schedule_key.desc())
    return query.limit(1).correlate(TaskRow).scalar_subquery()


def _fastest(row: type[MeasurementColumns], is_imported: bool) -> Any:
    """The id of the fastest trial, or repeat, that no confirmation supersedes.

    Without a confirmation it is the first of its index. Else the few since then are read: along that index would come
    all that the confirmation superseded.
    """
    is_ok = *_usable(row, is_imported), row.status == Status.OK.value
    confirmations = *_usable(ConfirmationRow, is_imported), ConfirmationRow.status != Status.VOIDED.value
    newest_at = select(func.max(ConfirmationRow.created_at)).where(*confirmations)
    confirmed_at = newest_at.correlate(TaskRow).scalar_subquery()  # null where there is none
    least_s = select(func.min(row.median_s)).where(*is_ok).correlate(TaskRow).scalar_subquery()
    fastest = select(row.id).where(*is_ok, row.median_s == least_s).order_by(row.created_at, row.schedule_key).limit(1)
    later = select(row.id).where(*is_ok, row.created_at > confirmed_at)
    # The sum keeps planners from the index on median_s.
    fastest_later = later.order_by(row.median_s + 0.0, row.created_at, row.schedule_key).limit(1)
    return case(
        (confirmed_at.is_(None), fastest.correlate(TaskRow).scalar_subquery()),
        else_=fastest_later.correlate(TaskRow).scalar_subquery(),
    )

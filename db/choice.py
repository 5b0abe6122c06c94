"""Which schedule of a task to use: what was timed here speaks, and what was imported only where nothing was.

Of either kind moments decide, not the order of storing. The newest confirmation speaks for all that was created until
then; of it and what was created later the fastest is used. What is taken back is as if it had never been.

Of what was imported nothing is used that failed here, and no point of a sketch that this version has not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, bindparam, case, func, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from tunewright.search_space.measurement import Status
from tunewright.search_space.sketches import current

from .database import KEYS_AT_ONCE, batches
from .models import ConfirmationRow, Measured, RepeatRow, TaskRow, TrialRow

LONGEST_LEAP = timedelta(seconds=1)
"""How far the moment of a trial is set behind that of a confirmation from a clock that is ahead."""


LATEST: dict[type[Measured], Select[Any]] = {
    row: select(func.max(row.created_at)).where(
        row.task_key == bindparam("task"), row.target_key == bindparam("target")
    )
    for row in (TrialRow, RepeatRow, ConfirmationRow)
}
"""When the newest of a task on a target was created."""


def best_rows(session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, Measured]:
    """What to use, of each task that has anything: see `Store.best`."""
    best: dict[str, Measured] = {}
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        best |= _best_rows(session, keys, target_key, is_imported=False)
        if left := [key for key in keys if key not in best]:
            best |= _best_rows(session, left, target_key, is_imported=True)
    return best


def _best_rows(session: Session, keys: list[str], target_key: str, *, is_imported: bool) -> dict[str, Measured]:
    tables: tuple[type[Measured], ...] = (
        (ConfirmationRow, TrialRow, RepeatRow) if is_imported else (ConfirmationRow, TrialRow)
    )
    columns = [_newest(target_key, is_imported), *(_fastest(row, target_key, is_imported) for row in tables[1:])]
    ids = session.execute(select(*columns).where(TaskRow.key.in_(keys))).all()
    found: dict[str, list[Measured]] = {}
    for row, column in zip(tables, zip(*ids, strict=True), strict=False):
        for one in _rows(session, row, column):
            found.setdefault(one.task_key, []).append(one)
    works = {key: [row for row in rows if row.status == Status.OK.value] for key, rows in found.items()}
    return {key: min(rows, key=_rank) for key, rows in works.items() if rows}


def newest_confirmations(session: Session, task_keys: Iterable[str], target_key: str) -> Iterator[ConfirmationRow]:
    """The newest confirmation of each task that was compared here, however it ended; else the newest imported."""
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        ours, theirs = (_newest(target_key, is_imported) for is_imported in (False, True))
        ids = session.scalars(select(func.coalesce(ours, theirs)).where(TaskRow.key.in_(keys))).all()
        yield from _rows(session, ConfirmationRow, ids)


def trial_moment(now: datetime, confirmed_at: datetime | None) -> datetime:
    """When a trial that is stored now was created: after the newest confirmation, whatever clock that came from.

    How much after is drawn, since another database that has the confirmation may do the same for the same schedule.
    """
    if confirmed_at is None or confirmed_at < now:
        return now
    return confirmed_at + timedelta(microseconds=random.randint(1, LONGEST_LEAP // timedelta(microseconds=1)))


def confirmation_moment(session: Session, now: datetime, task_key: str, target_key: str) -> datetime:
    """When a confirmation that is stored now was created: after all that is stored of the task."""
    tables: tuple[type[Measured], ...] = (TrialRow, RepeatRow)
    stored = [_latest(session, row, task_key, target_key) for row in tables]
    confirmed_at = _latest(session, ConfirmationRow, task_key, target_key)
    return max([trial_moment(now, confirmed_at), *(moment for moment in stored if moment)])


def _latest(session: Session, row: type[Measured], task_key: str, target_key: str) -> datetime | None:
    # Past the mapper, which would also write first what was changed in the transaction.
    moment: datetime | None = session.connection().scalar(LATEST[row], {"task": task_key, "target": target_key})
    return moment


def _rank(row: Measured) -> tuple[Any, ...]:
    return row.median_s, not isinstance(row, ConfirmationRow), row.created_at, row.schedule_key


def _rows(session: Session, row: type[Measured], ids: Iterable[int | None]) -> list[Any]:
    known = [one for one in ids if one is not None]
    return list(session.scalars(select(row).where(row.id.in_(known)))) if known else []


# Of a TaskRow of the query around it, each by one of the indexes:


def _among(row: type[Measured], target_key: str, is_imported: bool) -> list[ColumnElement[bool]]:
    """What holds of the rows that may be used: of those timed here, or of those imported."""
    of_task = [row.task_key == TaskRow.key, row.target_key == target_key, row.is_imported.is_(is_imported)]
    if not is_imported:
        return of_task
    return [*of_task, tuple_(row.sketch, row.sketch_version).in_(sorted(current())), ~_failed_here(row)]


def _failed_here(row: type[Measured]) -> ColumnElement[bool]:
    """Whether a schedule failed when it was timed here."""
    failed = []
    for table in (TrialRow, ConfirmationRow):
        ours: Any = aliased(table)
        same = (
            ours.task_key == row.task_key,
            ours.target_key == row.target_key,
            ours.schedule_key == row.schedule_key,
        )
        query = select(ours.id).where(*same, ours.is_imported.is_(False), ours.status != Status.OK.value)
        failed.append(query.exists())
    return or_(*failed)


def _newest(target_key: str, is_imported: bool) -> ScalarSelect[int]:
    """The id of the newest confirmation."""
    among = *_among(ConfirmationRow, target_key, is_imported), ConfirmationRow.status != Status.VOIDED.value
    newest = select(ConfirmationRow.id).where(*among)
    newest = newest.order_by(ConfirmationRow.created_at.desc(), ConfirmationRow.schedule_key.desc())
    return newest.limit(1).correlate(TaskRow).scalar_subquery()


def _confirmed_at(target_key: str, is_imported: bool) -> ScalarSelect[datetime]:
    """When the newest confirmation was created; null where there is none."""
    among = *_among(ConfirmationRow, target_key, is_imported), ConfirmationRow.status != Status.VOIDED.value
    return select(func.max(ConfirmationRow.created_at)).where(*among).correlate(TaskRow).scalar_subquery()


def _fastest(row: type[Measured], target_key: str, is_imported: bool) -> Any:
    """The id of the fastest trial, or repeat, that no confirmation speaks for.

    Without one it is at the begin of its index. Else the few since then are gone through: the walk along that index
    would come by all that the confirmation superseded.
    """
    is_ok = *_among(row, target_key, is_imported), row.status == Status.OK.value
    confirmed_at = _confirmed_at(target_key, is_imported)
    least_s = select(func.min(row.median_s)).where(*is_ok).correlate(TaskRow).scalar_subquery()
    first = select(row.id).where(*is_ok, row.median_s == least_s).order_by(row.created_at, row.schedule_key).limit(1)
    since = select(row.id).where(*is_ok, row.created_at > confirmed_at)
    # The sum keeps planners from the index on median_s.
    least = since.order_by(row.median_s + 0.0, row.created_at, row.schedule_key).limit(1)
    return case(
        (confirmed_at.is_(None), first.correlate(TaskRow).scalar_subquery()),
        else_=least.correlate(TaskRow).scalar_subquery(),
    )

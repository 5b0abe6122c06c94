"""Which schedule of a task to use: read from what is stored, by rules on which databases that share records agree.

Moments decide, not the order of storing, since records come from other databases too. The newest confirmation speaks
for all that was created until then; of it and what was created later the fastest is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ScalarSelect, Select, bindparam, case, func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status

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
    found: dict[str, list[Measured]] = {}
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        chosen = select(_newest(target_key), _fastest(TrialRow, target_key), _fastest(RepeatRow, target_key))
        ids = session.execute(chosen.where(TaskRow.key.in_(keys))).all()
        tables: tuple[type[Measured], ...] = (ConfirmationRow, TrialRow, RepeatRow)
        for row, column in zip(tables, zip(*ids, strict=True), strict=False):
            for one in _rows(session, row, column):
                found.setdefault(one.task_key, []).append(one)
    best: dict[str, Measured] = {}
    for key, rows in found.items():
        if works := [row for row in rows if row.status == Status.OK.value]:
            best[key] = min(works, key=_rank)
    return best


def newest_confirmations(session: Session, task_keys: Iterable[str], target_key: str) -> Iterator[ConfirmationRow]:
    """The newest confirmation of each task that has one, however it ended."""
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        ids = session.scalars(select(_newest(target_key)).where(TaskRow.key.in_(keys))).all()
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


def _newest(target_key: str) -> ScalarSelect[int]:
    """The id of the newest confirmation."""
    of_task = select(ConfirmationRow.id).where(
        ConfirmationRow.task_key == TaskRow.key, ConfirmationRow.target_key == target_key
    )
    newest = of_task.order_by(ConfirmationRow.created_at.desc(), ConfirmationRow.schedule_key.desc())
    return newest.limit(1).correlate(TaskRow).scalar_subquery()


def _confirmed_at(target_key: str) -> ScalarSelect[datetime]:
    """When the newest confirmation was created; null where there is none."""
    moments = select(func.max(ConfirmationRow.created_at)).where(
        ConfirmationRow.task_key == TaskRow.key, ConfirmationRow.target_key == target_key
    )
    return moments.correlate(TaskRow).scalar_subquery()


def _fastest(row: type[TrialRow | RepeatRow], target_key: str) -> Any:
    """The id of the fastest trial, or repeat, that no confirmation speaks for.

    Without one it is at the begin of its index. Else the few since then are gone through: the walk along that index
    would come by all that the confirmation superseded.
    """
    is_ok = row.task_key == TaskRow.key, row.target_key == target_key, row.status == Status.OK.value
    least_s = select(func.min(row.median_s)).where(*is_ok).correlate(TaskRow).scalar_subquery()
    first = select(row.id).where(*is_ok, row.median_s == least_s).order_by(row.created_at, row.schedule_key).limit(1)
    since = select(row.id).where(*is_ok, row.created_at > _confirmed_at(target_key))
    # The sum keeps planners from the index on median_s.
    least = since.order_by(row.median_s + 0.0, row.created_at, row.schedule_key).limit(1)
    return case(
        (_confirmed_at(target_key).is_(None), first.correlate(TaskRow).scalar_subquery()),
        else_=least.correlate(TaskRow).scalar_subquery(),
    )

"""SqlKnown: what lookups ask, on SQLite and PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    String,
    Text,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    select,
    tuple_,
    union,
)
from sqlalchemy.orm import InstrumentedAttribute

from tunewright.search_space.measurement import Status

from .choice import newest_confirmations
from .database import KEYS_AT_ONCE, Database, batches, column_of, patient
from .known import Best, Found, Gap, Known, Marks
from .models import (
    BestRow,
    ConfirmationRow,
    Instant,
    JobRow,
    JobTaskRow,
    Measured,
    RepeatRow,
    TaskRow,
    TrialRow,
    VoidRow,
)
from .sql_voids import voids_in_force
from .translate import clean

Value = TypeVar("Value")


class SqlKnown(Known):
    """See `Known`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @patient
    def best(self, task_keys: Iterable[str], target_keys: Collection[str]) -> dict[tuple[str, str], Best]:
        found: dict[tuple[str, str], Best] = {}
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                query = _BEST.where(BestRow.target_key.in_(sorted(set(target_keys))), BestRow.task_key.in_(keys))
                found |= {(row.task_key, row.target_key): Best(*row) for row in session.execute(query)}
        return found

    @patient
    def best_on(self, target_key: str, after: str = "", limit: int = 500) -> list[Best]:
        query = _BEST.where(BestRow.target_key == target_key, BestRow.task_key > after)
        with self.database.read() as session:
            return [Best(*row) for row in session.execute(query.order_by(BestRow.task_key).limit(limit))]

    def search(
        self,
        *,
        op: str | None = None,
        shape: str | None = None,
        target_key: str | None = None,
        since: datetime | None = None,
        is_oldest_first: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Found]:
        order = [column.asc() if is_oldest_first else column.desc() for column in PLACE]
        query = _FOUND.order_by(*order).limit(limit)
        for column, text in ((TaskRow.op, op), (TaskRow.shape, shape)):
            if text:
                query = query.where(column.icontains(clean(text), autoescape=True))
        if target_key is not None:
            # The text keeps planners from the index on the target, whose tasks would all have to be sorted.
            query = query.where(BestRow.target_key.concat("") == target_key)
        if since is not None:
            query = query.where(BestRow.created_at >= since)
        if after is not None:
            place, last = tuple_(*PLACE), tuple_(*_place(after))
            query = query.where(place > last if is_oldest_first else place < last)
        return self._found(query)

    @patient
    def _found(self, query: Select[*tuple[Any, ...]]) -> list[Found]:
        with self.database.read() as session:
            return [Found(Best(*row[:-2]), row.shape, row.created_at) for row in session.execute(query)]

    @patient
    def covered(self) -> dict[str, int]:
        query = select(BestRow.target_key, func.count()).group_by(BestRow.target_key)
        with self.database.read() as session:
            return dict(session.execute(query).all())

    @patient
    def coverage(self, jobs: int = 200, limit: int = 100) -> list[Gap]:
        newest = (
            select(JobRow.id, JobRow.target_key)
            .where(JobRow.target_key.is_not(None))
            .order_by(JobRow.id.desc())
            .limit(jobs)
            .subquery()
        )
        is_known = and_(BestRow.target_key == newest.c.target_key, BestRow.task_key == JobTaskRow.task_key)
        job_id = func.max(newest.c.id).label("job_id")
        lacking = (
            select(JobTaskRow.task_key, newest.c.target_key, job_id)
            .join(newest, newest.c.id == JobTaskRow.job_id)
            .outerjoin(BestRow, is_known)
            .where(BestRow.task_key.is_(None))
            .group_by(JobTaskRow.task_key, newest.c.target_key)
            .order_by(job_id.desc(), JobTaskRow.task_key)
            .limit(limit)
            .subquery()
        )
        query = select(lacking.c.task_key, lacking.c.target_key, TaskRow.op, TaskRow.shape, lacking.c.job_id).join(
            TaskRow, TaskRow.key == lacking.c.task_key
        )
        with self.database.read() as session:
            found = session.execute(query.order_by(lacking.c.job_id.desc(), lacking.c.task_key))
            return [Gap(*row) for row in found]

    @patient
    def fastest(
        self, task_keys: Iterable[str], target_key: str, sketches: Collection[tuple[str, int]], limit: int = 8
    ) -> dict[str, list[Best]]:
        found: dict[str, list[Best]] = {}
        current = tuple_(TrialRow.sketch, TrialRow.sketch_version).in_(sorted(set(sketches)))
        order = TrialRow.is_imported, TrialRow.median_s, TrialRow.id
        place = func.row_number().over(partition_by=TrialRow.task_key, order_by=order)
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                placed = (
                    select(TrialRow.id, place.label("place"))
                    .where(TrialRow.task_key.in_(keys), TrialRow.target_key == target_key, current)
                    .where(TrialRow.status == Status.OK.value)
                    .subquery()
                )
                chosen = select(placed.c.id).where(placed.c.place <= limit)
                for row in session.execute(_TRIAL.where(TrialRow.id.in_(chosen)).order_by(*order)):
                    found.setdefault(row.task_key, []).append(Best(*row))
        return found

    @patient
    def failures(self, task_keys: Iterable[str], target_key: str) -> dict[str, set[str]]:
        failed: dict[str, set[str]] = {}
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                query = select(TrialRow.task_key, TrialRow.schedule_key).where(
                    TrialRow.task_key.in_(keys),
                    TrialRow.target_key == target_key,
                    TrialRow.status != Status.OK.value,
                    TrialRow.is_imported.is_(False),  # anybody can say that a schedule fails
                )
                for task_key, schedule_key in session.execute(query):
                    failed.setdefault(task_key, set()).add(schedule_key)
                for row in newest_confirmations(session, keys, target_key):
                    if row.status != Status.OK.value and not row.is_imported:
                        failed.setdefault(row.task_key, set()).add(row.schedule_key)
                for task_key, schedule_key in voids_in_force(session, target_key, keys):
                    failed.setdefault(task_key, set()).add(schedule_key)
        return failed

    @patient
    def relatives(self, families: Iterable[str], target_keys: Collection[str], limit: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self.database.read() as session:
            for some in batches(dict.fromkeys(families), KEYS_AT_ONCE):
                known = (
                    select(TaskRow.family, TaskRow.key, func.min(IS_IMPORTED).label("is_imported"))
                    .join(BestRow, BestRow.task_key == TaskRow.key)
                    .where(TaskRow.family.in_(some), BestRow.target_key.in_(sorted(set(target_keys))))
                    .group_by(TaskRow.family, TaskRow.key)
                    .subquery()
                )
                order = known.c.is_imported, known.c.key
                place = func.row_number().over(partition_by=known.c.family, order_by=order).label("place")
                placed = select(known.c.family, known.c.key, place).subquery()
                query = select(placed.c.family, placed.c.key).where(placed.c.place <= limit)
                for family, key in session.execute(query.order_by(placed.c.family, placed.c.key)):
                    found.setdefault(family, []).append(key)
        return found

    def definitions(self, task_keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        return self._of_tasks(task_keys, TaskRow.data)

    def ops(self, task_keys: Iterable[str]) -> dict[str, str]:
        return self._of_tasks(task_keys, TaskRow.op)

    def shapes(self, task_keys: Iterable[str]) -> dict[str, str]:
        return self._of_tasks(task_keys, TaskRow.shape)

    @patient
    def _of_tasks(self, task_keys: Iterable[str], column: InstrumentedAttribute[Value]) -> dict[str, Value]:
        """Task key -> what is in a column, of those that are known."""
        with self.database.read() as session:
            return column_of(session, TaskRow, column, task_keys)

    @patient
    def marks(self) -> Marks:
        with self.database.read() as session:
            newest = session.execute(select(*(select(func.max(row.id)).scalar_subquery() for row in GROWING))).one()
            return Marks(*(number or 0 for number in newest))

    @patient
    def changed(self, since: Marks) -> set[tuple[str, str]]:
        newer = [
            select(row.task_key, row.target_key).where(row.id > mark) for row, mark in zip(GROWING, since, strict=True)
        ]
        with self.database.read() as session:
            return {(task_key, target_key) for task_key, target_key in session.execute(union(*newer))}


GROWING: tuple[type[Measured | VoidRow], ...] = (TrialRow, RepeatRow, ConfirmationRow, VoidRow)
"""The tables that `Marks` tells of, in its order."""

Flag = ColumnElement[bool] | InstrumentedAttribute[bool]


def _bests(row: type[BestRow | TrialRow], is_confirmed: Flag) -> Select[*tuple[Any, ...]]:
    """The columns of `Best`, in its order, of rows of a kind."""
    columns = (
        row.task_key,
        row.target_key,
        TaskRow.op,
        row.sketch,
        row.sketch_version,
        cast(row.schedule, Text),
        row.median_s,
        row.low_s,
        row.high_s,
        cast(row.provenance, Text),
        is_confirmed,
        row.is_imported,
    )
    return select(*columns).join(TaskRow, TaskRow.key == row.task_key)


_BEST, _TRIAL = _bests(BestRow, BestRow.is_confirmed), _bests(TrialRow, false())

IS_IMPORTED = case((BestRow.is_imported, 1), else_=0)

_FOUND = _BEST.add_columns(TaskRow.shape, BestRow.created_at)
"""The columns of `Found`."""

PLACE = BestRow.created_at, BestRow.target_key, BestRow.task_key
"""What a search sorts by."""

PLACE_TEXT = re.compile(r"(\S{19,26}\+00:00) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)
"""A `Found.place`."""


def _place(text: str) -> list[BindParameter[Any]]:
    """The values of `PLACE` in a `Found.place`. Raises ValueError where it is none."""
    parts = PLACE_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text[:80]!r} is no place among what a search finds")
    moment, target_key, task_key = parts.groups()
    return [
        literal(datetime.fromisoformat(moment), Instant()),
        literal(target_key, String()),
        literal(task_key, String()),
    ]

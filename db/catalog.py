"""Catalog: queries of lookups for many tasks at once, with a few statements, whatever the number of trials.

The best of a task on a target follows from trials and confirmations (`Store.best`). It is stored beside them, in the
transactions that change it, so that lookups read no trials.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import fields
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
    or_,
    select,
    tuple_,
    union,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from tunewright.codegen.fields import quote
from tunewright.search_space.measurement import Status

from .best import Best, Gap, Hit, Marks, TaskCounts
from .choice import newest_confirmations
from .columns import Instant
from .database import KEYS_AT_ONCE, DatabasePart, batches, column_of, read_session
from .tables import (
    BestRow,
    ConfirmationRow,
    JobRow,
    JobTaskRow,
    MeasurementColumns,
    RepeatRow,
    TaskRow,
    TrialRow,
    VoidRow,
)
from .translate import clean
from .voids import voids_in_force

Value = TypeVar("Value")


class Catalog(DatabasePart):
    """Stored results of tasks on targets. Every method may raise StoreError."""

    @read_session
    def best(
        self, session: Session, task_keys: Iterable[str], target_keys: Collection[str]
    ) -> dict[tuple[str, str], Best]:
        """(task key, target key) -> `Store.best`, where there is one."""
        bests: dict[tuple[str, str], Best] = {}
        for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
            query = _BEST.where(BestRow.target_key.in_(sorted(set(target_keys))), BestRow.task_key.in_(keys))
            bests |= {(row.task_key, row.target_key): Best(*row) for row in session.execute(query)}
        return bests

    @read_session
    def best_on(self, session: Session, target_key: str, after: str = "", limit: int = 500) -> list[Best]:
        """`Store.best` of the tasks on a target, by task key, from behind `after` on."""
        query = _BEST.where(BestRow.target_key == target_key, BestRow.task_key > after)
        return [Best(*row) for row in session.execute(query.order_by(BestRow.task_key).limit(limit))]

    @read_session
    def search(
        self,
        session: Session,
        *,
        op: str | None = None,
        shape: str | None = None,
        target_key: str | None = None,
        since: datetime | None = None,
        is_oldest_first: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Hit]:
        """`Store.best` of all tasks on all targets that meet all conditions, the newest first or last.

        `op` and `shape` are parts of these texts, in any case. It was created at `since` or later. Raises ValueError
        where `after` is no `Hit.place`.
        """
        order = [column.asc() if is_oldest_first else column.desc() for column in SEARCH_ORDER]
        query = _HIT.order_by(*order).limit(limit)
        for column, text in ((TaskRow.op, op), (TaskRow.shape, shape)):
            if text:
                query = query.where(column.icontains(clean(text), autoescape=True))
        if target_key is not None:
            # The concatenation keeps planners from the index on the target, after which all tasks must be sorted.
            query = query.where(BestRow.target_key.concat("") == target_key)
        if since is not None:
            query = query.where(BestRow.created_at >= since)
        if after is not None:
            position, last = tuple_(*SEARCH_ORDER), tuple_(*_cursor_values(after))
            query = query.where(position > last if is_oldest_first else position < last)
        return [Hit(Best(*row[:-2]), row.shape, row.created_at) for row in session.execute(query)]

    @read_session
    def task_counts(self, session: Session) -> dict[str, TaskCounts]:
        """Target key -> the numbers of tasks with a `Store.best` there, of targets that have any."""
        imported = func.sum(IS_IMPORTED)
        query = select(BestRow.target_key, func.count() - imported, imported).group_by(BestRow.target_key)
        return {target_key: TaskCounts(*counts) for target_key, *counts in session.execute(query)}

    @read_session
    def gaps(self, session: Session, jobs: int = 200, limit: int = 100) -> list[Gap]:
        """Tasks of the newest jobs without a `Store.best` that was timed here on the job's target, the newest first.

        At most `limit` of the tasks of at most so many jobs, each once for a target.
        """
        newest = (
            select(JobRow.id, JobRow.target_key)
            .where(JobRow.target_key.is_not(None))
            .order_by(JobRow.id.desc())
            .limit(jobs)
            .subquery()
        )
        has_best = and_(BestRow.target_key == newest.c.target_key, BestRow.task_key == JobTaskRow.task_key)
        job_id = func.max(newest.c.id).label("job_id")
        missing = (
            select(JobTaskRow.task_key, newest.c.target_key, job_id, func.max(IS_IMPORTED).label("imported"))
            .join(newest, newest.c.id == JobTaskRow.job_id)
            .outerjoin(BestRow, has_best)
            .where(or_(BestRow.task_key.is_(None), BestRow.is_imported))
            .group_by(JobTaskRow.task_key, newest.c.target_key)
            .order_by(job_id.desc(), JobTaskRow.task_key)
            .limit(limit)
            .subquery()
        )
        columns = missing.c.task_key, missing.c.target_key, TaskRow.op, TaskRow.shape, missing.c.job_id
        query = select(*columns, missing.c.imported == 1).join(TaskRow, TaskRow.key == missing.c.task_key)
        return [Gap(*row) for row in session.execute(query.order_by(missing.c.job_id.desc(), missing.c.task_key))]

    @read_session
    def fastest(
        self,
        session: Session,
        task_keys: Iterable[str],
        target_key: str,
        sketches: Collection[tuple[str, int]],
        limit: int = 8,
    ) -> dict[str, list[Best]]:
        """Task key -> its OK trials on a target by one of these (sketch, version), the fastest first.

        Those timed here come before imported ones.
        """
        fastest: dict[str, list[Best]] = {}
        current = tuple_(TrialRow.sketch, TrialRow.sketch_version).in_(sorted(set(sketches)))
        order = TrialRow.is_imported, TrialRow.median_s, TrialRow.id
        position = func.row_number().over(partition_by=TrialRow.task_key, order_by=order)
        for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
            ranked = (
                select(TrialRow.id, position.label("place"))
                .where(TrialRow.task_key.in_(keys), TrialRow.target_key == target_key, current)
                .where(TrialRow.status == Status.OK.value)
                .subquery()
            )
            row_ids = select(ranked.c.id).where(ranked.c.place <= limit)
            for row in session.execute(_TRIAL.where(TrialRow.id.in_(row_ids)).order_by(*order)):
                fastest.setdefault(row.task_key, []).append(Best(*row))
        return fastest

    @read_session
    def failures(self, session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, set[str]]:
        """Task key -> keys of the schedules that failed there, in trials or the newest confirmation, or are taken back.

        Imported failures do not count.
        """
        failures: dict[str, set[str]] = {}
        for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
            query = select(TrialRow.task_key, TrialRow.schedule_key).where(
                TrialRow.task_key.in_(keys),
                TrialRow.target_key == target_key,
                TrialRow.status != Status.OK.value,
                TrialRow.is_imported.is_(False),  # an import may claim any failure
            )
            for task_key, schedule_key in session.execute(query):
                failures.setdefault(task_key, set()).add(schedule_key)
            for row in newest_confirmations(session, keys, target_key):
                if row.status != Status.OK.value and not row.is_imported:
                    failures.setdefault(row.task_key, set()).add(row.schedule_key)
            for task_key, schedule_key in voids_in_force(session, target_key, keys):
                failures.setdefault(task_key, set()).add(schedule_key)
        return failures

    @read_session
    def relatives(
        self, session: Session, families: Iterable[str], target_keys: Collection[str], limit: int
    ) -> dict[str, list[str]]:
        """Family -> keys of at most `limit` of its tasks that have a best on one of the targets, by key.

        Those with a best that was timed here come first.
        """
        relatives: dict[str, list[str]] = {}
        for batch in batches(dict.fromkeys(families), KEYS_AT_ONCE):
            tasks = (
                select(TaskRow.family, TaskRow.key, func.min(IS_IMPORTED).label("is_imported"))
                .join(BestRow, BestRow.task_key == TaskRow.key)
                .where(TaskRow.family.in_(batch), BestRow.target_key.in_(sorted(set(target_keys))))
                .group_by(TaskRow.family, TaskRow.key)
                .subquery()
            )
            order = tasks.c.is_imported, tasks.c.key
            position = func.row_number().over(partition_by=tasks.c.family, order_by=order).label("place")
            ranked = select(tasks.c.family, tasks.c.key, position).subquery()
            query = select(ranked.c.family, ranked.c.key).where(ranked.c.place <= limit)
            for family, key in session.execute(query.order_by(ranked.c.family, ranked.c.key)):
                relatives.setdefault(family, []).append(key)
        return relatives

    def definitions(self, task_keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Task key -> `Task.to_json`, of stored tasks."""
        return self._of_tasks(task_keys, TaskRow.data)

    def ops(self, task_keys: Iterable[str]) -> dict[str, str]:
        """Task key -> `Task.op`, of stored tasks."""
        return self._of_tasks(task_keys, TaskRow.op)

    def shapes(self, task_keys: Iterable[str]) -> dict[str, str]:
        """Task key -> `Task.shape`, of stored tasks; empty where an older version stored the task."""
        return self._of_tasks(task_keys, TaskRow.shape)

    @read_session
    def _of_tasks(
        self, session: Session, task_keys: Iterable[str], column: InstrumentedAttribute[Value]
    ) -> dict[str, Value]:
        """Task key -> the value of a column, of stored tasks."""
        return column_of(session, TaskRow, column, task_keys)

    @read_session
    def marks(self, session: Session) -> Marks:
        """How far the database has grown."""
        newest = session.execute(select(*(select(func.max(row.id)).scalar_subquery() for row in MARKED_TABLES))).one()
        return Marks(*(number or 0 for number in newest))

    @read_session
    def changes(self, session: Session, since: Marks) -> set[tuple[str, str]]:
        """(task key, target key) of rows after these marks. Transactions that were not committed then may be missed."""
        queries = [
            select(row.task_key, row.target_key).where(row.id > mark)
            for row, mark in zip(MARKED_TABLES, since, strict=True)
        ]
        return {(task_key, target_key) for task_key, target_key in session.execute(union(*queries))}


MARKED_TABLES: tuple[type[MeasurementColumns | VoidRow], ...] = (TrialRow, RepeatRow, ConfirmationRow, VoidRow)
"""The tables of `Marks`, in its order."""

Flag = ColumnElement[bool] | InstrumentedAttribute[bool]


def _bests(
    row: type[BestRow | TrialRow], is_confirmed: Flag, samples: ColumnElement[int] | InstrumentedAttribute[int]
) -> Select[*tuple[Any, ...]]:
    """The columns of `Best`, in its order, of rows of a kind."""
    expressions = {
        "op": TaskRow.op,
        "schedule_json": cast(row.schedule, Text),
        "provenance_json": cast(row.provenance, Text),
        "is_confirmed": is_confirmed,
        "samples": samples,
    }
    columns = (
        expressions[field.name] if field.name in expressions else getattr(row, field.name) for field in fields(Best)
    )
    return select(*columns).join(TaskRow, TaskRow.key == row.task_key)


_BEST = _bests(BestRow, BestRow.is_confirmed, BestRow.samples)
_TRIAL = _bests(TrialRow, false(), func.json_array_length(TrialRow.samples_s))

IS_IMPORTED = case((BestRow.is_imported, 1), else_=0)

_HIT = _BEST.add_columns(TaskRow.shape, BestRow.created_at)
"""The columns of `Hit`."""

SEARCH_ORDER = BestRow.created_at, BestRow.target_key, BestRow.task_key
"""The order of a search."""

CURSOR = re.compile(r"(\S{19,26}\+00:00) ([0-9a-f]{64}) ([0-9a-f]{64})", re.ASCII)
"""The form of a `Hit.place`."""


def _cursor_values(text: str) -> list[BindParameter[Any]]:
    """The values of `SEARCH_ORDER` in a `Hit.place`. Raises ValueError where it is none."""
    match = CURSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote(text, 80)} is no place among what a search finds")
    moment, target_key, task_key = match.groups()
    return [
        literal(datetime.fromisoformat(moment), Instant()),
        literal(target_key, String()),
        literal(task_key, String()),
    ]

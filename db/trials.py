"""Trials of a task or a job for people, by page or as a sample.

An order is read along indexes that begin with the status, one query a status, and the results are merged. So a page of
a million trials costs the same as one of ten.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, and_, case, cast, func, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from tunewright.codegen.fields import quote
from tunewright.search_space.measurement import DRIFT, NOISE, Status

from .database import DatabasePart, read_session
from .pruned_of_job import PrunedOfJob
from .tables import JobRow, TrialRow, VoidRow
from .translate import STATUSES, to_record, to_schedule
from .trial import LONGEST_ERROR, JobTrial, JobTrialPage, TrialDetail, TrialLine, TrialOrder, TrialPage


def _note(name: str) -> ColumnElement[str]:
    """The begin of an entry of the provenance; empty where it has none."""
    return func.substr(func.coalesce(TrialRow.provenance[name].as_string(), ""), 1, LONGEST_ERROR)


LINE_COLUMNS: dict[str, Any] = {field.name: getattr(TrialRow, field.name, None) for field in fields(TrialLine)} | {
    "schedule": cast(TrialRow.schedule, Text),
    "samples": func.json_array_length(TrialRow.samples_s),
    "error": func.substr(
        case((TrialRow.status == Status.VOIDED.value, TrialRow.void_reason), else_=TrialRow.error), 1, LONGEST_ERROR
    ),
    "noise": _note(NOISE),
    "drift": _note(DRIFT),
}
LINES = select(*(column.label(name) for name, column in LINE_COLUMNS.items()))
"""The columns of `TrialLine`, in its order."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)

MOST_SORTED = 20_000
"""So many trials of a job at most are sorted by their keys for a sample; with more, the keys are gone along."""

CURSOR = re.compile(r"([a-z]{1,16}) ([01]) (-?[0-9.e+-]{1,30}) ([0-9]{1,18})", re.ASCII)
"""The form of a `PageCursor`."""


@dataclass(frozen=True, slots=True)
class OrderPart:
    """A part of an order: trials of these statuses, by one column and then by id."""

    statuses: tuple[Status, ...]
    column: InstrumentedAttribute[Any]
    is_descending: bool

    def rank(self, row: Row[Any]) -> tuple[Any, int]:
        """The sort key of a row of this part."""
        return getattr(row, self.column.key), row.id

    def sort(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        columns = self.column, TrialRow.id
        return query.order_by(*(column.desc() if self.is_descending else column for column in columns))

    def is_behind(self, rank: tuple[Any, int]) -> ColumnElement[bool]:
        """Whether a row comes after this rank."""
        # For the first condition: PostgreSQL uses an index for the second one only if both columns are in it.
        columns = self.column, TrialRow.id
        value, row_id = (literal(value, column.type) for value, column in zip(rank, columns, strict=True))
        if self.is_descending:
            return and_(self.column <= value, tuple_(*columns) < tuple_(value, row_id))
        return and_(self.column >= value, tuple_(*columns) > tuple_(value, row_id))


FAILURES = tuple(status for status in Status if status is not Status.OK)

ORDER_PARTS = {
    TrialOrder.NEWEST: (OrderPart(tuple(Status), TrialRow.created_at, True),),
    TrialOrder.OLDEST: (OrderPart(tuple(Status), TrialRow.created_at, False),),
    TrialOrder.FASTEST: (
        OrderPart((Status.OK,), TrialRow.median_s, False),
        OrderPart(FAILURES, TrialRow.created_at, True),
    ),
    TrialOrder.SLOWEST: (
        OrderPart((Status.OK,), TrialRow.median_s, True),
        OrderPart(FAILURES, TrialRow.created_at, True),
    ),
}
"""The parts of each order."""


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The end of a page of an order: the part of its last row, and the rank in it."""

    order: TrialOrder
    part: int
    rank: tuple[Any, int]

    def __str__(self) -> str:
        value, row_id = self.rank
        number = (value - EPOCH) // MICROSECOND if isinstance(value, datetime) else float(value)
        return f"{self.order} {self.part} {number!r} {row_id}"

    @staticmethod
    def of(cursor: str, order: TrialOrder) -> PageCursor:
        """The inverse of `str`. Raises ValueError where it is no cursor of the order."""
        match = CURSOR.fullmatch(cursor)
        if match is None or match[1] != order or int(match[2]) >= len(ORDER_PARTS[order]):
            raise ValueError(f"{quote(cursor, 80)} is no place among trials, {order} first")
        part, number = int(match[2]), match[3]
        try:
            is_moment = ORDER_PARTS[order][part].column is TrialRow.created_at
            value = EPOCH + int(number) * MICROSECOND if is_moment else float(number)
        except OverflowError as error:
            raise ValueError(f"{number} is no moment") from error
        return PageCursor(order, part, (value, int(match[4])))


class TrialLog(DatabasePart):
    """The trials, by task or by job. A job's are on the job's target.

    Each method is one transaction, and may raise StoreError. Concurrent changes may be included or not. Only indexes
    are read in whole, where trials are counted and those of a job selected.
    """

    @read_session
    def counts(self, session: Session, job_id: int) -> dict[str, dict[Status, int]]:
        """Task key -> numbers of the job's trials of it by status; only tasks and statuses that occurred.

        Those that were removed count too.
        """
        query = select(TrialRow.task_key, TrialRow.status, func.count()).where(TrialRow.job_id == job_id)
        pruned = PrunedOfJob.of(session.scalar(select(JobRow.progress).where(JobRow.id == job_id)))
        counts = {key: dict(of_task) for key, of_task in pruned.trials.items()}
        for task_key, status, count in session.execute(query.group_by(TrialRow.task_key, TrialRow.status)):
            of_task = counts.setdefault(task_key, {})
            of_task[STATUSES[status]] = of_task.get(STATUSES[status], 0) + count
        return counts

    @read_session
    def newest_void(self, session: Session) -> int:
        """The number of the newest void, or lift of one, of any trials; 0 without any. Counts change with it."""
        return session.scalar(select(func.max(VoidRow.id))) or 0

    @read_session
    def page(
        self,
        session: Session,
        task_key: str,
        target_key: str,
        *,
        job_id: int | None = None,
        statuses: Collection[Status] | None = None,
        time_s: tuple[float, float] | None = None,
        is_own: bool = False,
        order: TrialOrder = TrialOrder.NEWEST,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TrialPage:
        """The trials of a task on a target in an order, from behind `cursor` on, at most `limit` of them.

        Where given, only those of a job, of these statuses, OK ones whose median is from `time_s[0]` to `time_s[1]`, or
        those that were timed here; a range of times takes an order by time. Page by page each trial comes once; trials
        stored meanwhile come if they belong behind the cursor. Raises ValueError for a cursor of another order.
        """
        position = None if cursor is None else PageCursor.of(cursor, order)
        selected = frozenset(Status if statuses is None else statuses)
        trial_filter = TrialFilter(task_key, target_key, job_id, is_own, time_s)
        rows: list[tuple[int, Row[Any]]] = []
        counts = trial_filter.counts(session)
        for number, part in enumerate(ORDER_PARTS[order]):
            if len(rows) > limit or (position is not None and number < position.part):
                continue
            rank = position.rank if position is not None and number == position.part else None
            walk_statuses = [status for status in part.statuses if status in selected and status in counts]
            walk_rows = _walk(session, trial_filter, part, walk_statuses, rank, limit + 1 - len(rows))
            rows += ((number, row) for row in walk_rows)
        next_cursor = None
        if len(rows) > limit:
            number, last_row = rows[limit - 1]
            next_cursor = str(PageCursor(order, number, ORDER_PARTS[order][number].rank(last_row)))
        total = sum(count for status, count in counts.items() if status in selected)
        return TrialPage([_line(row) for _, row in rows[:limit]], next_cursor, total, counts)

    @read_session
    def page_of_job(
        self,
        session: Session,
        job_id: int,
        kinds: Iterable[tuple[str, Status]],
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> JobTrialPage:
        """The trials of a job of these tasks and statuses, from behind `cursor` on, the newest first.

        At most `limit` of them; `kinds` are task keys with a status, such as `counts` tells. Each costs a look into an
        index. Raises ValueError for what is no cursor of the newest first.
        """
        [part] = ORDER_PARTS[TrialOrder.NEWEST]
        position = None if cursor is None else PageCursor.of(cursor, TrialOrder.NEWEST)
        ranks: list[tuple[Any, int]] = []
        for task_key, status in kinds:
            query = select(TrialRow.created_at, TrialRow.id).where(
                TrialRow.job_id == job_id, TrialRow.task_key == task_key, TrialRow.status == status.value
            )
            if position is not None:
                query = query.where(part.is_behind(position.rank))
            ranks += map(part.rank, session.execute(part.sort(query).limit(limit + 1)))
        ranks = sorted(ranks, reverse=True)[: limit + 1]
        lines = LINES.add_columns(TrialRow.task_key).where(TrialRow.id.in_([row_id for _, row_id in ranks[:limit]]))
        trials = [JobTrial(row.task_key, _line(row)) for row in session.execute(part.sort(lines))]
        return JobTrialPage(
            trials, str(PageCursor(TrialOrder.NEWEST, 0, ranks[limit - 1])) if len(ranks) > limit else None
        )

    @read_session
    def sample(
        self, session: Session, task_key: str, target_key: str, count: int, job_id: int | None = None
    ) -> list[TrialLine]:
        """`count` of the trials of a task on a target that were timed here, or all where there are fewer; of one job.

        Those with the least schedule keys: they are digests, so the choice is unbiased, and stable unless new ones
        displace them.
        """
        trial_filter = TrialFilter(task_key, target_key, job_id=job_id, is_own=True)
        conditions = trial_filter.conditions(TrialRow.schedule_key)
        if job_id is not None:
            if not trial_filter.is_of_target(session):
                return []
            of_job = trial_filter.conditions(TrialRow.created_at)
            some = select(TrialRow.id).where(*of_job).limit(MOST_SORTED + 1).subquery()
            if (session.scalar(select(func.count()).select_from(some)) or 0) <= MOST_SORTED:
                conditions = of_job  # as few of very many would take long to come across in the order of their keys
        return list(map(_line, session.execute(LINES.where(*conditions).order_by(TrialRow.schedule_key).limit(count))))

    @read_session
    def fastest(
        self, session: Session, task_key: str, target_key: str, count: int, job_id: int | None = None
    ) -> list[TrialLine]:
        """The `count` fastest OK trials of a task on a target that were timed here, the fastest first; of one job."""
        trial_filter = TrialFilter(task_key, target_key, job_id=job_id, is_own=True)
        part = ORDER_PARTS[TrialOrder.FASTEST][0]
        return [_line(row) for row in _walk(session, trial_filter, part, [Status.OK], None, count)]

    @read_session
    def imported(self, session: Session, task_key: str, target_key: str) -> int:
        """The number of trials of a task on a target that were imported."""
        of_no_job = *TrialRow.of(task_key, target_key), TrialRow.job_id.is_(None)  # which an index tells
        return session.scalars(select(func.count()).where(*of_no_job, TrialRow.is_imported)).one()

    @read_session
    def get(self, session: Session, task_key: str, target_key: str, schedule_key: str) -> TrialDetail | None:
        """The trial of a schedule; None where there is none."""
        conditions = TrialRow.of(task_key, target_key, schedule_key)
        line = session.execute(LINES.where(*conditions)).one_or_none()
        if line is None:
            return None
        return TrialDetail(_line(line), to_record(session.scalars(select(TrialRow).where(*conditions)).one()))


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """The trials of a task on a target, or those of them that a job measured, or that were timed here.

    With `time_s` only OK ones whose median is within it.
    """

    task_key: str
    target_key: str
    job_id: int | None = None
    is_own: bool = False
    time_s: tuple[float, float] | None = None

    def conditions(self, column: InstrumentedAttribute[Any]) -> list[ColumnElement[bool]]:
        """Conditions on the rows, as the index begins that has this column behind the status."""
        conditions = TrialRow.of(self.task_key, self.target_key)
        if self.is_own:
            conditions.append(TrialRow.is_imported.is_(False))
        if self.time_s is not None:
            conditions += [TrialRow.status == Status.OK.value, TrialRow.median_s.between(*self.time_s)]
        if self.job_id is None:
            return conditions
        of_job = TrialRow.job_id == self.job_id
        if column is TrialRow.created_at:
            return [of_job, TrialRow.task_key == self.task_key]  # a job has one target, which `is_of_target` tells
        return [*conditions, of_job]

    def is_of_target(self, session: Session) -> bool:
        """Whether the job is for the target, if one is asked for."""
        job = select(JobRow.target_key).where(JobRow.id == self.job_id)
        return self.job_id is None or session.scalar(job) == self.target_key

    def counts(self, session: Session) -> dict[Status, int]:
        """Numbers by status. Empty where the job is not for the target."""
        if not self.is_of_target(session):
            return {}
        column = TrialRow.created_at if self.time_s is None else TrialRow.median_s
        counts = _count(session, replace(self, is_own=False).conditions(column))
        if self.is_own and self.job_id is None:  # what was imported is of no job, which an index tells
            of_no_job = replace(self, is_own=False).conditions(column)
            imported = _count(session, [*of_no_job, TrialRow.job_id.is_(None), TrialRow.is_imported.is_(True)])
            counts = {status: n - imported.get(status, 0) for status, n in counts.items()}
        return {status: count for status, count in counts.items() if count}


def _count(session: Session, conditions: Iterable[ColumnElement[bool]]) -> dict[Status, int]:
    """Numbers of rows by status."""
    query = select(TrialRow.status, func.count()).where(*conditions).group_by(TrialRow.status)
    return {STATUSES[status]: count for status, count in session.execute(query)}


def _walk(
    session: Session,
    trial_filter: TrialFilter,
    part: OrderPart,
    statuses: Iterable[Status],
    rank: tuple[Any, int] | None,
    limit: int,
) -> list[Row[Any]]:
    """The first rows of a part with these statuses, from behind a rank on."""
    rows: list[Row[Any]] = []
    for status in statuses:
        query = LINES.where(*trial_filter.conditions(part.column), TrialRow.status == status.value)
        if rank is not None:
            query = query.where(part.is_behind(rank))
        rows += session.execute(part.sort(query).limit(limit))
    return sorted(rows, key=part.rank, reverse=part.is_descending)[:limit]


def _line(row: Row[Any]) -> TrialLine:
    """The line of a row of `LINES`."""
    values = {name: getattr(row, name) for name in LINE_COLUMNS}
    values["schedule"] = to_schedule(row.schedule)
    values["status"] = STATUSES[row.status]
    if values["status"] is Status.VOIDED:
        values |= {"median_s": None, "low_s": None, "high_s": None}
    return TrialLine(**values)

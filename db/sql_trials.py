"""SqlTrialLog: trials in pages, on SQLite and PostgreSQL.

An order is walked along indexes that begin with how a trial ended, one walk a status, and the walks are merged. So a
page costs the same in front of a million trials as in front of ten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, and_, case, cast, func, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule

from .database import Database, patient
from .models import JobRow, TrialRow
from .translate import STATUSES, to_record
from .trials import LONGEST_ERROR, Order, TrialDetail, TrialLine, TrialLog, TrialPage

LINES = select(
    TrialRow.id,
    TrialRow.job_id,
    TrialRow.ordinal,
    cast(TrialRow.schedule, Text).label("schedule"),
    TrialRow.status,
    TrialRow.median_s,
    TrialRow.low_s,
    TrialRow.high_s,
    func.json_array_length(TrialRow.samples_s).label("samples"),
    TrialRow.max_rel_err,
    func.substr(
        case((TrialRow.status == Status.VOIDED.value, TrialRow.void_reason), else_=TrialRow.error), 1, LONGEST_ERROR
    ).label("error"),
    TrialRow.build_s,
    TrialRow.created_at,
)
"""The columns of `TrialLine`, in its order."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MICROSECOND = timedelta(microseconds=1)

CURSOR = re.compile(r"([a-z]{1,16}) ([01]) (-?[0-9.e+-]{1,30}) ([0-9]{1,18})", re.ASCII)
"""A `Place` as text."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an order: trials that ended in these ways, by one column, and those alike in it by their ids."""

    statuses: tuple[Status, ...]
    column: InstrumentedAttribute[Any]
    is_descending: bool

    def rank(self, row: Row[Any]) -> tuple[Any, int]:
        """What the rows of the stretch are sorted by."""
        return getattr(row, self.column.key), row.id

    def sort(self, query: Select[Any]) -> Select[Any]:
        columns = self.column, TrialRow.id
        return query.order_by(*(column.desc() if self.is_descending else column for column in columns))

    def is_behind(self, rank: tuple[Any, int]) -> ColumnElement[bool]:
        """Whether a row comes later than one of this rank."""
        # PostgreSQL enters an index at the second condition only where both columns are in it.
        columns = self.column, TrialRow.id
        value, row_id = (literal(value, column.type) for value, column in zip(rank, columns, strict=True))
        if self.is_descending:
            return and_(self.column <= value, tuple_(*columns) < tuple_(value, row_id))
        return and_(self.column >= value, tuple_(*columns) > tuple_(value, row_id))


FAILED = tuple(status for status in Status if status is not Status.OK)

STRETCHES = {
    Order.NEWEST: (Stretch(tuple(Status), TrialRow.created_at, True),),
    Order.OLDEST: (Stretch(tuple(Status), TrialRow.created_at, False),),
    Order.FASTEST: (Stretch((Status.OK,), TrialRow.median_s, False), Stretch(FAILED, TrialRow.created_at, True)),
    Order.SLOWEST: (Stretch((Status.OK,), TrialRow.median_s, True), Stretch(FAILED, TrialRow.created_at, True)),
}
"""The parts of each order."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of an order ends: its last row, by the number of the stretch and the rank in it."""

    order: Order
    stretch: int
    rank: tuple[Any, int]

    def __str__(self) -> str:
        value, row_id = self.rank
        number = (value - EPOCH) // MICROSECOND if isinstance(value, datetime) else float(value)
        return f"{self.order} {self.stretch} {number!r} {row_id}"

    @staticmethod
    def of(cursor: str, order: Order) -> Place:
        """The inverse of `str`. Raises ValueError for what is no place of the order."""
        parts = CURSOR.fullmatch(cursor)
        if parts is None or parts[1] != order or int(parts[2]) >= len(STRETCHES[order]):
            raise ValueError(f"{cursor[:80]!r} is no place among trials, {order} first")
        stretch, number = int(parts[2]), parts[3]
        try:
            is_moment = STRETCHES[order][stretch].column is TrialRow.created_at
            value = EPOCH + int(number) * MICROSECOND if is_moment else float(number)
        except OverflowError as error:
            raise ValueError(f"{number} is no moment") from error
        return Place(order, stretch, (value, int(parts[4])))


class SqlTrialLog(TrialLog):
    """See `TrialLog`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @patient
    def counts(self, job_id: int) -> dict[str, dict[Status, int]]:
        query = select(TrialRow.task_key, TrialRow.status, func.count()).where(TrialRow.job_id == job_id)
        found: dict[str, dict[Status, int]] = {}
        with self.database.read() as session:
            for task_key, status, count in session.execute(query.group_by(TrialRow.task_key, TrialRow.status)):
                found.setdefault(task_key, {})[STATUSES[status]] = count
        return found

    def page(
        self,
        task_key: str,
        target_key: str,
        *,
        job_id: int | None = None,
        statuses: Collection[Status] | None = None,
        order: Order = Order.NEWEST,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TrialPage:
        place = None if cursor is None else Place.of(cursor, order)
        chosen = frozenset(Status if statuses is None else statuses)
        return self._page(Part(task_key, target_key, job_id), chosen, order, place, limit)

    @patient
    def _page(self, part: Part, chosen: Collection[Status], order: Order, place: Place | None, limit: int) -> TrialPage:
        rows: list[tuple[int, Row[Any]]] = []
        with self.database.read() as session:
            counts = part.counts(session)
            for number, stretch in enumerate(STRETCHES[order]):
                if len(rows) > limit or (place is not None and number < place.stretch):
                    continue
                rank = place.rank if place is not None and number == place.stretch else None
                wanted = [status for status in stretch.statuses if status in chosen and status in counts]
                found = _walk(session, part, stretch, wanted, rank, limit + 1 - len(rows))
                rows += ((number, row) for row in found)
        following = None
        if len(rows) > limit:
            number, last = rows[limit - 1]
            following = str(Place(order, number, STRETCHES[order][number].rank(last)))
        total = sum(count for status, count in counts.items() if status in chosen)
        return TrialPage([_line(row) for _, row in rows[:limit]], following, total, counts)

    @patient
    def sample(self, task_key: str, target_key: str, count: int) -> list[TrialLine]:
        of_task = Part(task_key, target_key).within(TrialRow.schedule_key)
        with self.database.read() as session:
            return list(map(_line, session.execute(LINES.where(*of_task).order_by(TrialRow.schedule_key).limit(count))))

    @patient
    def fastest(self, task_key: str, target_key: str, count: int) -> list[TrialLine]:
        part, stretch = Part(task_key, target_key), STRETCHES[Order.FASTEST][0]
        with self.database.read() as session:
            return [_line(row) for row in _walk(session, part, stretch, [Status.OK], None, count)]

    @patient
    def one(self, task_key: str, target_key: str, schedule_key: str) -> TrialDetail | None:
        named = (
            TrialRow.task_key == task_key,
            TrialRow.target_key == target_key,
            TrialRow.schedule_key == schedule_key,
        )
        with self.database.read() as session:
            line = session.execute(LINES.where(*named)).one_or_none()
            if line is None:
                return None
            return TrialDetail(_line(line), to_record(session.scalars(select(TrialRow).where(*named)).one()))


@dataclass(frozen=True, slots=True)
class Part:
    """The trials that a question is about: those of a task on a target, or those of them that a job measured."""

    task_key: str
    target_key: str
    job_id: int | None = None

    def within(self, column: InstrumentedAttribute[Any]) -> tuple[ColumnElement[bool], ...]:
        """What is true of them alone, as it stands in an index before this column and how they ended."""
        of_task, of_target = TrialRow.task_key == self.task_key, TrialRow.target_key == self.target_key
        if self.job_id is None:
            return of_task, of_target
        of_job = TrialRow.job_id == self.job_id
        if column is TrialRow.created_at:
            return of_job, of_task  # a job has one target, which `counts` looks at
        return of_task, of_target, of_job

    def counts(self, session: Session) -> dict[Status, int]:
        """How they ended. Nothing where the job is not for the target."""
        if self.job_id is not None:
            job = select(JobRow.target_key).where(JobRow.id == self.job_id)
            if session.scalar(job) != self.target_key:
                return {}
        query = select(TrialRow.status, func.count()).where(*self.within(TrialRow.created_at))
        return {STATUSES[status]: count for status, count in session.execute(query.group_by(TrialRow.status))}


def _walk(
    session: Session,
    part: Part,
    stretch: Stretch,
    statuses: Iterable[Status],
    rank: tuple[Any, int] | None,
    limit: int,
) -> list[Row[Any]]:
    """The first rows of a stretch that ended in these ways, from behind a rank on."""
    rows: list[Row[Any]] = []
    for status in statuses:
        query = LINES.where(*part.within(stretch.column), TrialRow.status == status.value)
        if rank is not None:
            query = query.where(stretch.is_behind(rank))
        rows += session.execute(stretch.sort(query).limit(limit))
    return sorted(rows, key=stretch.rank, reverse=stretch.is_descending)[:limit]


def _line(row: Row[Any]) -> TrialLine:
    """The line of a row of `LINES`."""
    named = row._asdict()
    named["schedule"] = Schedule.from_json(json.loads(row.schedule))
    named["status"] = STATUSES[row.status]
    if named["status"] is Status.VOIDED:
        named |= {"median_s": None, "low_s": None, "high_s": None}
    return TrialLine(**named)

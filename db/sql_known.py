"""SqlKnown: what lookups ask, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from sqlalchemy import Select, Text, cast, func, select, tuple_, union
from sqlalchemy.orm import InstrumentedAttribute

from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.schedule import Schedule

from .choice import newest_confirmations
from .database import KEYS_AT_ONCE, Database, batches, column_of, patient
from .known import Best, Known, Marks
from .models import BestRow, ConfirmationRow, Measured, RepeatRow, TaskRow, TrialRow
from .translate import to_measurement

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

    @patient
    def fastest(
        self, task_keys: Iterable[str], target_key: str, sketches: Collection[tuple[str, int]], limit: int = 8
    ) -> dict[str, list[tuple[Schedule, Measurement]]]:
        found: dict[str, list[tuple[Schedule, Measurement]]] = {}
        current = tuple_(TrialRow.sketch, TrialRow.sketch_version).in_(sorted(set(sketches)))
        place = func.row_number().over(partition_by=TrialRow.task_key, order_by=(TrialRow.median_s, TrialRow.id))
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                placed = (
                    select(TrialRow.id, place.label("place"))
                    .where(TrialRow.task_key.in_(keys), TrialRow.target_key == target_key, current)
                    .where(TrialRow.status == Status.OK.value)
                    .subquery()
                )
                chosen = select(placed.c.id).where(placed.c.place <= limit)
                rows = select(TrialRow).where(TrialRow.id.in_(chosen)).order_by(TrialRow.median_s, TrialRow.id)
                for row in session.scalars(rows):
                    found.setdefault(row.task_key, []).append((Schedule.from_json(row.schedule), to_measurement(row)))
        return found

    @patient
    def failures(self, task_keys: Iterable[str], target_key: str) -> dict[str, set[str]]:
        failed: dict[str, set[str]] = {}
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                query = select(TrialRow.task_key, TrialRow.schedule_key).where(
                    TrialRow.task_key.in_(keys), TrialRow.target_key == target_key, TrialRow.status != Status.OK.value
                )
                for task_key, schedule_key in session.execute(query):
                    failed.setdefault(task_key, set()).add(schedule_key)
                for confirmed in newest_confirmations(session, keys, target_key):
                    if confirmed.status != Status.OK.value:
                        failed.setdefault(confirmed.task_key, set()).add(confirmed.schedule_key)
        return failed

    @patient
    def relatives(self, families: Iterable[str], target_keys: Collection[str], limit: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self.database.read() as session:
            for some in batches(dict.fromkeys(families), KEYS_AT_ONCE):
                known = (
                    select(TaskRow.family, TaskRow.key)
                    .join(BestRow, BestRow.task_key == TaskRow.key)
                    .where(TaskRow.family.in_(some), BestRow.target_key.in_(sorted(set(target_keys))))
                    .distinct()
                    .subquery()
                )
                place = func.row_number().over(partition_by=known.c.family, order_by=known.c.key).label("place")
                placed = select(known.c.family, known.c.key, place).subquery()
                query = select(placed.c.family, placed.c.key).where(placed.c.place <= limit)
                for family, key in session.execute(query.order_by(placed.c.family, placed.c.key)):
                    found.setdefault(family, []).append(key)
        return found

    def definitions(self, task_keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        return self._of_tasks(task_keys, TaskRow.data)

    def ops(self, task_keys: Iterable[str]) -> dict[str, str]:
        return self._of_tasks(task_keys, TaskRow.op)

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


GROWING: tuple[type[Measured], ...] = (TrialRow, RepeatRow, ConfirmationRow)
"""The tables that `Marks` tells of, in its order."""

_BEST: Select[*tuple[Any, ...]] = select(
    BestRow.task_key,
    BestRow.target_key,
    TaskRow.op,
    BestRow.sketch,
    BestRow.sketch_version,
    cast(BestRow.schedule, Text),
    BestRow.median_s,
    BestRow.low_s,
    BestRow.high_s,
    cast(BestRow.provenance, Text),
    BestRow.is_confirmed,
).join(TaskRow, TaskRow.key == BestRow.task_key)
"""The columns of `Best`, in its order."""

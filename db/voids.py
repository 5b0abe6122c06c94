"""Voids: taking records back without deleting them, and lifting that. A table has the voids; rows are marked.

A void is of a schedule of a task on a target: of all that is stored of it, and of all that is measured or imported
later. None of that is used any more; for jobs it is a failure, so they don't try it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, null, select, update
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule

from .choice import lock_pairs, update_bests
from .database import KEYS_AT_ONCE, DatabasePart, batches, read_session, write_session
from .errors import NotFound
from .exchange import Void, check_reason
from .tables import ConfirmationRow, MeasurementColumns, RepeatRow, TrialRow, VoidRow
from .translate import clean, to_schedule

TABLES: tuple[type[MeasurementColumns], ...] = (TrialRow, RepeatRow, ConfirmationRow)


def voids_in_force(
    source: Connection | Session, target_key: str, task_keys: Iterable[str]
) -> dict[tuple[str, str], Void]:
    """(task key, schedule key) -> the void in force here, of those tasks on a target."""
    voids: dict[tuple[str, str], Void] = {}
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        query = select(
            VoidRow.task_key, VoidRow.schedule_key, VoidRow.created_at, VoidRow.reason, VoidRow.is_lifted
        ).where(VoidRow.target_key == target_key, VoidRow.task_key.in_(keys))
        for task_key, schedule_key, created_at, reason, is_lifted in source.execute(query.order_by(VoidRow.id)):
            voids.pop((task_key, schedule_key), None)
            if not is_lifted:
                voids[task_key, schedule_key] = Void(created_at, reason)
    return voids


def void_values(void: Void, status: str) -> dict[str, Any]:
    """The columns of a row that is taken back and had this status."""
    return {
        "status": Status.VOIDED.value,
        "measured_status": status,
        "voided_at": void.at,
        "void_reason": clean(void.reason),
    }


def void_marks(voids: Mapping[tuple[str, str], Void], values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that mark a row as taken back, by the voids in force of its target; empty if there is none."""
    void = voids.get((values["task_key"], values["schedule_key"]))
    if void is None or values["status"] == Status.VOIDED.value:
        return {}
    return void_values(void, values["status"])


class Voids(DatabasePart):
    """Each method is one transaction, and may raise StoreError."""

    @read_session
    def schedules(self, session: Session, task_key: str, target_key: str) -> list[Schedule]:
        """The schedules that anything is stored of, taken back or not, by key."""
        schedules: dict[str, Schedule] = {}
        for row in TABLES:
            query = select(row.schedule_key, row.schedule).where(*row.of(task_key, target_key))
            schedules |= {key: to_schedule(data, row) for key, data in session.execute(query)}
        return [schedules[key] for key in sorted(schedules)]

    @read_session
    def in_force(self, session: Session, task_keys: Iterable[str], target_key: str) -> set[tuple[str, str]]:
        """(task key, schedule key) of what is taken back of these tasks on a target."""
        return set(voids_in_force(session, target_key, task_keys))

    @write_session
    def void(self, session: Session, task_key: str, target_key: str, schedule_key: str, reason: str) -> int:
        """Take a schedule back; the number of its records. `reason` is for people.

        If it is taken back already, the first reason stays. Raises NotFound where nothing is stored of it, and
        ValueError for a reason that is no line of printable characters.
        """
        reason = check_reason("reason", reason)
        lock_pairs(self.database, session.connection(), [(target_key, task_key)])
        conditions = {row: row.of(task_key, target_key, schedule_key) for row in TABLES}
        counts = (select(func.count()).select_from(row).where(*condition) for row, condition in conditions.items())
        count = sum(session.scalar(query) or 0 for query in counts)
        if not count:
            raise NotFound(f"{self.database}: nothing is stored of that schedule")
        if (task_key, schedule_key) in voids_in_force(session, target_key, [task_key]):
            return count
        void = Void(self.database.now(session), reason)
        session.add(_row(task_key, target_key, schedule_key, void))
        for row, condition in conditions.items():
            marks = void_values(void, "") | {"measured_status": row.status}
            session.execute(update(row).where(*condition, row.status != Status.VOIDED.value).values(marks))
        update_bests(self.database, session, [(target_key, task_key)])
        return count

    @write_session
    def lift(self, session: Session, task_key: str, target_key: str, schedule_key: str) -> int:
        """Lift a void of this database; the number of records that count again.

        Voids of other databases stay. Raises NotFound where it is not taken back here.
        """
        lock_pairs(self.database, session.connection(), [(target_key, task_key)])
        void = voids_in_force(session, target_key, [task_key]).get((task_key, schedule_key))
        if void is None:
            raise NotFound(f"{self.database}: that schedule is not taken back here")
        lift_mark = Void(self.database.now(session), void.reason)
        session.add(_row(task_key, target_key, schedule_key, lift_mark, is_lifted=True))
        count = 0
        for row in TABLES:
            is_marked = row.voided_at == void.at, row.void_reason == void.reason
            unmark = (
                update(row)
                .where(*row.of(task_key, target_key, schedule_key), *is_marked)
                .values(status=row.measured_status, measured_status=null(), voided_at=null(), void_reason="")
            )
            count += session.connection().execute(unmark).rowcount
        update_bests(self.database, session, [(target_key, task_key)])
        return count


def _row(task_key: str, target_key: str, schedule_key: str, void: Void, *, is_lifted: bool = False) -> VoidRow:
    return VoidRow(
        task_key=task_key,
        target_key=target_key,
        schedule_key=schedule_key,
        reason=void.reason,
        is_lifted=is_lifted,
        created_at=void.at,
    )

"""SqlVoids: taking records back, on SQLite and PostgreSQL. A table says what is taken back, and its rows are marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, null, select, update
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Schedule

from .bests import note, take_turn
from .database import KEYS_AT_ONCE, Database, batches, patient
from .errors import NotFound
from .exchange import Void
from .models import ConfirmationRow, Measured, RepeatRow, TrialRow, VoidRow
from .translate import clean
from .voids import Voids

TABLES: tuple[type[Measured], ...] = (TrialRow, RepeatRow, ConfirmationRow)


def voids_in_force(
    source: Connection | Session, target_key: str, task_keys: Iterable[str]
) -> dict[tuple[str, str], Void]:
    """(task key, schedule key) -> why it is taken back here, of those tasks on a target."""
    found: dict[tuple[str, str], Void] = {}
    for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
        query = select(
            VoidRow.task_key, VoidRow.schedule_key, VoidRow.created_at, VoidRow.reason, VoidRow.is_lifted
        ).where(VoidRow.target_key == target_key, VoidRow.task_key.in_(keys))
        for task_key, schedule_key, at, reason, is_lifted in source.execute(query.order_by(VoidRow.id)):
            found.pop((task_key, schedule_key), None)
            if not is_lifted:
                found[task_key, schedule_key] = Void(at, reason)
    return found


def voided_values(void: Void, status: str) -> dict[str, Any]:
    """The columns of a row that is taken back, which had this status."""
    return {
        "status": Status.VOIDED.value,
        "measured_status": status,
        "voided_at": void.at,
        "void_reason": clean(void.reason),
    }


def voided(source: Connection | Session, values: Mapping[str, Any]) -> dict[str, Any]:
    """What marks the values of a row as taken back, as its schedule is; nothing where that is not so."""
    return marks(voids_in_force(source, values["target_key"], [values["task_key"]]), values)


def marks(voids: Mapping[tuple[str, str], Void], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same by the voids in force of its target."""
    void = voids.get((values["task_key"], values["schedule_key"]))
    if void is None or values["status"] == Status.VOIDED.value:
        return {}
    return voided_values(void, values["status"])


class SqlVoids(Voids):
    """See `Voids`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @patient
    def schedules(self, task_key: str, target_key: str) -> list[Schedule]:
        found: dict[str, Schedule] = {}
        with self.database.read() as session:
            for row in TABLES:
                query = select(row.schedule_key, row.schedule).where(*_of(row, task_key, target_key))
                found |= {key: Schedule.from_json(data) for key, data in session.execute(query)}
        return [found[key] for key in sorted(found)]

    @patient
    def void(self, task_key: str, target_key: str, schedule_key: str, reason: str) -> int:
        with self.database.write() as session:
            take_turn(self.database, session.connection(), [(target_key, task_key)])
            count = _count(session, task_key, target_key, schedule_key)
            if not count:
                raise NotFound(f"{self.database}: nothing is stored of that schedule")
            if (task_key, schedule_key) in voids_in_force(session, target_key, [task_key]):
                return count
            void = Void(self.database.now(session), clean(reason))
            session.add(_row(task_key, target_key, schedule_key, void))
            for row in TABLES:
                left = *_of(row, task_key, target_key, schedule_key), row.status != Status.VOIDED.value
                session.execute(update(row).where(*left).values(_marks(row, void)))
            note(self.database, session, [(target_key, task_key)])
            return count

    @patient
    def lift(self, task_key: str, target_key: str, schedule_key: str) -> int:
        with self.database.write() as session:
            take_turn(self.database, session.connection(), [(target_key, task_key)])
            void = voids_in_force(session, target_key, [task_key]).get((task_key, schedule_key))
            if void is None:
                raise NotFound(f"{self.database}: that schedule is not taken back here")
            lifted = Void(self.database.now(session), void.reason)
            session.add(_row(task_key, target_key, schedule_key, lifted, is_lifted=True))
            count = 0
            for row in TABLES:
                marked = row.voided_at == void.at, row.void_reason == void.reason
                values = {
                    "status": row.measured_status,
                    "measured_status": null(),
                    "voided_at": null(),
                    "void_reason": "",
                }
                done = update(row).where(*_of(row, task_key, target_key, schedule_key), *marked).values(values)
                count += session.connection().execute(done).rowcount
            note(self.database, session, [(target_key, task_key)])
            return count


def _of(row: type[Measured], task_key: str, target_key: str, schedule_key: str | None = None) -> list[Any]:
    named = [row.task_key == task_key, row.target_key == target_key]
    return named if schedule_key is None else [*named, row.schedule_key == schedule_key]


def _count(session: Session, task_key: str, target_key: str, schedule_key: str) -> int:
    counts = (
        session.scalar(select(func.count()).select_from(row).where(*_of(row, task_key, target_key, schedule_key)))
        for row in TABLES
    )
    return sum(count or 0 for count in counts)


def _marks(row: type[Measured], void: Void) -> dict[str, Any]:
    return {**voided_values(void, ""), "measured_status": row.status}


def _row(task_key: str, target_key: str, schedule_key: str, void: Void, *, is_lifted: bool = False) -> VoidRow:
    return VoidRow(
        task_key=task_key,
        target_key=target_key,
        schedule_key=schedule_key,
        reason=void.reason,
        is_lifted=is_lifted,
        created_at=void.at,
    )

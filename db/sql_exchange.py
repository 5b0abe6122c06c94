"""Records that leave the database and come into it, a page at a time. What a line looks like is in `exchange`.

What comes in is looked at first, see `admission`. Then it is added to what is there, as imported, and nothing is
changed or removed. So databases that read each other's exports, in any order and as often as they like, come to hold
the same measurements. Each goes by what was timed in itself; of what none of them timed they agree on what to use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule

from .admission import first_fault
from .bests import note, take_turn
from .database import KEYS_AT_ONCE, Database, batches, column_of, patient
from .exchange import BadLine, Entry, Kind, Void, parse, to_json
from .models import ConfirmationRow, Measured, RepeatRow, TargetRow, TaskRow, TrialRow
from .sql_voids import marks, voided_values, voids_in_force
from .store import Imported
from .translate import as_measured, measured_values, target_values, task_values

PAGE = 1000
"""Records that an export reads at once, and lines that an import writes at once."""

AHEAD = timedelta(days=1)
"""How far a record may be ahead of the database's clock. A confirmation from a far future would count for ever."""

TRIAL_KEY = ("task_key", "target_key", "schedule_key")

UNVOIDED = {"measured_status": None, "voided_at": None, "void_reason": ""}
"""Columns of what is not taken back: the rows of one statement have the same."""

MOMENT_KEY = (*TRIAL_KEY, "created_at")
"""What tells measurements of one schedule apart."""


class Exchange:
    """Export and import of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def export(self) -> Iterator[dict[str, Any]]:
        """See `Store.export`."""
        tasks: dict[str, dict[str, Any]] = {}
        targets: dict[str, dict[str, Any]] = {}
        for row, kind in ((TrialRow, Kind.TRIAL), (RepeatRow, Kind.TRIAL), (ConfirmationRow, Kind.CONFIRMATION)):
            for page in self._pages(row):
                tasks = self._named(TaskRow, {one.task_key for one in page}, tasks)
                targets = self._named(TargetRow, {one.target_key for one in page}, targets)
                for one in page:
                    named = tasks[one.task_key], targets[one.target_key]
                    record = Record(one.task_key, one.target_key, Schedule.from_json(one.schedule), as_measured(one))
                    yield to_json(*named, record, one.created_at, kind, _void(one))

    def import_(self, lines: Iterable[str]) -> Imported:
        """See `Store.import_`."""
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        added = known = 0
        for batch in batches(numbered, PAGE):
            entries: list[Entry] = []
            fault: BadLine | None = None
            latest = self._now() + AHEAD
            for number, line in batch:
                try:
                    entries.append(_checked(parse(line), latest))
                except ValueError as error:
                    stored = added + known + len(entries)
                    fault = BadLine(number, " ".join(str(error).split()), stored)
                    break
            if (wrong := first_fault(entries)) is not None:
                number, stored = batch[wrong.place][0], added + known + wrong.place
                entries, fault = entries[: wrong.place], BadLine(number, wrong.said, stored)
            new = self._store(entries)
            added, known = added + new, known + len(entries) - new
            if fault:
                raise fault
        return Imported(added, known)

    # Each a transaction

    @patient
    def _now(self) -> datetime:
        with self.database.read() as session:
            return self.database.now(session)

    def _pages(self, row: type[Measured]) -> Iterator[list[Any]]:
        """The rows of a table that are there when it begins, a page a transaction: none stays open meanwhile."""
        last, high = 0, self._high(row)
        while page := self._page(row, last, high):
            yield page
            last = page[-1].id

    @patient
    def _high(self, row: type[Measured]) -> int:
        with self.database.read() as session:
            return session.scalar(select(func.max(row.id))) or 0

    @patient
    def _page(self, row: type[Measured], after: int, high: int) -> list[Any]:
        query = select(row).where(row.id > after, row.id <= high).order_by(row.id).limit(PAGE)
        with self.database.read() as session:
            return list(session.scalars(query))

    @patient
    def _named(
        self, row: type[TaskRow | TargetRow], keys: set[str], known: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The data of what these keys name, of which some may be known."""
        found = {key: known[key] for key in keys & known.keys()}
        with self.database.read() as session:
            return found | column_of(session, row, row.data, keys - found.keys())

    @patient
    def _store(self, entries: list[Entry]) -> int:
        """Add what is not there yet; how many were.

        Rows go in by the order of their keys: two imports at once then wait for each other instead of in a circle.
        """
        if not entries:
            return 0
        tasks = {entry.record.task_key: entry.task for entry in entries}
        targets = {entry.record.target_key: entry.target for entry in entries}
        trials, confirmations = (
            sorted(
                (_values(entry) for entry in entries if entry.kind is kind),
                key=lambda values: [values[name] for name in MOMENT_KEY],
            )
            for kind in (Kind.TRIAL, Kind.CONFIRMATION)
        )
        pairs = {(entry.record.target_key, entry.record.task_key) for entry in entries}
        with self.database.write() as session:
            take_turn(self.database, session.connection(), pairs)
            for target_key in targets:
                # What is taken back here stays so, whoever sends it again.
                voids = voids_in_force(session, target_key, tasks)
                for values in (*trials, *confirmations):
                    if voids and values["target_key"] == target_key:
                        values |= marks(voids, values)
            self.database.add(session, TaskRow, ["key"], [task_values(tasks[key]) for key in sorted(tasks)])
            self.database.add(session, TargetRow, ["key"], [target_values(targets[key]) for key in sorted(targets)])
            added = self.database.add(session, TrialRow, TRIAL_KEY, trials)
            if added < len(trials):
                added += self.database.add(session, RepeatRow, MOMENT_KEY, _others(session, trials))
            added += self.database.add(session, ConfirmationRow, MOMENT_KEY, confirmations)
            note(self.database, session, pairs)
            return added


def _others(session: Session, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are not the trial stored of their schedule: it was measured elsewhere too."""
    others = []
    for (task_key, target_key), group in groupby(trials, lambda values: (values["task_key"], values["target_key"])):
        for batch in batches(group, KEYS_AT_ONCE):
            stored = select(TrialRow.schedule_key, TrialRow.created_at).where(
                TrialRow.task_key == task_key,
                TrialRow.target_key == target_key,
                TrialRow.schedule_key.in_([values["schedule_key"] for values in batch]),
            )
            created_at = {one.schedule_key: one.created_at for one in session.execute(stored)}
            others += [values for values in batch if values["created_at"] != created_at[values["schedule_key"]]]
    return others


def _values(entry: Entry) -> dict[str, Any]:
    values = measured_values(entry.record, entry.created_at) | {"is_imported": True} | UNVOIDED
    return values | (voided_values(entry.void, values["status"]) if entry.void else {})


def _void(row: Measured) -> Void | None:
    return Void(row.voided_at, row.void_reason) if row.voided_at is not None else None


def _checked(entry: Entry, latest: datetime) -> Entry:
    if entry.created_at > latest:
        raise ValueError(f"created_at is {entry.created_at.isoformat()}, which is yet to come")
    return entry

"""Export and import of records, page by page. The format of a line is in `exchange`.

Imported records are checked first (`admission`), then added, marked as imported; nothing is changed or removed. So
databases that read each other's exports, in any order and any number of times, come to hold the same measurements. Each
prefers what was timed in itself; where none of them timed anything they agree on what to use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunewright.search_space.measurement import NOISE, Record

from .admission import first_fault
from .choice import lock_pairs, update_bests
from .database import KEYS_AT_ONCE, DatabasePart, batches, column_of, read_session, write_session
from .engine import translate_errors
from .exchange import BadLine, EntryKind, ForeignLine, ImportCounts, RecordEntry, Void, parse, to_json
from .job_reader import JobReader
from .tables import ConfirmationRow, MeasurementColumns, RepeatRow, TargetRow, TaskRow, TrialRow
from .translate import measurement_values, stored_record, target_values, task_values
from .voids import void_marks, void_values, voids_in_force

PAGE = 1000
"""Records of a page of an export, and lines of a transaction of an import."""

MAX_CLOCK_AHEAD = timedelta(minutes=10)
"""How far a record may be ahead of the database's clock: what is measured here is dated after all confirmations."""

FIRST_MOMENT = datetime(2020, 1, 1, tzinfo=UTC)
"""The earliest date of a record: no version is that old, so such a date does not tell what is newer. Whatever is
exported has a date of its own: `LONG_AGO` is of bests alone."""

TRIAL_KEY = ("task_key", "target_key", "schedule_key")

NO_VOID = {"measured_status": None, "voided_at": None, "void_reason": ""}
"""Columns of rows that are not taken back: the rows of one statement have the same columns."""

CREATION_KEY = (*TRIAL_KEY, "created_at")
"""The identity of a measurement of a schedule."""


class Transfer(DatabasePart):
    """The methods of `Store` for export and import."""

    def export(self) -> Iterator[dict[str, Any]]:
        """Every trial, then every confirmation, as JSON data that stands alone (`exchange`).

        Records stored meanwhile may be missing.
        """
        tasks: dict[str, dict[str, Any]] = {}
        targets: dict[str, dict[str, Any]] = {}
        for row, kind in (
            (TrialRow, EntryKind.TRIAL),
            (RepeatRow, EntryKind.TRIAL),
            (ConfirmationRow, EntryKind.CONFIRMATION),
        ):
            for page in self._table_pages(row):
                tasks = self._data_of(TaskRow, {measured.task_key for measured in page}, tasks)
                targets = self._data_of(TargetRow, {measured.target_key for measured in page}, targets)
                for measured in page:
                    definitions = tasks[measured.task_key], targets[measured.target_key]
                    with translate_errors(self.database.engine.url):
                        record = stored_record(measured)
                    void = None if measured.voided_at is None else Void(measured.voided_at, measured.void_reason)
                    yield to_json(*definitions, record, measured.created_at, kind, void)

    def import_(self, lines: Iterable[str]) -> ImportCounts:
        """Store lines of `export`; blank lines are skipped. Nothing stored is changed or removed.

        Importing known records does nothing. Raises BadLine where a line is no record, of a date that can't be, or
        impossible (`admission`); the lines before it are stored, so importing the corrected file is safe.
        """
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        added_count = known_count = 0
        for batch in batches(numbered, PAGE):
            entries: list[RecordEntry] = []
            fault: BadLine | None = None
            latest = self._now() + MAX_CLOCK_AHEAD
            for number, line in batch:
                try:
                    entry = parse(line)
                    _check_moments(entry, latest)
                    entries.append(entry)
                except ValueError as error:
                    stored = added_count + known_count + len(entries)
                    reason = " ".join(str(error).split())
                    fault = BadLine(number, reason, stored, is_foreign=isinstance(error, ForeignLine))
                    break
            if (entry_fault := first_fault(entries, self._peaks_flops_s(entries))) is not None:
                number, stored = batch[entry_fault.index][0], added_count + known_count + entry_fault.index
                entries, fault = entries[: entry_fault.index], BadLine(number, entry_fault.reason, stored)
            new_count = self._store(entries)
            added_count, known_count = added_count + new_count, known_count + len(entries) - new_count
            if fault:
                raise fault
        return ImportCounts(added_count, known_count)

    def _peaks_flops_s(self, entries: Iterable[RecordEntry]) -> dict[str, float]:
        """The peaks of targets that jobs here measured."""
        jobs, keys = JobReader(self.database), {entry.record.target_key for entry in entries}
        peaks = {key: jobs.peak_gflops(key) for key in keys}
        return {key: 1e9 * peak for key, peak in peaks.items() if peak is not None}

    # Each a transaction

    @read_session
    def _now(self, session: Session) -> datetime:
        return self.database.now(session)

    def _table_pages(self, row: type[MeasurementColumns]) -> Iterator[list[Any]]:
        """The rows of a table at the begin, a page a transaction: none stays open meanwhile."""
        last, high = 0, self._highest_id(row)
        while page := self._table_page(row, last, high):
            yield page
            last = page[-1].id

    @read_session
    def _highest_id(self, session: Session, row: type[MeasurementColumns]) -> int:
        return session.scalar(select(func.max(row.id))) or 0

    @read_session
    def _table_page(self, session: Session, row: type[MeasurementColumns], after: int, high: int) -> list[Any]:
        query = select(row).where(row.id > after, row.id <= high).order_by(row.id).limit(PAGE)
        return list(session.scalars(query))

    @read_session
    def _data_of(
        self, session: Session, row: type[TaskRow | TargetRow], keys: set[str], cached: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The data of tasks or targets by key, of which some are `cached`."""
        data = {key: cached[key] for key in keys & cached.keys()}
        return data | column_of(session, row, row.data, keys - data.keys())

    @write_session
    def _store(self, session: Session, entries: list[RecordEntry]) -> int:
        """Add missing rows; how many were.

        Rows are inserted in the order of their keys, so two imports at once do not deadlock.
        """
        if not entries:
            return 0
        tasks = {entry.record.task_key: entry.task for entry in entries}
        targets = {entry.record.target_key: entry.target for entry in entries}
        trials, confirmations = (
            sorted(
                (_values(entry) for entry in entries if entry.kind is kind),
                key=lambda values: [values[name] for name in CREATION_KEY],
            )
            for kind in (EntryKind.TRIAL, EntryKind.CONFIRMATION)
        )
        pairs = {(entry.record.target_key, entry.record.task_key) for entry in entries}
        lock_pairs(self.database, session.connection(), pairs)
        for target_key in targets:
            # Voids of this database hold for imported records too.
            voids = voids_in_force(session, target_key, tasks)
            for values in (*trials, *confirmations):
                if voids and values["target_key"] == target_key:
                    values |= void_marks(voids, values)
        self.database.add(session, TaskRow, ["key"], [task_values(tasks[key]) for key in sorted(tasks)])
        self.database.add(session, TargetRow, ["key"], [target_values(targets[key]) for key in sorted(targets)])
        added = self.database.add(session, TrialRow, TRIAL_KEY, trials)
        if added < len(trials):
            added += self.database.add(session, RepeatRow, CREATION_KEY, _repeats(session, trials))
        added += self.database.add(session, ConfirmationRow, CREATION_KEY, confirmations)
        update_bests(self.database, session, pairs)
        return added


def _check_moments(entry: RecordEntry, latest: datetime) -> None:
    """Raises ValueError for what is later than that, or from before there were records."""
    for name, moment in (("created_at", entry.created_at), ("voided_at", entry.void.at if entry.void else None)):
        if moment is not None and moment > latest:
            raise ValueError(f"{name} is {moment.isoformat()}, which is yet to come")
        if moment is not None and moment < FIRST_MOMENT:
            raise ValueError(f"{name} is {moment.isoformat()}, but there were no records before {FIRST_MOMENT.year}")


def _repeats(session: Session, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials whose schedule has another trial here."""
    repeats = []
    for (task_key, target_key), group in groupby(trials, lambda values: (values["task_key"], values["target_key"])):
        for batch in batches(group, KEYS_AT_ONCE):
            query = select(TrialRow.schedule_key, TrialRow.created_at).where(
                TrialRow.task_key == task_key,
                TrialRow.target_key == target_key,
                TrialRow.schedule_key.in_([values["schedule_key"] for values in batch]),
            )
            created_at = {trial.schedule_key: trial.created_at for trial in session.execute(query)}
            repeats += [values for values in batch if values["created_at"] != created_at[values["schedule_key"]]]
    return repeats


IMPORTED_NOISE = "that is what came with them, from where they were measured"
"""The note of imported times that are said to be noisy: in this database's own words, whatever came."""


def _in_own_words(record: Record) -> Record:
    measured = record.measurement
    if not measured.provenance.get(NOISE):
        return record
    return replace(record, measurement=replace(measured, provenance={**measured.provenance, NOISE: IMPORTED_NOISE}))


def _values(entry: RecordEntry) -> dict[str, Any]:
    values = measurement_values(_in_own_words(entry.record), entry.created_at) | {"is_imported": True} | NO_VOID
    return values | (void_values(entry.void, values["status"]) if entry.void else {})

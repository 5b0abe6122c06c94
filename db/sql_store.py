"""SqlStore: the Store over SQLAlchemy, on SQLite and PostgreSQL.

Rows stay inside; `translate` turns them into domain objects and back. Every value reaches SQL as a bound parameter.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, Select, func, select
from sqlalchemy import exc as sql
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from . import exchange
from .access import Keys
from .database import KEYS_AT_ONCE, Database, batches, patient
from .engine import choose_journal, clear_errors, make_engine, make_folder, parse_url
from .errors import NotFound, StoreError
from .fleet import Fleet
from .jobs import Jobs, Lease, NewEvent
from .leases import changing
from .models import ConfirmationRow, JobRow, TargetRow, TaskRow, TrialRow
from .schema import HEAD, current_revision, upgrade
from .sql_access import SqlKeys
from .sql_fleet import SqlFleet
from .sql_jobs import SqlJobs
from .sql_uploads import SqlUploads
from .store import Imported, Store
from .translate import measured_values, target_values, task_values, to_measurement, to_record
from .uploads import Uploads

PAGE = 1000
"""Trials that an iterator reads at once, and lines that an import writes at once."""

TRIAL_KEY = ("task_key", "target_key", "schedule_key")

Item = TypeVar("Item")


def open_store(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> SqlStore:
    """Open the database at an SQLAlchemy URL: makes its folder and its tables, or migrates them.

    `sqlite:///tuning.db` (relative), `sqlite:////var/lib/tuning.db` (absolute), `sqlite://` (in memory, one process),
    `postgresql://user@host/name`. `wait_s` is how long any call waits for a lock that another process holds,
    `patience_s` how long it goes on trying where the server is away. Raises StoreError, and Unreachable of them.
    """
    parsed = parse_url(url)
    make_folder(parsed)
    engine = make_engine(parsed, wait_s)
    database = Database(engine, patience_s)
    try:
        before = database.patiently(lambda: _prepare(engine, wait_s))
    except BaseException:
        database.close()
        raise
    return SqlStore(database, before)


def _prepare(engine: Engine, wait_s: float) -> str | None:
    """Bring the schema and the journal to where they should be. The revision before."""
    with clear_errors(engine.url):
        before = upgrade(engine)
        choose_journal(engine, wait_s)
        return before


class SqlStore(Store):
    """See `Store`. Close it, or use it in a `with` statement."""

    def __init__(self, database: Database, schema_before: str | None) -> None:
        """Wrap a database whose schema is at head; `open_store` is the way to get here."""
        self.database = database
        self.schema_before = schema_before  # the revision that was found when it was opened; None: it was empty
        self.jobs: Jobs = SqlJobs(database)
        self.keys: Keys = SqlKeys(database)
        self.fleet: Fleet = SqlFleet(database)
        self.uploads: Uploads = SqlUploads(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back. A store in memory is gone then."""
        self.database.close()

    def __str__(self) -> str:
        return str(self.database)

    # Tasks and targets

    @patient
    def add_task(self, task: Task) -> bool:
        with self.database.write() as session:
            return self.database.add(session, TaskRow, ["key"], [task_values(task)]) == 1

    @patient
    def add_target(self, target: Target) -> bool:
        with self.database.write() as session:
            return self.database.add(session, TargetRow, ["key"], [target_values(target)]) == 1

    @patient
    def task(self, task_key: str) -> Task:
        with self.database.read() as session:
            row = session.get(TaskRow, task_key)
            if row is None:
                raise NotFound(f"{self}: there is no task {task_key}")
            return Task.from_json(row.data)

    @patient
    def task_keys(self, prefix: str = "") -> list[str]:
        query = select(TaskRow.key).where(TaskRow.key.startswith(prefix, autoescape=True)).order_by(TaskRow.key)
        with self.database.read() as session:
            return list(session.scalars(query))

    @patient
    def target(self, target_key: str) -> Target:
        with self.database.read() as session:
            row = session.get(TargetRow, target_key)
            if row is None:
                raise NotFound(f"{self}: there is no target {target_key}")
            return Target.from_json(row.data)

    @patient
    def tasks(self, task_keys: Iterable[str]) -> dict[str, Task]:
        found: dict[str, Task] = {}
        self._fetch(TaskRow, set(task_keys), found, Task.from_json)
        return found

    @patient
    def targets(self, kind: str | None = None) -> list[Target]:
        query = select(TargetRow).order_by(TargetRow.key)
        if kind is not None:
            query = query.where(TargetRow.kind == kind)
        with self.database.read() as session:
            return [Target.from_json(row.data) for row in session.scalars(query)]

    @patient
    def relatives(self, family: str, target_keys: Collection[str], limit: int) -> list[str]:
        newest = func.max(TrialRow.id)
        query = (
            select(TaskRow.key)
            .join(TrialRow, TrialRow.task_key == TaskRow.key)
            .where(TaskRow.family == family, TrialRow.target_key.in_(sorted(set(target_keys))))
            .where(TrialRow.status == Status.OK.value)
            .group_by(TaskRow.key)
            .order_by(newest.desc())
            .limit(limit)
        )
        with self.database.read() as session:
            return list(session.scalars(query))

    # Trials

    def record(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> bool:
        exchange.check(record.measurement)
        return self._record(secrets.token_hex(8), record, lease, events)

    @patient
    def _record(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> bool:
        with self._known(record), changing(self.database) as change:
            values = measured_values(record, change.now)
            job = None
            if lease is not None:
                job = change.held(lease, write)
                if job is None:
                    return True
                last = select(func.max(TrialRow.ordinal)).where(TrialRow.job_id == job.id)
                ordinal = change.session.scalar(last)
                values |= {"job_id": job.id, "ordinal": 0 if ordinal is None else ordinal + 1}
            is_new = self.database.add(change.session, TrialRow, TRIAL_KEY, [values]) == 1
            if is_new and job is not None:
                job.updated_at, job.attempts = change.now, 0
                change.tell_all(job, events)
            return is_new

    def confirm(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> None:
        exchange.check(record.measurement)
        self._confirm(secrets.token_hex(8), record, lease, events)

    @patient
    def _confirm(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> None:
        newest = select(func.max(TrialRow.id)).where(
            TrialRow.task_key == record.task_key, TrialRow.target_key == record.target_key
        )
        with self._known(record), changing(self.database) as change:
            if lease is not None:
                job = change.held(lease, write)
                if job is None:
                    return
                change.tell_all(job, events)
            last = change.session.scalar(newest) or 0
            change.session.add(ConfirmationRow(**measured_values(record, change.now), last_trial_id=last))

    @patient
    def records(self, task_key: str, target_key: str, statuses: Collection[Status] | None = None) -> list[Record]:
        query = _trials_of(task_key, target_key).order_by(TrialRow.id)
        if statuses is not None:
            query = query.where(TrialRow.status.in_([status.value for status in statuses]))
        with self.database.read() as session:
            return [to_record(row) for row in session.scalars(query)]

    def best(self, task_key: str, target_key: str) -> Record | None:
        return self.best_many([task_key], target_key).get(task_key)

    @patient
    def best_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        # One walk along the lookup index a task, which ends at the first trial that no confirmation superseded.
        superseded = (
            select(func.coalesce(func.max(ConfirmationRow.last_trial_id), 0))
            .where(ConfirmationRow.task_key == TaskRow.key, ConfirmationRow.target_key == target_key)
            .correlate(TaskRow)
            .scalar_subquery()
        )
        first = (
            select(TrialRow.id)
            .where(TrialRow.task_key == TaskRow.key, TrialRow.target_key == target_key)
            .where(TrialRow.status == Status.OK.value, TrialRow.id > superseded)
            .order_by(TrialRow.median_s, TrialRow.id)
            .limit(1)
            .correlate(TaskRow)
            .scalar_subquery()
        )
        found: dict[str, Record] = {}
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                best = select(first).where(TaskRow.key.in_(keys))
                rows = session.scalars(select(TrialRow).where(TrialRow.id.in_(best)))
                found |= {row.task_key: to_record(row) for row in rows}
                for row in _newest_confirmations(session, keys, target_key):
                    if row.status == Status.OK.value and not _is_faster(found.get(row.task_key), row):
                        found[row.task_key] = to_record(row)
        return found

    @patient
    def confirmed_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        found: dict[str, Record] = {}
        with self.database.read() as session:
            for keys in batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                found |= {row.task_key: to_record(row) for row in _newest_confirmations(session, keys, target_key)}
        return found

    @patient
    def measured(self, task_key: str, target_key: str) -> set[str]:
        query = select(TrialRow.schedule_key).where(TrialRow.task_key == task_key, TrialRow.target_key == target_key)
        with self.database.read() as session:
            return set(session.scalars(query))

    def examples(self, target_kind: str) -> Iterator[tuple[Candidate, Measurement]]:
        tasks: dict[str, Task] = {}
        targets: dict[str, Target] = {}
        chosen = select(TargetRow.key).where(TargetRow.kind == target_kind)
        for page in self._pages(select(TrialRow).where(TrialRow.target_key.in_(chosen)), newest_first=True):
            self._fetch(TaskRow, {row.task_key for row in page}, tasks, Task.from_json)
            self._fetch(TargetRow, {row.target_key for row in page}, targets, Target.from_json)
            for row in page:
                schedule = Schedule.from_json(row.schedule)
                yield Candidate(tasks[row.task_key], targets[row.target_key], schedule), to_measurement(row)

    # The whole

    @patient
    def counts(self) -> dict[str, int]:
        tables = {"tasks": TaskRow, "targets": TargetRow, "jobs": JobRow, "trials": TrialRow}
        with self.database.read() as session:
            return {name: session.scalar(select(func.count()).select_from(row)) or 0 for name, row in tables.items()}

    def export(self) -> Iterator[dict[str, Any]]:
        tasks: dict[str, dict[str, Any]] = {}
        targets: dict[str, dict[str, Any]] = {}
        for page in self._pages(select(TrialRow), newest_first=False):
            self._fetch(TaskRow, {row.task_key for row in page}, tasks, dict)
            self._fetch(TargetRow, {row.target_key for row in page}, targets, dict)
            for row in page:
                yield exchange.to_json(tasks[row.task_key], targets[row.target_key], to_record(row), row.created_at)

    def import_(self, lines: Iterable[str]) -> Imported:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        added = known = 0
        for batch in batches(numbered, PAGE):
            entries: list[exchange.Entry] = []
            fault: StoreError | None = None
            for number, line in batch:
                try:
                    entries.append(exchange.parse(line))
                except ValueError as error:
                    fault = StoreError(f"line {number}: {' '.join(str(error).split())}")
                    break
            new = self._add_entries(entries)
            added, known = added + new, known + len(entries) - new
            if fault:
                raise fault
        return Imported(added, known)

    @patient
    def statuses(self) -> dict[Status, int]:
        """How all trials ended: how many each way, only ways that occurred."""
        query = select(TrialRow.status, func.count()).group_by(TrialRow.status)
        with self.database.read() as session:
            return {Status(status): count for status, count in session.execute(query)}

    @patient
    def is_current(self) -> bool:
        """Whether the database answers with the schema that this version knows: another one may have migrated it."""
        with self.database.read() as session:
            return current_revision(session.connection()) == HEAD

    def journal_mode(self) -> str:
        """SQLite's journal: "wal", "delete" or "memory"; empty on PostgreSQL."""
        return self._pragma("journal_mode") if self.database.is_sqlite else ""

    # Within a transaction

    def _pragma(self, name: str) -> str:
        with clear_errors(self.database.engine.url), self.database.engine.connect() as connection:
            return str(connection.exec_driver_sql(f"PRAGMA {name}").scalar())

    def _add_entries(self, entries: list[exchange.Entry]) -> int:
        """Store imported trials; how many were new.

        Rows go in by the order of their keys: two imports at once then wait for each other instead of in a circle.
        """
        tasks = {entry.record.task_key: task_values(entry.task) for entry in entries}
        targets = {entry.record.target_key: target_values(entry.target) for entry in entries}
        trials = [measured_values(entry.record, entry.created_at) for entry in entries]
        trials.sort(key=lambda values: [values[name] for name in TRIAL_KEY])
        with self.database.write() as session:
            self.database.add(session, TaskRow, ["key"], [tasks[key] for key in sorted(tasks)])
            self.database.add(session, TargetRow, ["key"], [targets[key] for key in sorted(targets)])
            return self.database.add(session, TrialRow, TRIAL_KEY, trials)

    @contextmanager
    def _known(self, record: Record) -> Iterator[None]:
        try:
            yield
        except sql.IntegrityError as error:
            missing = f"task {record.task_key} or target {record.target_key} is not stored"
            raise NotFound(f"{self}: {missing}") from error

    def _pages(self, query: Select[TrialRow], newest_first: bool) -> Iterator[list[TrialRow]]:
        """The trials of a query, a page a transaction: none stays open while the caller works.

        Rows are never changed or removed, so the pages together are one consistent answer.
        """
        with self.database.read() as session:
            last = session.scalar(select(func.max(TrialRow.id))) or 0
        low, high = 0, last + 1  # ids between these are still to come
        order = TrialRow.id.desc() if newest_first else TrialRow.id
        while True:
            with self.database.read() as session:
                rest = query.where(TrialRow.id > low, TrialRow.id < high)
                page = list(session.scalars(rest.order_by(order).limit(PAGE)))
            if not page:
                return
            yield page
            low, high = (low, page[-1].id) if newest_first else (page[-1].id, high)

    def _fetch(
        self,
        row: type[TaskRow | TargetRow],
        keys: set[str],
        found: dict[str, Item],
        decode: Callable[[dict[str, Any]], Item],
    ) -> None:
        """Add what these keys name to `found`, where it is not in there."""
        for batch in batches(sorted(keys - found.keys()), KEYS_AT_ONCE):
            with self.database.read() as session:
                pairs = session.execute(select(row.key, row.data).where(row.key.in_(batch)))
                found |= {key: decode(data) for key, data in pairs}


def _trials_of(task_key: str, target_key: str) -> Select[TrialRow]:
    return select(TrialRow).where(TrialRow.task_key == task_key, TrialRow.target_key == target_key)


def _newest_confirmations(session: Session, task_keys: list[str], target_key: str) -> list[ConfirmationRow]:
    newest = (
        select(func.max(ConfirmationRow.id))
        .where(ConfirmationRow.task_key.in_(task_keys), ConfirmationRow.target_key == target_key)
        .group_by(ConfirmationRow.task_key)
    )
    return list(session.scalars(select(ConfirmationRow).where(ConfirmationRow.id.in_(newest))))


def _is_faster(record: Record | None, confirmed: ConfirmationRow) -> bool:
    median_s = record.measurement.median_s if record else None
    return median_s is not None and confirmed.median_s is not None and median_s < confirmed.median_s

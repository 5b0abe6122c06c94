"""SqlStore: the Store over SQLAlchemy, on SQLite and PostgreSQL.

Rows stay inside; `translate` turns them into domain objects and back. Every value reaches SQL as a bound parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, Select, TextClause, func, literal_column, select, update
from sqlalchemy import exc as sql
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, sessionmaker

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from . import exchange
from .engine import (
    WRITES,
    choose_journal,
    clear_errors,
    make_engine,
    make_folder,
    parse_url,
    shown,
)
from .models import IS_UNFINISHED, ConfirmationRow, JobRow, JobTaskRow, Row, TargetRow, TaskRow, TrialRow
from .schema import upgrade
from .store import UNFINISHED, Imported, Job, JobSpec, JobState, JobTask, NotFound, Store, StoreError, Trial
from .translate import clean, measured_values, target_values, task_values, to_job, to_measurement, to_record

PAGE = 1000
"""Trials that an iterator reads at once, and lines that an import writes at once."""

KEYS_AT_ONCE = 500
"""Keys in one query: SQLite bounds the number of parameters."""

TRIAL_KEY = ("task_key", "target_key", "schedule_key")

Item = TypeVar("Item")


def open_store(url: str, *, wait_s: float = 60.0) -> SqlStore:
    """Open the database at an SQLAlchemy URL: makes its folder and its tables, or migrates them.

    `sqlite:///tuning.db` (relative), `sqlite:////var/lib/tuning.db` (absolute), `sqlite://` (in memory, one process),
    `postgresql://user@host/name`. `wait_s` is how long any call waits for a lock that another process holds.
    Raises StoreError.
    """
    parsed = parse_url(url)
    make_folder(parsed)
    engine = make_engine(parsed, wait_s)
    try:
        with clear_errors(engine.url):
            before = upgrade(engine)
            choose_journal(engine, wait_s)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(engine, before)


class SqlStore(Store):
    """See `Store`. Close it, or use it in a `with` statement."""

    def __init__(self, engine: Engine, schema_before: str | None) -> None:
        """Wrap an engine whose schema is at head; `open_store` is the way to get here."""
        self.schema_before = schema_before  # the revision that was found when it was opened; None: it was empty
        self._engine = engine
        self._insert: Callable[[type[Row]], sqlite.Insert | postgresql.Insert] = (
            sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        )
        self._reads = sessionmaker(engine, expire_on_commit=False)
        self._writes = sessionmaker(engine.execution_options(**{WRITES: True}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back. A store in memory is gone then."""
        self._engine.dispose()

    def __str__(self) -> str:
        return shown(self._engine.url)

    # Tasks and targets

    def add_task(self, task: Task) -> bool:
        with self._write() as session:
            return self._add(session, TaskRow, ["key"], [task_values(task)]) == 1

    def add_target(self, target: Target) -> bool:
        with self._write() as session:
            return self._add(session, TargetRow, ["key"], [target_values(target)]) == 1

    def task(self, task_key: str) -> Task:
        with self._read() as session:
            row = session.get(TaskRow, task_key)
            if row is None:
                raise NotFound(f"{self}: there is no task {task_key}")
            return Task.from_json(row.data)

    def task_keys(self, prefix: str = "") -> list[str]:
        query = select(TaskRow.key).where(TaskRow.key.startswith(prefix, autoescape=True)).order_by(TaskRow.key)
        with self._read() as session:
            return list(session.scalars(query))

    def target(self, target_key: str) -> Target:
        with self._read() as session:
            row = session.get(TargetRow, target_key)
            if row is None:
                raise NotFound(f"{self}: there is no target {target_key}")
            return Target.from_json(row.data)

    # Trials

    def record(self, record: Record, job_id: int | None = None) -> bool:
        exchange.check(record.measurement)
        row = measured_values(record, datetime.now(UTC))
        try:
            with self._write() as session:
                if job_id is not None:
                    row |= {"job_id": job_id, "ordinal": self._next_ordinal(session, job_id)}
                return self._add(session, TrialRow, TRIAL_KEY, [row]) == 1
        except sql.IntegrityError as error:
            raise self._not_stored(record) from error

    def confirm(self, record: Record) -> None:
        exchange.check(record.measurement)
        row = measured_values(record, datetime.now(UTC))
        newest = select(func.max(TrialRow.id)).where(
            TrialRow.task_key == record.task_key, TrialRow.target_key == record.target_key
        )
        try:
            with self._write() as session:
                session.add(ConfirmationRow(**row, last_trial_id=session.scalar(newest) or 0))
        except sql.IntegrityError as error:
            raise self._not_stored(record) from error

    def records(self, task_key: str, target_key: str, statuses: Collection[Status] | None = None) -> list[Record]:
        query = _trials_of(task_key, target_key).order_by(TrialRow.id)
        if statuses is not None:
            query = query.where(TrialRow.status.in_([status.value for status in statuses]))
        with self._read() as session:
            return [to_record(row) for row in session.scalars(query)]

    def best(self, task_key: str, target_key: str) -> Record | None:
        return self.best_many([task_key], target_key).get(task_key)

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
        with self._read() as session:
            for keys in _batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                best = select(first).where(TaskRow.key.in_(keys))
                rows = session.scalars(select(TrialRow).where(TrialRow.id.in_(best)))
                found |= {row.task_key: to_record(row) for row in rows}
                for row in _newest_confirmations(session, keys, target_key):
                    if row.status == Status.OK.value and not _is_faster(found.get(row.task_key), row):
                        found[row.task_key] = to_record(row)
        return found

    def confirmed_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        found: dict[str, Record] = {}
        with self._read() as session:
            for keys in _batches(dict.fromkeys(task_keys), KEYS_AT_ONCE):
                found |= {row.task_key: to_record(row) for row in _newest_confirmations(session, keys, target_key)}
        return found

    def measured(self, task_key: str, target_key: str) -> set[str]:
        query = select(TrialRow.schedule_key).where(TrialRow.task_key == task_key, TrialRow.target_key == target_key)
        with self._read() as session:
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

    # Jobs

    def open_job(self, spec: JobSpec, label: str = "") -> Job:
        try:
            job = None
            while job is None:  # again where the unfinished job that was in the way ended before it was locked
                with self._write() as session:
                    job = self._open_job(session, spec, label)
            return job
        except sql.IntegrityError as error:
            raise NotFound(f"{self}: the target or a task of the job is not stored") from error

    def pause_job(self, job_id: int) -> Job:
        return self._move(job_id, JobState.PAUSED, None)

    def finish_job(self, job_id: int, state: JobState, result: dict[str, Any] | None = None) -> Job:
        if state in UNFINISHED:
            raise ValueError(f"{state} is no way for a job to end")
        return self._move(job_id, state, result)

    def job(self, job_id: int) -> Job:
        with self._read() as session:
            return _jobs(session, [self._job_row(session, job_id)])[0]

    def jobs(self, states: Collection[JobState] | None = None) -> list[Job]:
        query = select(JobRow).order_by(JobRow.id.desc())
        if states is not None:
            query = query.where(JobRow.state.in_([state.value for state in states]))
        with self._read() as session:
            return _jobs(session, list(session.scalars(query)))

    def trials(self, job_id: int) -> list[Trial]:
        query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.ordinal)
        with self._read() as session:
            self._job_row(session, job_id)
            return [Trial(row.ordinal or 0, row.created_at, to_record(row)) for row in session.scalars(query)]

    def statuses(self, job_id: int) -> dict[Status, int]:
        query = select(TrialRow.status, func.count()).where(TrialRow.job_id == job_id).group_by(TrialRow.status)
        with self._read() as session:
            self._job_row(session, job_id)
            return {Status(status): count for status, count in session.execute(query)}

    # The whole

    def counts(self) -> dict[str, int]:
        tables = {"tasks": TaskRow, "targets": TargetRow, "jobs": JobRow, "trials": TrialRow}
        with self._read() as session:
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
        for batch in _batches(numbered, PAGE):
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

    def journal_mode(self) -> str:
        """SQLite's journal: "wal", "delete" or "memory"; empty on PostgreSQL."""
        return self._pragma("journal_mode") if self._is_sqlite else ""

    # Within a transaction

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _pragma(self, name: str) -> str:
        with clear_errors(self._engine.url), self._engine.connect() as connection:
            return str(connection.exec_driver_sql(f"PRAGMA {name}").scalar())

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with clear_errors(self._engine.url), self._reads.begin() as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with clear_errors(self._engine.url), self._writes.begin() as session:
            yield session

    def _add(
        self,
        session: Session,
        row: type[Row],
        unique: Iterable[str],
        values: list[dict[str, Any]],
        where: TextClause | None = None,
    ) -> int:
        """Insert what is not there yet by the unique index on these columns (`where`: a partial one); how many."""
        insert = self._insert(row).on_conflict_do_nothing(index_elements=list(unique), index_where=where)
        return len(session.connection().execute(insert.returning(literal_column("1")), values).all()) if values else 0

    def _add_entries(self, entries: list[exchange.Entry]) -> int:
        """Store imported trials; how many were new.

        Rows go in by the order of their keys: two imports at once then wait for each other instead of in a circle.
        """
        tasks = {entry.record.task_key: task_values(entry.task) for entry in entries}
        targets = {entry.record.target_key: target_values(entry.target) for entry in entries}
        trials = [measured_values(entry.record, entry.created_at) for entry in entries]
        trials.sort(key=lambda values: [values[name] for name in TRIAL_KEY])
        with self._write() as session:
            self._add(session, TaskRow, ["key"], [tasks[key] for key in sorted(tasks)])
            self._add(session, TargetRow, ["key"], [targets[key] for key in sorted(targets)])
            return self._add(session, TrialRow, TRIAL_KEY, trials)

    def _not_stored(self, record: Record) -> NotFound:
        return NotFound(f"{self}: task {record.task_key} or target {record.target_key} is not stored")

    def _next_ordinal(self, session: Session, job_id: int) -> int:
        """The place of the next trial in a job. Locks the job, so that no other process gets the same one."""
        touch = update(JobRow).where(JobRow.id == job_id).values(updated_at=datetime.now(UTC)).returning(JobRow.id)
        if session.scalar(touch) is None:
            raise NotFound(f"{self}: there is no job {job_id}")
        last = session.scalar(select(func.max(TrialRow.ordinal)).where(TrialRow.job_id == job_id))
        return 0 if last is None else last + 1

    def _open_job(self, session: Session, spec: JobSpec, label: str) -> Job | None:
        now = datetime.now(UTC)
        values = {
            "spec_key": spec.key,
            "model_sha256": spec.model_sha256,
            "target_key": spec.target_key,
            "label": clean(label),
            "settings": spec.settings,
            "state": JobState.RUNNING.value,
            "created_at": now,
            "updated_at": now,
        }
        new = self._add(session, JobRow, ["spec_key"], [values], IS_UNFINISHED)
        unfinished = select(JobRow).where(JobRow.spec_key == spec.key, IS_UNFINISHED)
        row = session.scalar(unfinished.with_for_update())
        if row is None:
            return None
        if new:
            session.add_all(
                JobTaskRow(job_id=row.id, position=i, task_key=task.task_key, occurrences=task.occurrences)
                for i, task in enumerate(spec.tasks)
            )
        row.state, row.updated_at = JobState.RUNNING.value, now
        session.flush()
        return _jobs(session, [row])[0]

    def _job_row(self, session: Session, job_id: int, lock: bool = False) -> JobRow:
        row = session.get(JobRow, job_id, with_for_update=lock)
        if row is None:
            raise NotFound(f"{self}: there is no job {job_id}")
        return row

    def _move(self, job_id: int, state: JobState, result: dict[str, Any] | None) -> Job:
        with self._write() as session:
            row = self._job_row(session, job_id, lock=True)
            if JobState(row.state) not in UNFINISHED:
                raise StoreError(f"job {job_id} is {row.state} already")
            row.state, row.result, row.updated_at = state.value, result, datetime.now(UTC)
            session.flush()
            return _jobs(session, [row])[0]

    def _pages(self, query: Select[TrialRow], newest_first: bool) -> Iterator[list[TrialRow]]:
        """The trials of a query, a page a transaction: none stays open while the caller works.

        Rows are never changed or removed, so the pages together are one consistent answer.
        """
        with self._read() as session:
            last = session.scalar(select(func.max(TrialRow.id))) or 0
        low, high = 0, last + 1  # ids between these are still to come
        order = TrialRow.id.desc() if newest_first else TrialRow.id
        while True:
            with self._read() as session:
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
        for batch in _batches(sorted(keys - found.keys()), KEYS_AT_ONCE):
            with self._read() as session:
                pairs = session.execute(select(row.key, row.data).where(row.key.in_(batch)))
                found |= {key: decode(data) for key, data in pairs}


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


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


def _jobs(session: Session, rows: list[JobRow]) -> list[Job]:
    tasks: dict[int, list[JobTask]] = {row.id: [] for row in rows}
    for ids in _batches(tasks, KEYS_AT_ONCE):
        query = select(JobTaskRow).where(JobTaskRow.job_id.in_(ids)).order_by(JobTaskRow.job_id, JobTaskRow.position)
        for row in session.scalars(query):
            tasks[row.job_id].append(JobTask(row.task_key, row.occurrences))
    return [to_job(row, tuple(tasks[row.id])) for row in rows]

"""SqlStore: the Store over SQLAlchemy, on SQLite and PostgreSQL.

Rows stay inside; `translate` turns them into domain objects and back. Every value reaches SQL as a bound parameter.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Engine, Row, Select, Text, and_, cast, func, or_, select, tuple_
from sqlalchemy import exc as sql

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import current

from . import exchange
from .access import Keys
from .bests import note, take_turn
from .choice import best_rows, confirmation_moment, newest_confirmations
from .cost_models import CostModels
from .database import Database, column_of, patient, row_counts
from .engine import choose_journal, clear_errors, make_engine, make_file, parse_url
from .errors import NotFound, Reason
from .fleet import Fleet
from .jobs import Jobs, Lease, NewEvent
from .known import Known
from .leases import changing
from .models import ConfirmationRow, TargetRow, TaskRow, TrialRow, VoidRow
from .recording import Recording
from .schema import HEAD, current_revision, upgrade
from .sql_access import SqlKeys
from .sql_cost_models import SqlCostModels
from .sql_exchange import Exchange
from .sql_fleet import SqlFleet
from .sql_jobs import SqlJobs
from .sql_known import SqlKnown
from .sql_trials import SqlTrialLog
from .sql_uploads import SqlUploads
from .sql_voids import SqlVoids, voided
from .sql_workload import SqlWorkload
from .store import Imported, Store
from .translate import TIMING, measured_values, target_values, task_values, to_record, to_timing
from .trials import TrialLog
from .uploads import Uploads
from .voids import Voids
from .workload import Workload

PAGE = 2000
"""Trials that an iterator reads at once."""

EXAMPLES = select(
    TrialRow.id,
    TrialRow.task_key,
    TrialRow.target_key,
    cast(TrialRow.schedule, Text).label("schedule"),
    *(getattr(TrialRow, name) for name in TIMING),
)
"""What `examples` reads of a trial. What the mapper makes of rows takes several times as long."""

Item = TypeVar("Item")


def open_store(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> SqlStore:
    """Open the database at an SQLAlchemy URL: makes its folder and its tables, or migrates them.

    `sqlite:///tuning.db` (relative), `sqlite:////var/lib/tuning.db` (absolute), `sqlite://` (in memory, one process),
    `postgresql://user@host/name`. `wait_s` is how long any call waits for a lock that another process holds,
    `patience_s` how long it goes on trying where the server is away. Raises StoreError, and Unreachable of them.
    """
    parsed = parse_url(url)
    make_file(parsed)
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
        self.known: Known = SqlKnown(database)
        self.trials: TrialLog = SqlTrialLog(database)
        self.jobs: Jobs = SqlJobs(database)
        self.keys: Keys = SqlKeys(database)
        self.fleet: Fleet = SqlFleet(database)
        self.workload: Workload = SqlWorkload(database)
        self.uploads: Uploads = SqlUploads(database)
        self.costs: CostModels = SqlCostModels(database)
        self.voids: Voids = SqlVoids(database)
        self._exchange = Exchange(database)
        self._recording = Recording(database)

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

    def add_task(self, task: Task) -> bool:
        return self.add_tasks([task]) == 1

    def add_tasks(self, tasks: Iterable[Task]) -> int:
        by_key = {task.key: task for task in reversed(list(tasks))}  # of equal ones the first has its label stored
        # In one order for all: of two transactions that add the same tasks, none waits for the other crosswise.
        return self._add_tasks([task_values(by_key[key]) for key in sorted(by_key)]) if by_key else 0

    @patient
    def _add_tasks(self, values: list[dict[str, Any]]) -> int:
        with self.database.write() as session:
            return self.database.add(session, TaskRow, ["key"], values)

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

    # Trials

    def record(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> bool:
        exchange.check(record.measurement)
        with self._in_turn(lease):
            return self._record(secrets.token_hex(8), record, lease, events)

    @patient
    def _record(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> bool:
        with self._known(record), self.database.write_plainly() as connection:
            if lease is None:
                return self._recording.add(connection, record)
            return self._recording.add_under(lease, write, connection, record, events)

    def confirm(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> None:
        exchange.check(record.measurement)
        with self._in_turn(lease):
            self._confirm(secrets.token_hex(8), record, lease, events)

    @patient
    def _confirm(self, write: str, record: Record, lease: Lease | None, events: Sequence[NewEvent]) -> None:
        with self._known(record), changing(self.database) as change:
            if lease is not None:
                job = change.held(lease, write)
                if job is None:
                    return
                change.tell_all(job, events)
            take_turn(self.database, change.session.connection(), [(record.target_key, record.task_key)])
            moment = confirmation_moment(change.session, change.now, record.task_key, record.target_key)
            values = measured_values(record, moment)
            change.session.add(ConfirmationRow(**values | voided(change.session, values)))
            note(self.database, change.session, [(record.target_key, record.task_key)])

    @patient
    def records(self, task_key: str, target_key: str, statuses: Collection[Status] | None = None) -> list[Record]:
        query = select(TrialRow).where(*_tried_here(task_key, target_key)).order_by(TrialRow.id)
        if statuses is not None:
            query = query.where(TrialRow.status.in_([status.value for status in statuses]))
        with self.database.read() as session:
            return [to_record(row) for row in session.scalars(query)]

    def best(self, task_key: str, target_key: str) -> Record | None:
        return self.best_many([task_key], target_key).get(task_key)

    @patient
    def best_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        with self.database.read() as session:
            return {key: to_record(row) for key, row in best_rows(session, task_keys, target_key).items()}

    @patient
    def confirmed_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        with self.database.read() as session:
            rows = newest_confirmations(session, task_keys, target_key)
            return {row.task_key: to_record(row) for row in rows}

    @patient
    def measured(self, task_key: str, target_key: str) -> set[str]:
        query = select(TrialRow.schedule_key).where(*_tried_here(task_key, target_key))
        with self.database.read() as session:
            return set(session.scalars(query))

    @patient
    def hints(self, task_key: str, target_key: str, limit: int = 6) -> list[Schedule]:
        imported = (
            TrialRow.task_key == task_key,
            TrialRow.target_key == target_key,
            TrialRow.status == Status.OK.value,
            TrialRow.is_imported,
            tuple_(TrialRow.sketch, TrialRow.sketch_version).in_(sorted(current())),
        )
        query = select(TrialRow.schedule).where(*imported).order_by(TrialRow.median_s, TrialRow.id).limit(limit)
        with self.database.read() as session:
            return [Schedule.from_json(data) for data in session.scalars(query)]

    def examples(
        self, target_kind: str, after: int = 0, through: int | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        tasks: dict[str, Task] = {}
        targets: dict[str, Target] = {}
        chosen = select(TargetRow.key).where(TargetRow.kind == target_kind)
        wanted = TrialRow.target_key.in_(chosen), TrialRow.id > after, TrialRow.status != Status.VOIDED.value
        for page in self._pages(EXAMPLES.where(*wanted), through):
            self._fetch(TaskRow, {row.task_key for row in page}, tasks, Task.from_json)
            self._fetch(TargetRow, {row.target_key for row in page}, targets, Target.from_json)
            for row in page:
                schedule = Schedule.from_json(json.loads(row.schedule))
                yield Candidate(tasks[row.task_key], targets[row.target_key], schedule), to_timing(row)

    # The whole

    @patient
    def counts(self) -> dict[str, int]:
        with self.database.read() as session:
            return row_counts(session)

    def export(self) -> Iterator[dict[str, Any]]:
        return self._exchange.export()

    def import_(self, lines: Iterable[str]) -> Imported:
        return self._exchange.import_(lines)

    @patient
    def statuses(self, after: int = 0, through: int | None = None) -> dict[Status, int]:
        """How the trials with ids above `after`, up to `through`, ended: how many each way, only ways that occurred."""
        query = select(TrialRow.status, func.count()).where(TrialRow.id > after).group_by(TrialRow.status)
        if through is not None:
            query = query.where(TrialRow.id <= through)
        with self.database.read() as session:
            return {Status(status): count for status, count in session.execute(query)}

    @patient
    def newest_trial(self) -> int:
        with self.database.read() as session:
            return session.scalar(select(func.max(TrialRow.id))) or 0

    @patient
    def is_current(self) -> bool:
        """Whether the database answers with the schema that this version knows: another one may have migrated it."""
        with self.database.read() as session:
            return current_revision(session.connection()) == HEAD

    @patient
    def unwritable(self) -> Reason | None:
        """Why nothing can be stored; None where no write of this process failed so.

        Once one has, it is tried here whether it would again.
        """
        if self.database.unwritable is not None:
            self.database.try_to_write()
        return None if self.database.unwritable is None else self.database.unwritable.reason

    def journal_mode(self) -> str:
        """SQLite's journal: "wal", "delete" or "memory"; empty on PostgreSQL."""
        return self._pragma("journal_mode") if self.database.is_sqlite else ""

    # Within a transaction

    def _pragma(self, name: str) -> str:
        with clear_errors(self.database.engine.url), self.database.engine.connect() as connection:
            return str(connection.exec_driver_sql(f"PRAGMA {name}").scalar())

    def _in_turn(self, lease: Lease | None) -> AbstractContextManager[object]:
        """See `Database.leased_write`."""
        return nullcontext() if lease is None else self.database.leased_write

    @contextmanager
    def _known(self, record: Record) -> Iterator[None]:
        try:
            yield
        except sql.IntegrityError as error:
            missing = f"task {record.task_key} or target {record.target_key} is not stored"
            raise NotFound(f"{self}: {missing}") from error

    def _pages(self, query: Select[Any], through: int | None) -> Iterator[list[Row[Any]]]:
        """Rows of trials, the newest first, up to an id, a page a transaction: none stays open while the caller works.

        A trial that was imported may be gone by then, as its schedule was timed here: that is a newer trial.
        """
        while page := self._page(query, through):
            yield page
            through = page[-1].id - 1

    @patient
    def _page(self, query: Select[Any], through: int | None) -> list[Row[Any]]:
        if through is not None:
            query = query.where(TrialRow.id <= through)
        with self.database.read() as session:
            return list(session.connection().execute(query.order_by(TrialRow.id.desc()).limit(PAGE)).all())

    @patient
    def _fetch(
        self,
        row: type[TaskRow | TargetRow],
        keys: set[str],
        found: dict[str, Item],
        decode: Callable[[dict[str, Any]], Item],
    ) -> None:
        """Add what these keys name to `found`, where it is not in there."""
        unknown = keys - found.keys()
        if not unknown:
            return
        with self.database.read() as session:
            data = column_of(session, row, row.data, unknown)
        found |= {key: decode(one) for key, one in data.items()}


def _tried_here(task_key: str, target_key: str) -> tuple[ColumnElement[bool], ...]:
    """What holds of the trials of a task that a job need not try: those timed here, and what was taken back here."""
    of_task = TrialRow.task_key == task_key, TrialRow.target_key == target_key
    of_schedules = select(func.max(VoidRow.id)).where(VoidRow.task_key == task_key, VoidRow.target_key == target_key)
    newest = of_schedules.group_by(VoidRow.schedule_key)
    taken_back = select(VoidRow.schedule_key).where(VoidRow.id.in_(newest), VoidRow.is_lifted.is_(False))
    is_voided = and_(TrialRow.status == Status.VOIDED.value, TrialRow.schedule_key.in_(taken_back))
    return *of_task, or_(TrialRow.is_imported.is_(False), is_voided)

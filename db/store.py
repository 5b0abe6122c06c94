"""Store: a database of tasks, targets, trials and jobs, on SQLite or PostgreSQL, and how it is opened.

Rows stay inside; `translate` turns them into domain objects and back. Every value reaches SQL as a bound parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Text, and_, bindparam, cast, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import current

from .best import TaskComparisons, TaskStanding
from .catalog import Catalog
from .choice import best_rows, comparisons_by_time, newest_comparisons, newest_confirmations
from .database import Database, column_of, read_session, retry, row_counts, write_session
from .engine import choose_journal, make_engine, make_file, parse_url, translate_errors
from .errors import NotFound, Reason
from .examples import EXAMPLES_OF_PAGE, StoredExample, read_examples
from .finder import Finder
from .fleet import Fleet
from .jobs import Jobs
from .keys import Keys
from .logs.logs import Logs
from .logs.releases import Releases
from .overview import Overview
from .pruning.prune import Pruning
from .recorder import Recorder
from .schedule_audit import ScheduleAudit
from .schema import HEAD, current_revision, upgrade
from .snapshots import Snapshots
from .staleness import Staleness
from .tables import RepeatRow, TargetRow, TaskRow, TrialRow, VoidRow
from .transfer import Transfer
from .translate import (
    TIMING,
    stored_record,
    target_values,
    task_values,
    to_record,
    to_schedule,
    to_target,
    to_task,
    to_timing,
)
from .trials import TrialLog
from .uploads import Uploads
from .voids import Voids
from .webhooks import Webhooks
from .workload import Workload

EXAMPLES = select(
    TrialRow.id,
    TrialRow.task_key,
    TrialRow.target_key,
    cast(TrialRow.schedule, Text).label("schedule"),
    *(getattr(TrialRow, name) for name in TIMING),
)
"""Columns of a `StoredExample`. Without the mapper, which takes several times as long."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TrialChanges:
    """Numbers that change when stored trials may have been changed or removed."""

    voids: int  # number of voids, lifted ones too
    newest_repeat: int  # the highest id of a repeat
    late_repeats: int  # number of repeats with ids shortly below it


def open_store(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> Store:
    """Open the database at an SQLAlchemy URL. A missing one is made, in an existing folder; an older one is migrated.

    `sqlite:///tuning.db` (relative), `sqlite:////var/lib/tuning.db` (absolute), `sqlite://` (in memory, one process),
    `postgresql://user@host/name`. `wait_s` is how long any call waits for a lock of another process, `patience_s` how
    long it is repeated while the server is away. Raises StoreError, of which Unreachable may pass.
    """
    parsed = parse_url(url)
    make_file(parsed)
    engine = make_engine(parsed, wait_s)
    database = Database(engine, patience_s)

    def prepare() -> str | None:
        with translate_errors(engine.url):
            before = upgrade(engine)
            choose_journal(engine, wait_s)
            return before

    try:
        before = database.retry(prepare)
    except BaseException:
        database.close()
        raise
    return Store(database, before)


class Store(Recorder, Transfer, Closeable):
    """Keeps every trial once and finds it again.

    Threads and processes. Any number of threads may share a store, and any number of processes may each open one on
    the same database. A store does not survive a fork: open it in the process that uses it. Each method is one
    transaction (the iterators: one a page). When a method returns, what it wrote outlives the process.

    Values. What goes in is copied, what comes out is new: changing either changes nothing stored. Numbers come back
    exactly; texts come back with NUL and lone surrogates replaced, which no database keeps; an error that is not a
    number counts as infinite.

    Trials are facts: what was measured is not changed, nor removed unless a policy asks for it (`pruning`), and then
    none that anything here depends on. The key of a trial is (task, target, schedule).
    The first one stored under it stays; one that an import brings of the same schedule is kept beside it, for `best`
    and `export` alone. So is one that was imported, once the schedule is timed here: that is the trial then, and newer
    than all. Taking back (`voids`) changes how trials count, and lifting it changes that back. Confirmations are added
    likewise; of a task on a target the newest one counts. What is newer is told by the moments of creation: what is
    stored here is always newer than the confirmations that are there.

    Trust. What `record` and `confirm` store was timed here. What `import_` stores was not: it is a hint for jobs, and
    the best of a task only while nothing was timed here. What is taken back (`voids`) counts as failed.

    Errors. Every method may raise StoreError; it then has changed nothing, `import_` excepted. Further ones are named
    where they occur.
    """

    def __init__(self, database: Database, schema_before: str | None) -> None:
        """Wrap a database whose schema is at head; `open_store` is the way to get here."""
        super().__init__(database)
        self.schema_before = schema_before  # the revision that was found when it was opened; None: it was empty
        self.catalog = Catalog(database)
        self.trials = TrialLog(database)
        self.jobs = Jobs(database)
        self.keys = Keys(database)
        self.fleet = Fleet(database)
        self.workload = Workload(database)
        self.overview = Overview(database)
        self.finder = Finder(database)
        self.uploads = Uploads(database)
        self.snapshots = Snapshots(database)
        self.staleness = Staleness(database)
        self.voids = Voids(database)
        self.logs = Logs(database)
        self.webhooks = Webhooks(database)
        self.pruning = Pruning(database)
        self.releases = Releases(database)
        self.schedule_audit = ScheduleAudit(database)

    def close(self) -> None:
        """Release the connections. A store in memory is gone then."""
        self.database.close()

    def __str__(self) -> str:
        return str(self.database)

    # Tasks and targets

    def add_task(self, task: Task) -> bool:
        """Store a task. Whether it was new."""
        return self.add_tasks([task]) == 1

    def add_tasks(self, tasks: Iterable[Task], *, relabel: bool = False) -> int:
        """Store several tasks, all or none of them. How many were new.

        `relabel`: those that were there take the labels given here, as a model knows what its ops are called and an
        import may have said anything.
        """
        by_key = {task.key: task for task in reversed(list(tasks))}  # of equal tasks the first one's label is stored
        # In the order of keys, so that two transactions with the same tasks do not deadlock.
        return self._add_tasks([task_values(by_key[key]) for key in sorted(by_key)], relabel) if by_key else 0

    @write_session
    def _add_tasks(self, session: Session, values: list[dict[str, Any]], relabel: bool) -> int:
        added = self.database.add(session, TaskRow, ["key"], values)
        if relabel and added < len(values):
            label = update(TaskRow).where(TaskRow.key == bindparam("k"), TaskRow.op != bindparam("op"))
            named = [{"k": row["key"], "op": row["op"], "data": row["data"]} for row in values]
            session.connection().execute(label.values(op=bindparam("op"), data=bindparam("data")), named)
        return added

    @write_session
    def add_target(self, session: Session, target: Target) -> bool:
        """Store a target. Whether it was new."""
        return self.database.add(session, TargetRow, ["key"], [target_values(target)]) == 1

    def task(self, task_key: str) -> Task:
        """The task of a key. Raises NotFound."""
        return to_task(self._data(TaskRow, task_key, "task"))

    @read_session
    def task_keys(self, session: Session, prefix: str = "") -> list[str]:
        """Keys of the tasks that begin with `prefix`, ascending."""
        query = select(TaskRow.key).where(TaskRow.key.startswith(prefix, autoescape=True)).order_by(TaskRow.key)
        return list(session.scalars(query))

    def target(self, target_key: str) -> Target:
        """The target of a key. Raises NotFound."""
        return to_target(self._data(TargetRow, target_key, "target"))

    @read_session
    def tasks(self, session: Session, task_keys: Iterable[str]) -> dict[str, Task]:
        """The stored ones of these tasks, by key."""
        return {key: to_task(data) for key, data in column_of(session, TaskRow, TaskRow.data, task_keys).items()}

    @read_session
    def targets(self, session: Session, kind: str | None = None) -> list[Target]:
        """The targets of a kind, or all of them, by key."""
        query = select(TargetRow).order_by(TargetRow.key)
        if kind is not None:
            query = query.where(TargetRow.kind == kind)
        return [to_target(row.data) for row in session.scalars(query)]

    # Trials

    @read_session
    def records(
        self, session: Session, task_key: str, target_key: str, statuses: Collection[Status] | None = None
    ) -> list[Record]:
        """The trials of a task on a target that were timed here, or taken back, in order of storing.

        Where given, only those of these statuses.
        """
        query = select(TrialRow).where(*_is_tried_here(task_key, target_key)).order_by(TrialRow.id)
        if statuses is not None:
            query = query.where(TrialRow.status.in_([status.value for status in statuses]))
        return [to_record(row) for row in session.scalars(query)]

    def best(self, task_key: str, target_key: str) -> Record | None:
        """The record to use: the fastest of the newest confirmation and the OK trials created after it.

        Earlier trials are superseded: they took part in the comparison or were slower than those that did. Without a
        confirmation all OK trials count. Of equals the first one, a confirmation before trials; None where there is
        none. What was timed here comes first; only without any of that imported records count, if they are legal points
        of a sketch of this version and their schedule did not fail here.
        """
        return self.best_many([task_key], target_key).get(task_key)

    @read_session
    def best_many(self, session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """`best` of each task that has one."""
        return {key: to_record(row) for key, row in best_rows(session, task_keys, target_key).items()}

    @read_session
    def confirmations(self, session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """The newest confirmation of each task that has one, of any status: of those made here, if there are any."""
        rows = newest_confirmations(session, task_keys, target_key)
        return {row.task_key: to_record(row) for row in rows}

    @read_session
    def comparisons(self, session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, TaskComparisons]:
        """The newest confirmations of each task that has any that were made here."""
        return _comparisons(session, task_keys, target_key)

    @read_session
    def comparisons_by_time(self, session: Session, times_s: Mapping[str, float], target_key: str) -> dict[str, Record]:
        """The confirmation of each task that a report with these times of its bests is of, as it is by now.

        A task has none where its time is of a trial, or was confirmed elsewhere.
        """
        return {row.task_key: to_record(row) for row in comparisons_by_time(session, times_s, target_key)}

    @read_session
    def standings(self, session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, TaskStanding]:
        """`comparisons` and `best` of each of these tasks, at one moment."""
        keys = list(task_keys)
        compared, best = _comparisons(session, keys, target_key), best_rows(session, keys, target_key)
        return {key: TaskStanding(compared.get(key), to_record(best[key]) if key in best else None) for key in keys}

    @read_session
    def schedule_keys(self, session: Session, task_key: str, target_key: str) -> set[str]:
        """Keys of the schedules that were tried here, or taken back, of any status."""
        query = select(TrialRow.schedule_key).where(*_is_tried_here(task_key, target_key))
        return set(session.scalars(query))

    @read_session
    def hints(self, session: Session, task_key: str, target_key: str, limit: int = 6) -> list[Schedule]:
        """The schedules of the fastest imported OK trials that were not timed here yet, the fastest first."""
        conditions = (
            *TrialRow.of(task_key, target_key),
            TrialRow.status == Status.OK.value,
            TrialRow.is_imported,
            tuple_(TrialRow.sketch, TrialRow.sketch_version).in_(sorted(current())),
        )
        query = select(TrialRow.schedule).where(*conditions).order_by(TrialRow.median_s, TrialRow.id).limit(limit)
        return [to_schedule(data) for data in session.scalars(query)]

    def examples(
        self, target_kind: str, after: int = 0, through: int | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        """The trials on targets of a kind, the newest first, as `read_examples` tells."""
        return read_examples(self, target_kind, after, through)

    @read_session
    def example_page(
        self, session: Session, target_kind: str, after: int = 0, through: int | None = None
    ) -> list[StoredExample]:
        """The newest `EXAMPLES_OF_PAGE` trials on targets of a kind with ids above `after`, up to `through`.

        Those that were taken back are left out.
        """
        target_keys = select(TargetRow.key).where(TargetRow.kind == target_kind)
        conditions = TrialRow.target_key.in_(target_keys), TrialRow.id > after, TrialRow.status != Status.VOIDED.value
        query = EXAMPLES.where(*conditions)
        if through is not None:
            query = query.where(TrialRow.id <= through)
        rows = session.connection().execute(query.order_by(TrialRow.id.desc()).limit(EXAMPLES_OF_PAGE))
        return [
            StoredExample(row.id, row.task_key, row.target_key, to_schedule(row.schedule), to_timing(row))
            for row in rows
        ]

    # The whole

    @read_session
    def counts(self, session: Session) -> dict[str, int]:
        """Numbers of stored "tasks", "targets", "jobs" and "trials"."""
        return row_counts(session)

    @read_session
    def statuses(self, session: Session, after: int = 0, through: int | None = None) -> dict[Status, int]:
        """Numbers by status of the trials with ids above `after`, up to `through`; only statuses that occurred."""
        query = select(TrialRow.status, func.count()).where(TrialRow.id > after).group_by(TrialRow.status)
        if through is not None:
            query = query.where(TrialRow.id <= through)
        return {Status(status): count for status, count in session.execute(query)}

    @read_session
    def trial_changes(self, session: Session, late: int) -> TrialChanges:
        """To be read before what is cached until it changes.

        `late` is how far below the newest id one may be whose transaction is not committed yet.
        """
        newest = select(func.coalesce(func.max(RepeatRow.id), 0)).scalar_subquery()
        recent = select(func.count()).select_from(RepeatRow).where(RepeatRow.id > newest - late)
        voids = select(func.count()).select_from(VoidRow)
        row = session.execute(select(voids.scalar_subquery(), newest, recent.scalar_subquery())).one()
        return TrialChanges(*row)

    @read_session
    def newest_trial(self, session: Session) -> int:
        """The highest id of a trial; 0 without trials. Some below it may not be committed yet."""
        return session.scalar(select(func.max(TrialRow.id))) or 0

    @read_session
    def is_current(self, session: Session) -> bool:
        """Whether the database has the schema of this version: another version may have migrated it."""
        return current_revision(session.connection()) == HEAD

    @retry
    def unwritable(self) -> Reason | None:
        """Why nothing can be stored; None where no write of this process has failed for that.

        After such a failure each call tries to write again.
        """
        if self.database.unwritable is not None:
            self.database.probe_write()
        return None if self.database.unwritable is None else self.database.unwritable.reason

    def journal_mode(self) -> str:
        """SQLite's journal: "wal", "delete" or "memory"; empty on PostgreSQL."""
        return self._pragma("journal_mode") if self.database.is_sqlite else ""

    def _pragma(self, name: str) -> str:
        with translate_errors(self.database.engine.url), self.database.engine.connect() as connection:
            return str(connection.exec_driver_sql(f"PRAGMA {name}").scalar())

    # Each a transaction

    @read_session
    def _data(self, session: Session, row: type[TaskRow | TargetRow], key: str, name: str) -> dict[str, Any]:
        """The JSON data of a task or a target. Raises NotFound."""
        data: dict[str, Any] | None = session.scalar(select(row.data).where(row.key == key))
        if data is None:
            raise NotFound(f"{self}: there is no {name} {key}")
        return data


def _comparisons(session: Session, task_keys: Iterable[str], target_key: str) -> dict[str, TaskComparisons]:
    """`Store.comparisons` within a transaction."""
    return {
        newest.task_key: TaskComparisons(None if standing is None else to_record(standing), stored_record(newest))
        for standing, newest in newest_comparisons(session, task_keys, target_key)
    }


def _is_tried_here(task_key: str, target_key: str) -> tuple[ColumnElement[bool], ...]:
    """Conditions on the trials of a task that a job need not try: those timed here, and those taken back here."""
    of_schedules = select(func.max(VoidRow.id)).where(VoidRow.task_key == task_key, VoidRow.target_key == target_key)
    newest = of_schedules.group_by(VoidRow.schedule_key)
    voided_keys = select(VoidRow.schedule_key).where(VoidRow.id.in_(newest), VoidRow.is_lifted.is_(False))
    is_voided = and_(TrialRow.status == Status.VOIDED.value, TrialRow.schedule_key.in_(voided_keys))
    return *TrialRow.of(task_key, target_key), or_(TrialRow.is_imported.is_(False), is_voided)

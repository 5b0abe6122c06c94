"""Database: transactions on one SQLAlchemy engine, repeated while the server is away."""

from __future__ import annotations

import functools
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, TextClause, delete, event, func, insert, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.dml import ReturningInsert

from .engine import WRITE_OPTION, redact, translate_errors
from .errors import Unreachable, Unwritable
from .notifier import CHANNEL, Notifier
from .tables import JobRow, Row, TargetRow, TaskRow, TrialRow, TunerRow

KEYS_AT_ONCE = 500
"""Keys in one query: SQLite bounds the number of parameters."""

REMOVED_AT_ONCE = 2000
"""Rows that one transaction removes, at most, where it may be any number."""

PROBE_BYTES = 64 << 10
"""Size of a row that tests whether anything can be stored: more than the free space of existing pages."""

NOTIFY = "tunewright_announced"
"""Key in a session's `info`: threads are to be notified after its commit."""

MAIN_TABLES: dict[str, type[Row]] = {"tasks": TaskRow, "targets": TargetRow, "jobs": JobRow, "trials": TrialRow}
"""Tables whose rows are counted as the size of a database."""

_WRITE: ContextVar[str | None] = ContextVar("write", default=None)
"""The id of the write under a lease that another process asks for and may ask for again; see `repeatable`."""

Item = TypeVar("Item")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Database:
    """An engine with the current schema. Threads may share it; it does not survive a fork.

    `patience_s` is how long `retry` methods go on while the server is away; it may be changed at any time, also during
    such a method. `clock` is the time in UTC, instead of the clock that all processes of the database share.
    """

    def __init__(self, engine: Engine, patience_s: float = 0.0, clock: Callable[[], datetime] | None = None) -> None:
        self.engine = engine
        self.patience_s = patience_s
        self.clock = clock
        self.notifier = Notifier(engine)
        self.unwritable: Unwritable | None = None  # the error of the last write, if it could not be stored
        # Locked during a write under a lease: the database stores the id of the newest such write of a job only, so
        # another thread must not write before this one is repeated.
        self._leased_write = threading.Lock()
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.insert: Callable[[type[Row]], sqlite.Insert | postgresql.Insert] = (
            sqlite.insert if self.is_sqlite else postgresql.insert
        )
        self._reads = sessionmaker(engine, expire_on_commit=False)
        self._writing = engine.execution_options(**{WRITE_OPTION: True})
        self._writes = sessionmaker(self._writing)

    def __str__(self) -> str:
        return redact(self.engine.url)

    def close(self) -> None:
        """End all waits and release the connections; one that is in use now is closed when that is over."""
        self.notifier.close()
        event.listen(self.engine.pool, "checkin", _close_connection)
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with translate_errors(self.engine.url), self._reads.begin() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes. On SQLite it takes the write lock at its begin."""
        with self._translate_write_errors(), self._writes.begin() as session:
            yield session
        if NOTIFY in session.info:
            self.notifier.notify()

    @contextmanager
    def write_core(self) -> Iterator[Connection]:
        """`write` without the mapper, which takes several times as long as a few statements."""
        with self._translate_write_errors(), self._writing.begin() as connection:
            connection.info.pop(NOTIFY, None)  # of an earlier transaction on this connection
            yield connection
            is_announced = NOTIFY in connection.info
        if is_announced:
            self.notifier.notify()

    @contextmanager
    def _translate_write_errors(self) -> Iterator[None]:
        """`translate_errors` of a writing transaction; `unwritable` is updated."""
        try:
            with translate_errors(self.engine.url):
                yield
        except Unwritable as error:
            self.unwritable = error
            raise

    @contextmanager
    def leased_writes(self) -> Iterator[str]:
        """The id of a write under a lease: no other thread writes under one before it is done, repeated or not."""
        if (write := _WRITE.get()) is not None:  # who asks for it writes one after the other
            yield write
            return
        with self._leased_write:
            yield new_write_id()

    def announce(self, transaction: Connection | Session) -> None:
        """Notify threads that wait for a change of the queue, once the transaction is committed."""
        if NOTIFY in transaction.info:
            return
        transaction.info[NOTIFY] = True
        if not self.is_sqlite:
            transaction.execute(select(func.pg_notify(CHANNEL, "")))

    def probe_write(self) -> None:
        """Update `unwritable` by storing a row of some pages and deleting it.

        It is a tuner of long ago, which no query finds and which is deleted later if this process ends in between.
        """
        name, bulk = secrets.token_hex(8), secrets.token_hex(PROBE_BYTES // 2)
        long_ago = datetime.fromtimestamp(0, UTC)
        values = {"host": "", "pid": 0, "version": "", "pool": "", "devices": [bulk], "draining": True}
        try:
            with self.write_core() as connection:
                connection.execute(insert(TunerRow), values | {"id": name, "started_at": long_ago, "seen_at": long_ago})
            with self.write_core() as connection:
                connection.execute(delete(TunerRow).where(TunerRow.id == name))
        except Unwritable:
            return
        self.unwritable = None

    def now(self, transaction: Connection | Session) -> datetime:
        """The time in UTC, by the clock that all processes of the database share."""
        if self.clock is not None:
            return self.clock()
        if self.is_sqlite:  # all its processes are on one machine
            return datetime.now(UTC)
        moment: datetime = transaction.execute(select(func.clock_timestamp())).scalar_one()
        return moment.astimezone(UTC)

    def retry(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which is repeated while the server is away, for `patience_s`.

        It must be one transaction that may happen twice: a connection can be lost between the commit and its answer.
        """
        started_s, pause_s = time.monotonic(), 0.05
        while True:
            try:
                return work()
            except Unreachable:
                if time.monotonic() - started_s + pause_s > self.patience_s:
                    raise
            # A random pause, so that not all processes try at the same moment.
            time.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 1.0)

    def add(
        self,
        transaction: Connection | Session,
        row: type[Row],
        unique: Iterable[str],
        values: list[dict[str, Any]],
        where: TextClause | None = None,
    ) -> int:
        """Insert rows that are missing by the unique index on these columns (`where`: a partial one); how many."""
        connection = transaction.connection() if isinstance(transaction, Session) else transaction
        return len(connection.execute(self.insert_new(row, unique, where), values).all()) if values else 0

    def insert_new(
        self, row: type[Row], unique: Iterable[str], where: TextClause | None = None
    ) -> ReturningInsert[tuple[Any]]:
        """The statement of `add`. It returns a row for each that it inserts."""
        insert = self.insert(row).on_conflict_do_nothing(index_elements=list(unique), index_where=where)
        return insert.returning(literal_column("1"))


class DatabasePart:
    """A part of a store, with `retry` methods."""

    def __init__(self, database: Database) -> None:
        self.database = database


Owner = TypeVar("Owner", bound=DatabasePart)


def retry(
    method: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Repeat a method while the server is away, by `Database.retry`. It may consume iterators among its arguments."""

    @functools.wraps(method)
    def call(self: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        work: Callable[..., Result] = functools.partial(method, self)
        values, options = list(map(_reusable, args)), {name: _reusable(value) for name, value in kwargs.items()}
        return self.database.retry(lambda: work(*values, **options))

    return call


def _reusable(value: object) -> object:
    """The items of an iterator as a list, as another attempt would find it empty; other values as they are."""
    return list(value) if isinstance(value, Iterator) else value


def read_session(
    method: Callable[Concatenate[Owner, Session, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Make a method one transaction that only reads, repeated as by `retry`. Its first argument is the session."""
    return in_transaction(method, lambda database: database.read())


def write_session(
    method: Callable[Concatenate[Owner, Session, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """The same for one that writes."""
    return in_transaction(method, lambda database: database.write())


def _close_connection(_connection: object, entry: ConnectionPoolEntry) -> None:
    """Close what comes back to a pool that has ended, which would keep it."""
    entry.invalidate()


def in_transaction(
    method: Callable[Concatenate[Owner, Value, Parameters], Result],
    begin: Callable[[Database], AbstractContextManager[Value]],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """A method in what `begin` opens, which becomes its first argument; repeated while the server is away."""

    @functools.wraps(method)
    def call(self: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with begin(self.database) as transaction:
            return method(self, transaction, *args, **kwargs)

    return retry(call)


def retry_write(
    method: Callable[Concatenate[Owner, str, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """The same for a method that writes under a lease. Its first argument is an id of the write."""

    @functools.wraps(method)
    def call(self: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self.database.leased_writes() as write:
            return self.database.retry(lambda: method(self, write, *args, **kwargs))

    return call


def new_write_id() -> str:
    """An id for a write under a lease: 16 digits, the first of which are the same for all of this process."""
    return f"{_WRITER}{next(_WRITE_NUMBERS):010x}"


def is_repeated(written: str, write: str) -> bool:
    """Whether the write with an id is stored already, by the newest one that is.

    Ids of a process ascend: so a first attempt that comes late, behind newer writes, is told from a new one.
    """
    return written[:WRITER_DIGITS] == write[:WRITER_DIGITS] and written >= write


WRITER_DIGITS = 6
"""Digits of the id of a write that tell the process."""

_WRITER, _WRITE_NUMBERS = secrets.token_hex(WRITER_DIGITS // 2), count(1)


@contextmanager
def repeatable(write: str) -> Iterator[None]:
    """A context in which writes under a lease have this id: with the same one they change nothing a second time."""
    token = _WRITE.set(write)
    try:
        yield
    finally:
        _WRITE.reset(token)


def column_of(
    session: Session, row: type[TaskRow | TargetRow], column: InstrumentedAttribute[Value], keys: Iterable[str]
) -> dict[str, Value]:
    """Key -> the value of a column, of the rows that are there."""
    values: dict[str, Value] = {}
    for batch in batches(dict.fromkeys(keys), KEYS_AT_ONCE):
        values |= dict(session.execute(select(row.key, column).where(row.key.in_(batch))).all())
    return values


def row_counts(source: Connection | Session, tables: Mapping[str, type[Row]] = MAIN_TABLES) -> dict[str, int]:
    """Numbers of rows of these tables, by the same names."""
    return {name: source.scalar(select(func.count()).select_from(row)) or 0 for name, row in tables.items()}


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`, the last one shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch

"""Database: transactions on one SQLAlchemy engine, and patience with a server that is away for a while."""

from __future__ import annotations

import functools
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine, TextClause, delete, func, insert, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session, sessionmaker
from sqlalchemy.sql.dml import ReturningInsert

from .bell import CHANNEL, Bell
from .engine import WRITES, clear_errors, shown
from .errors import Unreachable, Unwritable
from .models import JobRow, Row, TargetRow, TaskRow, TrialRow, TunerRow

KEYS_AT_ONCE = 500
"""Keys in one query: SQLite bounds the number of parameters."""

PROBE_BYTES = 64 << 10
"""What is stored to find out whether anything can be: more than what is free in the pages that there are."""

ANNOUNCED = "tunewright_announced"
"""In a session's `info`: somebody is to be woken after its commit."""

STORED: dict[str, type[Row]] = {"tasks": TaskRow, "targets": TargetRow, "jobs": JobRow, "trials": TrialRow}
"""What the size of a database is told by."""

Item = TypeVar("Item")
Given = ParamSpec("Given")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Database:
    """An engine whose schema is at head. Threads may share it; it does not survive a fork.

    `patience_s` is how long a `patient` method goes on trying to reach a server that is away; it may be changed at any
    time, also for methods that are at it. `clock` tells the time, UTC, in the place of the clock that all processes of
    the database share.
    """

    def __init__(self, engine: Engine, patience_s: float = 0.0, clock: Callable[[], datetime] | None = None) -> None:
        self.engine = engine
        self.patience_s = patience_s
        self.clock = clock
        self.bell = Bell(engine)
        self.unwritable: Unwritable | None = None  # what the last write failed with that found no place
        # Held over a write under a lease until its answer is known: the database remembers the newest such write of a
        # job alone, so one that is tried again must not be overtaken by another thread's.
        self.leased_write = threading.Lock()
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.insert: Callable[[type[Row]], sqlite.Insert | postgresql.Insert] = (
            sqlite.insert if self.is_sqlite else postgresql.insert
        )
        self._reads = sessionmaker(engine, expire_on_commit=False)
        self._writing = engine.execution_options(**{WRITES: True})
        self._writes = sessionmaker(self._writing)

    def __str__(self) -> str:
        return shown(self.engine.url)

    def close(self) -> None:
        """End all waits and give the connections back."""
        self.bell.close()
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with clear_errors(self.engine.url), self._reads.begin() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes: on SQLite it has the write lock from its begin."""
        with self._clear_write_errors(), self._writes.begin() as session:
            yield session
        if ANNOUNCED in session.info:
            self.bell.ring()

    @contextmanager
    def write_plainly(self) -> Iterator[Connection]:
        """`write` without the mapper, which takes several times as long as a few statements do."""
        with self._clear_write_errors(), self._writing.begin() as connection:
            connection.info.pop(ANNOUNCED, None)  # of an earlier transaction, which these outlive
            yield connection
            is_announced = ANNOUNCED in connection.info
        if is_announced:
            self.bell.ring()

    @contextmanager
    def _clear_write_errors(self) -> Iterator[None]:
        """`clear_errors` of a transaction that writes: that nothing can be stored is remembered."""
        try:
            with clear_errors(self.engine.url):
                yield
        except Unwritable as error:
            self.unwritable = error
            raise

    def announce(self, transaction: Connection | Session) -> None:
        """Wake whoever waits for a change of the queue, once the transaction is committed."""
        if ANNOUNCED in transaction.info:
            return
        transaction.info[ANNOUNCED] = True
        if not self.is_sqlite:
            transaction.execute(select(func.pg_notify(CHANNEL, "")))

    def try_to_write(self) -> None:
        """Find out whether anything can be stored, by a row of some pages that is taken out again.

        It is a tuner that was heard of long ago, so that nobody sees it, and is forgotten if this process ends here.
        """
        name, bulk = secrets.token_hex(8), secrets.token_hex(PROBE_BYTES // 2)
        long_ago = datetime.fromtimestamp(0, UTC)
        values = {"host": "", "pid": 0, "version": "", "pool": "", "devices": [bulk], "draining": True}
        try:
            with self.write_plainly() as connection:
                connection.execute(insert(TunerRow), values | {"id": name, "started_at": long_ago, "seen_at": long_ago})
            with self.write_plainly() as connection:
                connection.execute(delete(TunerRow).where(TunerRow.id == name))
        except Unwritable:
            return
        self.unwritable = None

    def now(self, transaction: Connection | Session) -> datetime:
        """The time, UTC, by the clock that all processes of the database share."""
        if self.clock is not None:
            return self.clock()
        if self.is_sqlite:  # all its processes are on one machine
            return datetime.now(UTC)
        moment: datetime = transaction.execute(select(func.clock_timestamp())).scalar_one()
        return moment.astimezone(UTC)

    def patiently(self, work: Callable[[], Result]) -> Result:
        """What `work` returns: it is tried again while the server is away, until the patience is over.

        It must be one transaction that may happen twice: a connection can be lost after the commit and before its
        answer.
        """
        started_s, pause_s = time.monotonic(), 0.05
        while True:
            try:
                return work()
            except Unreachable:
                if time.monotonic() - started_s + pause_s > self.patience_s:
                    raise
            # Nobody tells when the server is back. Not all who wait ask in the same moment.
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
        """Insert what is not there yet by the unique index on these columns (`where`: a partial one); how many."""
        connection = transaction.connection() if isinstance(transaction, Session) else transaction
        return len(connection.execute(self.adding(row, unique, where), values).all()) if values else 0

    def adding(
        self, row: type[Row], unique: Iterable[str], where: TextClause | None = None
    ) -> ReturningInsert[tuple[Any]]:
        """The statement of `add`. It returns a row for each that it inserts."""
        insert = self.insert(row).on_conflict_do_nothing(index_elements=list(unique), index_where=where)
        return insert.returning(literal_column("1"))


class OnDatabase(Protocol):
    """What `patient` methods belong to."""

    @property
    def database(self) -> Database: ...


Owner = TypeVar("Owner", bound=OnDatabase)


def patient(
    method: Callable[Concatenate[Owner, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result]:
    """A method that is tried again while the server is away, see `Database.patiently`."""

    @functools.wraps(method)
    def tried(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return self.database.patiently(lambda: method(self, *args, **kwargs))

    return tried


def patient_write(
    method: Callable[Concatenate[Owner, str, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result]:
    """A patient method that writes under a lease. It is given an id of the write, so that it can tell its own."""

    @functools.wraps(method)
    def tried(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        write = secrets.token_hex(8)
        with self.database.leased_write:
            return self.database.patiently(lambda: method(self, write, *args, **kwargs))

    return tried


def column_of(
    session: Session, row: type[TaskRow | TargetRow], column: InstrumentedAttribute[Value], keys: Iterable[str]
) -> dict[str, Value]:
    """Key -> what is in a column, of those rows that are there."""
    found: dict[str, Value] = {}
    for some in batches(dict.fromkeys(keys), KEYS_AT_ONCE):
        found |= dict(session.execute(select(row.key, column).where(row.key.in_(some))).all())
    return found


def row_counts(source: Connection | Session, tables: Mapping[str, type[Row]] = STORED) -> dict[str, int]:
    """How many rows these tables hold, by the same names."""
    return {name: source.scalar(select(func.count()).select_from(row)) or 0 for name, row in tables.items()}


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch

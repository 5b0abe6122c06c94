"""Inspection: the state of a database, read without changing it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, and_, func, select
from sqlalchemy import exc as sql

from .columns import ReadType
from .database import Database, row_counts
from .engine import (
    is_memory,
    is_missing,
    make_reader,
    parse_url,
    redact,
    sqlite_file,
    sqlite_name,
    sqlite_version,
    translate_errors,
)
from .errors import Unreadable
from .fleet import Fleet, TunerDevice
from .job import JobState
from .leases import is_lease_over
from .schema import HEAD, METADATA, current_revision, refuse_foreign
from .sqlite_library import wal_is_safe
from .tables import JobRow

LONGEST_CHECK_S = 1.0
"""How long SQLite may look for damage. A large database is checked in part."""

STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""

ROWS_AT_ONCE = 1000
"""Rows that are held while all are read."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of the queue and the fleet."""

    clock_ahead_s: float  # of the database, before the clock of this process
    queued: int = 0  # jobs that any tuner may take up
    lost: int = 0  # running jobs whose lease is over
    tuners: int = 0  # heard lately
    quarantined: tuple[TunerDevice, ...] = ()  # of those


@dataclass(frozen=True, slots=True)
class Inspection:
    """A database that can be reached and may be used."""

    name: str  # its URL without a password
    revision: str | None  # of its schema; None where it is empty
    library: str  # e.g. "SQLite 3.53.4 (pysqlite3)", "PostgreSQL 17.2"
    file: Path | None = None  # of SQLite
    journal_mode: str = ""  # likewise
    wal_is_safe: bool = True  # False: this SQLite library could corrupt a database in WAL mode, which it isn't used for
    damage: str = ""  # what SQLite's own check found first, or reading all rows
    is_checked: bool = True  # False: there was no time to look all through for damage
    counts: Mapping[str, int] = field(default_factory=dict)  # rows; only where the schema is the one of this version
    work: ServiceState | None = None  # likewise

    @property
    def is_current(self) -> bool:
        """Whether the schema is the one of this version; the next command that writes migrates an older one."""
        return self.revision == HEAD


def inspect(url: str, wait_s: float = 5.0) -> Inspection | None:
    """Inspect the database at a URL, as `open_store` takes it; None where there is no file yet.

    Raises StoreError where the database can't be reached or read, is newer than this version, or another program's.
    """
    parsed = parse_url(url)
    if is_memory(parsed) or is_missing(parsed):
        return None
    engine = make_reader(parsed, wait_s)
    try:
        with translate_errors(engine.url), engine.connect() as connection:
            return _inspection(engine, connection)
    finally:
        engine.dispose()


def _inspection(engine: Engine, connection: Connection) -> Inspection:
    revision = current_revision(connection)
    refuse_foreign(engine, connection, revision)
    counts: dict[str, int] = {}
    work = None
    if revision == HEAD:
        counts = row_counts(connection)
        work = _work(engine)
    name = redact(engine.url)
    if engine.dialect.name != "sqlite":
        version = ".".join(map(str, engine.dialect.server_version_info or ()))
        return Inspection(name, revision, f"PostgreSQL {version}", counts=counts, work=work)
    damage = _damage(connection, revision == HEAD)
    return Inspection(
        name=name,
        revision=revision,
        library=sqlite_name(engine),
        file=sqlite_file(engine.url),
        journal_mode=str(connection.exec_driver_sql("PRAGMA journal_mode").scalar()),
        wal_is_safe=wal_is_safe(sqlite_version(engine)),
        damage=damage or "",
        is_checked=damage is not None,
        counts=counts,
        work=work,
    )


def _work(engine: Engine) -> ServiceState:
    database = Database(engine)
    with database.read() as session:
        start = datetime.now(UTC)
        now = database.now(session)
        local_now = start + (datetime.now(UTC) - start) / 2
        is_waiting = and_(JobRow.state == JobState.QUEUED.value, JobRow.attached.is_(False))
        jobs = select(func.count()).select_from(JobRow)
        queued, lost = (session.scalar(jobs.where(condition)) or 0 for condition in (is_waiting, is_lease_over(now)))
    tuners = Fleet(database).tuners()
    devices = dict.fromkeys(device for tuner in tuners for device in tuner.devices)
    return ServiceState(
        clock_ahead_s=(now - local_now).total_seconds(),
        queued=queued,
        lost=lost,
        tuners=len(tuners),
        quarantined=tuple(device for device in devices if device.quarantined_until and device.quarantined_until > now),
    )


def _damage(connection: Connection, is_current: bool) -> str | None:
    """The first damage that SQLite finds, or reading rows of the current schema; empty if there is none.

    None where that took too long.
    """
    driver: Any = connection.connection.driver_connection
    deadline_s = time.monotonic() + LONGEST_CHECK_S
    driver.set_progress_handler(lambda: time.monotonic() > deadline_s, STEPS_BETWEEN_LOOKS)
    try:
        damage = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        if damage == "ok" and is_current:  # SQLite knows nothing of what texts mean
            for table in METADATA.sorted_tables:
                _read_texts(connection, table)
    except Unreadable as error:
        return error.fault
    except sql.OperationalError as error:
        if "interrupted" not in str(error.orig):
            raise
        return None
    finally:
        driver.set_progress_handler(None, 0)
    return "" if damage == "ok" else damage


def _read_texts(connection: Connection, table: Table) -> None:
    """Raises Unreadable."""
    columns = [column for column in table.columns if isinstance(column.type, ReadType)]
    if columns:
        for _ in connection.execute(select(*columns).execution_options(yield_per=ROWS_AT_ONCE)):
            pass

"""What there is to know about a database, found without changing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, func, select

from .engine import clear_errors, is_memory, make_engine, parse_url, shown, sqlite_name, sqlite_version, wal_is_safe
from .models import JobRow, TargetRow, TaskRow, TrialRow
from .schema import HEAD, current_revision, refuse_foreign

COUNTED = {"tasks": TaskRow, "targets": TargetRow, "jobs": JobRow, "trials": TrialRow}


@dataclass(frozen=True, slots=True)
class Inspection:
    """A database that can be reached and may be used."""

    name: str  # its URL without a password
    revision: str | None  # of its schema; None where it is empty
    library: str  # e.g. "SQLite 3.53.4 (pysqlite3)", "PostgreSQL 17.2"
    journal_mode: str = ""  # of SQLite
    wal_is_safe: bool = True  # False: this SQLite library could corrupt a database in WAL mode, which it isn't used for
    damage: str = ""  # what SQLite's own check found first
    counts: Mapping[str, int] = field(default_factory=dict)  # rows; only where the schema is the one of this version

    @property
    def is_current(self) -> bool:
        """Whether the schema is the one of this version; the next command brings it there where it is not."""
        return self.revision == HEAD


def inspect(url: str, wait_s: float = 5.0) -> Inspection | None:
    """Look at the database at a URL, as `open_store` takes it; None where there is no file yet.

    Raises StoreError where the database can't be reached or read, is newer than this version, or another program's.
    """
    parsed = parse_url(url)
    if not _is_there(parsed):
        return None
    engine = make_engine(parsed, wait_s)
    try:
        with clear_errors(engine.url), engine.connect() as connection:
            return _inspection(engine, connection)
    finally:
        engine.dispose()


def _is_there(url: URL) -> bool:
    if url.get_backend_name() != "sqlite":
        return True
    return not is_memory(url) and Path(str(url.database).removeprefix("file:")).exists()


def _inspection(engine: Engine, connection: Connection) -> Inspection:
    revision = current_revision(connection)
    refuse_foreign(engine, connection, revision)
    counts = {}
    if revision == HEAD:
        counts = {name: connection.scalar(select(func.count()).select_from(row)) or 0 for name, row in COUNTED.items()}
    name = shown(engine.url)
    if engine.dialect.name != "sqlite":
        version = ".".join(map(str, engine.dialect.server_version_info or ()))
        return Inspection(name, revision, f"PostgreSQL {version}", counts=counts)
    found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
    return Inspection(
        name=name,
        revision=revision,
        library=sqlite_name(engine),
        journal_mode=str(connection.exec_driver_sql("PRAGMA journal_mode").scalar()),
        wal_is_safe=wal_is_safe(sqlite_version(engine)),
        damage="" if found == "ok" else found,
        counts=counts,
    )

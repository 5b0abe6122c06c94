"""Backup and restore of a whole database: one SQLite file of the same schema, wherever it is from and goes to.

API keys are in it as what they are in the database, digests. What passes is not: sessions and links, leases and claims,
and who is at work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, LargeBinary, Table, delete, func, insert, select, text

from .database import STORED, row_counts
from .engine import choose_journal, clear_errors, is_memory, make_engine, parse_url, reading_url, shown, sqlite_file
from .errors import StoreError
from .jobs import JobState
from .leases import Change, changing
from .models import (
    ClaimRow,
    ConfirmationRow,
    CostModelRow,
    JobRow,
    KeyRow,
    RepeatRow,
    Row,
    TargetRow,
    TunerRow,
    UploadRow,
)
from .reading import NoDatabase
from .schema import HEAD, current_revision, refuse_foreign, upgrade
from .sql_store import open_store

PASSING = tuple(Row.metadata.tables[row.__tablename__] for row in (ClaimRow, TunerRow))
"""Tables that say who is at work at this moment."""

COUNTED: dict[str, type[Row]] = {
    **STORED,
    "repeats": RepeatRow,
    "confirmations": ConfirmationRow,
    "models": UploadRow,
    "cost_models": CostModelRow,
    "keys": KeyRow,
}

IN_WORDS = {KeyRow.__tablename__: "API keys", UploadRow.__tablename__: "models", TargetRow.__tablename__: "machines"}
"""What people call the rows of tables whose names they don't know."""

ROWS_AT_ONCE = 1000
PIECES_AT_ONCE = 8  # of uploads, which are large

SQLITE_MAGIC = b"SQLite format 3\0"
WRITE_FORMAT = 18  # place of the byte of a SQLite file that is 2 in WAL mode


@dataclass(frozen=True, slots=True)
class Contents:
    """What a backup holds, or a restore brought."""

    db: str  # URL of the database without a password
    file: Path
    size_bytes: int  # of the file
    revision: str  # of the schema in the file
    counts: Mapping[str, int]  # rows by kind; empty where the schema in the file is an older one


def backup(url: str, file: Path, *, wait_s: float = 60.0) -> Contents:
    """Copy the database at a URL, as it is at one moment, into a new file that only its owner may read.

    Other processes may go on writing meanwhile. The file appears when it is complete and checked. An older schema of a
    SQLite database is kept. Raises NoDatabase, StoreError as `open_store` does and where the file is there already, and
    OSError where it can't be written.
    """
    parsed = parse_url(url)
    if file.is_dir():
        raise StoreError(f"{str(file)!r} is a folder; name a file in it")
    if file.exists() or file.is_symlink():
        raise StoreError(f"{str(file)!r} is there already, and a backup overwrites nothing")
    if parsed.get_backend_name() == "sqlite" and (is_memory(parsed) or not sqlite_file(parsed).exists()):
        raise NoDatabase(f"{shown(parsed)}: there is no such database")
    engine = make_engine(parsed, wait_s)
    try:
        with _partial(file) as partial:
            if engine.dialect.name == "sqlite":
                _copy_file(engine, partial, file, wait_s)
            else:
                _copy_server(engine, partial, file)
            with _opened(_file_url(partial), repr(str(file))) as copy:
                revision = _checked(copy, shown(parsed))  # what is wrong with the copy is so of the database
                counts = _forget_passing(copy) if revision == HEAD else {}
            _sync(partial)
            partial.rename(file)
            _sync(file.parent)
    finally:
        engine.dispose()
    return Contents(shown(parsed), file, file.stat().st_size, revision, counts)


def restore(file: Path, url: str, *, wait_s: float = 60.0) -> Contents:
    """Fill the database at a URL, which must be empty or not be there, with a backup. All of it or nothing.

    A backup of an older schema is migrated on the way and stays as it is. Leases in it are over: jobs that were running
    are queued, or paused where they belong to a command. Raises StoreError, and OSError where the file can't be read.
    """
    parsed = parse_url(url)
    if is_memory(parsed):
        raise StoreError(f"{shown(parsed)}: what is restored into memory is gone at once")
    if _is_same(parsed, file):
        raise StoreError(f"{str(file)!r} is the database itself; restore fills another one, which is empty")
    with _backup_engine(file) as (source, revision):
        _refuse_used(parsed, wait_s)
        with (
            open_store(url, wait_s=wait_s) as store,
            source.connect() as connection,
            changing(store.database) as change,
        ):
            _fill(connection, change)
            counts = row_counts(change.session.connection(), COUNTED)
    return Contents(shown(parsed), file, file.stat().st_size, revision, counts)


# Into a file


@contextmanager
def _partial(file: Path) -> Iterator[Path]:
    """A new file beside `file` that only its owner may read; removed in the end, unless it was renamed.

    What goes wrong with it is told of `file`, of which alone people know.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            yield partial
        finally:
            for name in (partial.name, f"{partial.name}-journal"):
                partial.with_name(name).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _copy_file(engine: Engine, partial: Path, file: Path, wait_s: float) -> None:
    """All pages of a SQLite database at one moment, by its backup interface; `file` is what it is to be called."""
    module: Any = engine.dialect.loaded_dbapi
    with clear_errors(engine.url):
        with engine.connect() as connection:
            _revision(engine, connection, shown(engine.url))
        choose_journal(engine, wait_s)
        with closing(engine.raw_connection()) as source, closing(module.connect(partial)) as copy:
            try:
                source.driver_connection.backup(copy)  # type: ignore[union-attr]
                copy.execute("PRAGMA journal_mode=DELETE")  # so that it is one file
            except module.Error as error:
                raise StoreError(f"{shown(engine.url)} can't be copied to {str(file)!r}: {error}") from error


def _copy_server(engine: Engine, partial: Path, file: Path) -> None:
    """All rows of a PostgreSQL database at one moment; `file` is what the copy is to be called."""
    snapshot = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    with clear_errors(engine.url), snapshot.connect() as source:
        revision = _revision(engine, source, shown(engine.url))
        if revision != HEAD:
            mend = f"bring it to {HEAD} first: tunewright db upgrade"
            raise StoreError(f"{shown(engine.url)}: its schema is {revision}, so it can't be copied; {mend}")
        with _opened(_file_url(partial), repr(str(file))) as copy:
            upgrade(copy)
            with copy.begin() as connection:
                _copy_rows(source, connection)


def _forget_passing(copy: Engine) -> dict[str, int]:
    """Take out what passes. How many rows are left."""
    with copy.connect() as connection:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    with copy.begin() as connection:
        for table in PASSING:
            connection.execute(delete(table))
        connection.execute(delete(KeyRow).where(KeyRow.is_passing))
        return row_counts(connection, COUNTED)


def _sync(path: Path) -> None:
    """Have the file, or the entries of the folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems can't sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Out of a file


@contextmanager
def _backup_engine(file: Path) -> Iterator[tuple[Engine, str]]:
    """An engine on a backup, at `HEAD`, and the revision of the backup."""
    with file.open("rb") as start:
        header = start.read(100)
    if len(header) < 100 or not header.startswith(SQLITE_MAGIC):
        raise StoreError(f"{str(file)!r} is no backup: it is no SQLite file")
    if header[WRITE_FORMAT] == 2:
        mend = f"tunewright backup FILE --db sqlite:///{file} makes one of it"
        raise StoreError(f"{str(file)!r} is a database in use, not a backup; {mend}")
    with _opened(reading_url(file, immutable="1"), repr(str(file))) as original:
        revision = _checked(original, repr(str(file)))
        if revision == HEAD:
            yield original, revision
            return
    with _migrated(file) as engine:
        yield engine, revision


@contextmanager
def _migrated(file: Path) -> Iterator[Engine]:
    """An engine on a copy of a backup that is brought to `HEAD`."""
    with tempfile.TemporaryDirectory(prefix="tunewright-") as folder:
        copy = Path(folder) / "migrated.sqlite"
        place = f"{str(file)!r}, copied to {tempfile.gettempdir()} to migrate it (TMPDIR names another folder)"
        try:
            shutil.copyfile(file, copy)
        except OSError as error:
            raise StoreError(f"{place}: {error.strerror}") from error
        with _opened(_file_url(copy), place) as engine:
            upgrade(engine)
            yield engine


def _is_same(url: URL, file: Path) -> bool:
    """Whether a file is that of the database at a URL."""
    is_file = url.get_backend_name() == "sqlite" and file.exists() and sqlite_file(url).exists()
    return is_file and file.samefile(sqlite_file(url))


def _refuse_used(url: URL, wait_s: float) -> None:
    """Raises StoreError for a database of another schema. Whether one of this schema is empty shows later."""
    if url.get_backend_name() == "sqlite" and not sqlite_file(url).exists():
        return
    engine = make_engine(url, wait_s)
    try:
        with clear_errors(engine.url), engine.connect() as connection:
            revision = current_revision(connection)
            refuse_foreign(engine, connection, revision)
            if revision not in (None, HEAD):
                raise StoreError(f"{shown(url)} is in use, with the schema {revision}; restore fills an empty database")
    finally:
        engine.dispose()


def _fill(source: Connection, change: Change) -> None:
    """Copy a backup into an empty database, and end the leases in it."""
    target = change.session.connection()
    tables = [table for table in Row.metadata.sorted_tables if table not in PASSING]
    if target.dialect.name != "sqlite":  # where this transaction has the only right to write anyway
        target.execute(text(f"LOCK TABLE {', '.join(table.name for table in tables)} IN EXCLUSIVE MODE"))
    for table in tables:
        if target.scalar(select(func.count()).select_from(table)):
            held = IN_WORDS.get(table.name, table.name.replace("_", " "))
            raise StoreError(f"{change.database} is in use: it holds {held}; restore fills an empty database")
    _copy_rows(source, target)
    if target.dialect.name != "sqlite":
        _continue_sequences(target)
    for row in change.session.scalars(select(JobRow).where(JobRow.state == JobState.RUNNING.value)).all():
        change.lose(row)
        row.attempts = max(0, row.attempts - 1)  # nobody lost it
        change.settle(row, JobState.PAUSED if row.attached else JobState.QUEUED)


def _continue_sequences(target: Connection) -> None:
    """Let the ids of new rows begin after those that are there."""
    for table in Row.metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            last = target.scalar(select(func.max(column)))
            target.execute(select(func.setval(sequence, last or 1, last is not None)))


# Both ways


def _copy_rows(source: Connection, target: Connection) -> None:
    for table in Row.metadata.sorted_tables:
        if table in PASSING:
            continue
        rows = select(table).order_by(*table.primary_key)
        if table is KeyRow.__table__:
            rows = rows.where(KeyRow.is_passing.is_(False))
        result = source.execute(rows.execution_options(yield_per=_rows_at_once(table)))
        for part in result.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in part])


def _rows_at_once(table: Table) -> int:
    is_large = any(isinstance(column.type, LargeBinary) for column in table.columns)
    return PIECES_AT_ONCE if is_large else ROWS_AT_ONCE


@contextmanager
def _opened(url: URL, name: str) -> Iterator[Engine]:
    """An engine on a file that nobody else has; `name` is what people call it."""
    engine = make_engine(url, wait_s=0)
    try:
        with clear_errors(engine.url, name):
            yield engine
    finally:
        engine.dispose()


def _file_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path.absolute()))


def _checked(engine: Engine, name: str) -> str:
    """The revision of the schema in a file. Raises StoreError where what is called `name` is damaged, or no backup."""
    with engine.connect() as connection:
        found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if found != "ok" or dangling:
            what = " ".join(found.split()) if found != "ok" else "rows are missing"
            raise StoreError(f"{name} is damaged: {what}")
        return _revision(engine, connection, name)


def _revision(engine: Engine, connection: Connection, name: str) -> str:
    revision = current_revision(connection)
    refuse_foreign(engine, connection, revision, name)
    if revision is None:
        raise NoDatabase(f"{name}: there is nothing of tunewright in this database")
    return revision

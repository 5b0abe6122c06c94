"""Backup and restore of a whole database: one SQLite file of the same schema, for any kind of database.

It has the digests of API keys. It has nothing temporary: no sessions and links, leases and claims, nor tuners.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, LargeBinary, Table, delete, func, insert, select, text
from sqlalchemy import exc as sql

from tunewright.codegen.write_faults import naming, sync

from .database import MAIN_TABLES, row_counts
from .digests import check_digests, store_digests
from .engine import (
    Watch,
    immutable_url,
    is_memory,
    is_missing,
    leave_unsafe_journal,
    make_engine,
    make_reader,
    one_line,
    parse_url,
    redact,
    sqlite_file,
    translate_errors,
)
from .errors import Damaged, StoreError
from .job import JobState
from .leases import Change, begin_change
from .reader import NoDatabase
from .schema import HEAD, METADATA, current_revision, refuse_foreign, upgrade
from .store import open_store
from .tables import (
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
from .webhooks import give_up_waiting

TRANSIENT_TABLES = tuple(METADATA.tables[row.__tablename__] for row in (ClaimRow, TunerRow))
"""Tables of what goes on at this moment."""

LASTING_TABLES = [table for table in METADATA.sorted_tables if table not in TRANSIENT_TABLES]
"""Tables that are restored, each after those that it refers to."""

COUNT_TABLES: dict[str, type[Row]] = {
    **MAIN_TABLES,
    "repeats": RepeatRow,
    "confirmations": ConfirmationRow,
    "models": UploadRow,
    "cost_models": CostModelRow,
    "keys": KeyRow,
}

ROW_NAMES = {KeyRow.__tablename__: "API keys", UploadRow.__tablename__: "models", TargetRow.__tablename__: "machines"}
"""Words for rows of tables with unfamiliar names."""

ROWS_AT_ONCE = 1000
PIECES_AT_ONCE = 8  # of uploads, which are large
PAGES_AT_ONCE = 4096  # of a file; between them Ctrl-C is heard
STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine; between them too

SQLITE_MAGIC = b"SQLite format 3\0"
WRITE_FORMAT = 18  # place of the byte of a SQLite file that is 2 in WAL mode


@dataclass(frozen=True, slots=True)
class BackupContents:
    """The contents of a backup, or of a restored database."""

    db: str  # URL of the database without a password
    file: Path
    size_bytes: int  # of the file
    revision: str  # of the schema in the file
    counts: Mapping[str, int]  # rows by kind; empty where the schema in the file is an older one
    has_digests: bool  # False: the file is of a version whose backups had none, so not all damage of it is seen


def _ignore(_: str) -> None:
    """Watch nothing."""


def backup(url: str, file: Path, *, wait_s: float = 60.0, watch: Watch = _ignore) -> BackupContents:
    """Copy the database at a URL, as it is at one moment, into a new file that only its owner may read.

    Other processes may write meanwhile. The file appears when it is complete and checked. A SQLite database of an older
    schema is copied as it is. Raises NoDatabase, StoreError as `open_store` does and where the file exists, and OSError
    where it can't be written.
    """
    parsed = parse_url(url)
    if file.is_dir():
        raise StoreError(f"{str(file)!r} is a folder; name a file in it")
    if file.exists() or file.is_symlink():
        raise StoreError(f"{str(file)!r} is there already, and a backup overwrites nothing")
    if is_memory(parsed) or is_missing(parsed):
        raise NoDatabase(f"{redact(parsed)}: there is no such database")
    engine = make_reader(parsed, wait_s)
    try:
        with _write_partial(file) as partial:
            if engine.dialect.name == "sqlite":
                _copy_file(engine, partial, file, wait_s, watch)
            else:
                _copy_server(engine, partial, file, watch)
            with _open_file(_file_url(partial), redact(parsed)) as copy:
                revision = _check(copy, redact(parsed), watch)  # damage of the copy is damage of the database
            with _open_file(_file_url(partial), repr(str(file))) as copy:
                counts = _forget_transient(copy) if revision == HEAD else {}
                with copy.begin() as connection:
                    store_digests(connection, redact(parsed), watch)
            sync(partial)
            partial.rename(file)
            sync(file.parent)
    finally:
        engine.dispose()
    return BackupContents(redact(parsed), file, file.stat().st_size, revision, counts, has_digests=True)


def restore(file: Path, url: str, *, wait_s: float = 60.0, watch: Watch = _ignore) -> BackupContents:
    """Fill the database at a URL, which must be empty or missing, with a backup. All of it or nothing.

    The backup is checked before anything is touched. One of an older schema is migrated as a copy. Leases in it end:
    running jobs are queued, or paused if they belong to a command. What waits to be told to webhooks is given up: their
    receivers may know it by now, from the database that it is of. Raises StoreError, and OSError where the file can't
    be read.
    """
    parsed = parse_url(url)
    if is_memory(parsed):
        raise StoreError(f"{redact(parsed)}: what is restored into memory is gone at once")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite and file.exists() and not is_missing(parsed) and file.samefile(sqlite_file(parsed)):
        raise StoreError(f"{str(file)!r} is the database itself; restore fills another one, which is empty")
    with _advise(file), _backup_engine(file, watch) as (source, revision, has_digests):
        _refuse_used(parsed, wait_s)
        with (
            open_store(url, wait_s=wait_s) as store,
            source.connect() as connection,
            begin_change(store.database) as change,
        ):
            _fill(connection, change, repr(str(file)), watch)
            counts = row_counts(change.session.connection(), COUNT_TABLES)
    return BackupContents(redact(parsed), file, file.stat().st_size, revision, counts, has_digests)


# Into a file


@contextmanager
def _write_partial(file: Path) -> Iterator[Path]:
    """A new file beside `file` that only its owner may read; removed at the end, unless it was renamed.

    Errors name `file`, as users know only that.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with naming(file):
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            yield partial
        finally:
            for name in (partial.name, f"{partial.name}-journal"):
                partial.with_name(name).unlink(missing_ok=True)


def _copy_file(engine: Engine, partial: Path, file: Path, wait_s: float, watch: Watch) -> None:
    """Copy all pages of a SQLite database at one moment, by its backup interface; errors name `file`."""
    module: Any = engine.dialect.loaded_dbapi

    def tell(_: int, left: int, all_pages: int) -> None:
        watch(f"copying, {1 - left / max(all_pages, 1):.0%}")

    with translate_errors(engine.url):
        with engine.connect() as connection:
            _revision(engine, connection, redact(engine.url))
        leave_unsafe_journal(engine, wait_s)
        with engine.connect() as source, closing(module.connect(partial)) as copy:
            driver: Any = source.connection.driver_connection
            try:
                current_revision(source)  # begins a transaction, so that all pieces are of one moment
                driver.backup(copy, pages=PAGES_AT_ONCE, progress=tell)
                copy.execute("PRAGMA journal_mode=DELETE")  # so that it is one file
            except module.Error as error:
                raise StoreError(f"{redact(engine.url)} can't be copied to {str(file)!r}: {error}") from error


def _copy_server(engine: Engine, partial: Path, file: Path, watch: Watch) -> None:
    """Copy all rows of a PostgreSQL database at one moment; errors name `file`."""
    snapshot = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    with translate_errors(engine.url), snapshot.connect() as source:
        revision = _revision(engine, source, redact(engine.url))
        if revision != HEAD:
            advice = f"bring it to {HEAD} first: tunewright db upgrade"
            raise StoreError(f"{redact(engine.url)}: its schema is {revision}, so it can't be copied; {advice}")
        with _open_file(_file_url(partial), repr(str(file))) as copy:
            upgrade(copy)
            with copy.begin() as connection:
                _copy_rows(source, connection, redact(engine.url), watch)


def _forget_transient(copy: Engine) -> dict[str, int]:
    """Delete temporary rows. Numbers of the rows that are left."""
    with copy.connect() as connection:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    with copy.begin() as connection:
        for table in TRANSIENT_TABLES:
            connection.execute(delete(table))
        connection.execute(delete(KeyRow).where(KeyRow.is_passing))
        return row_counts(connection, COUNT_TABLES)


# Out of a file


@contextmanager
def _advise(file: Path) -> Iterator[None]:
    """Say what to do where a backup is damaged."""
    try:
        yield
    except Damaged as error:
        if error.name != repr(str(file)):
            raise
        raise StoreError(f"{error}; nothing was restored, so restore another copy of it") from error


@contextmanager
def _backup_engine(file: Path, watch: Watch) -> Iterator[tuple[Engine, str, bool]]:
    """An engine on a backup, at `HEAD`, the revision of the backup, and whether it has digests."""
    with file.open("rb") as start:
        header = start.read(100)
    if len(header) < 100 or not header.startswith(SQLITE_MAGIC):
        raise StoreError(f"{str(file)!r} is no backup: it is no SQLite file")
    if header[WRITE_FORMAT] == 2:
        advice = f"tunewright backup FILE --db sqlite:///{file} makes one of it"
        raise StoreError(f"{str(file)!r} is a database in use, not a backup; {advice}")
    with _open_file(immutable_url(file), repr(str(file))) as original:
        revision = _check(original, repr(str(file)), watch)
        with original.connect() as connection:
            has_digests = check_digests(connection, repr(str(file)), watch)
        if revision == HEAD:
            yield original, revision, has_digests
            return
    with _migrate_copy(file) as engine:
        yield engine, revision, has_digests


@contextmanager
def _migrate_copy(file: Path) -> Iterator[Engine]:
    """An engine on a copy of a backup, migrated to `HEAD`."""
    with tempfile.TemporaryDirectory(prefix="tunewright-") as folder:
        copy = Path(folder) / "migrated.sqlite"
        place = f"{str(file)!r}, copied to {tempfile.gettempdir()} to migrate it (TMPDIR names another folder)"
        try:
            shutil.copyfile(file, copy)
        except OSError as error:
            raise StoreError(f"{place}: {error.strerror}") from error
        with _open_file(_file_url(copy), place) as engine:
            upgrade(engine)
            yield engine


def _refuse_used(url: URL, wait_s: float) -> None:
    """Raises StoreError for a database that is not empty, before anything of it is touched."""
    if is_missing(url):
        return
    engine = make_reader(url, wait_s)
    try:
        with translate_errors(engine.url), engine.connect() as connection:
            revision = current_revision(connection)
            refuse_foreign(engine, connection, revision)
            if revision not in (None, HEAD):
                raise StoreError(
                    f"{redact(url)} is in use, with the schema {revision}; restore fills an empty database"
                )
            if revision == HEAD:
                _refuse_rows(connection, redact(url))
    finally:
        engine.dispose()


def _refuse_rows(target: Connection, name: str) -> None:
    """Raises StoreError, naming `name`, where there is a row in any table that is restored."""
    for table in LASTING_TABLES:
        if target.scalar(select(func.count()).select_from(table)):
            contents = ROW_NAMES.get(table.name, table.name.replace("_", " "))
            raise StoreError(f"{name} is in use: it holds {contents}; restore fills an empty database")


def _fill(source: Connection, change: Change, name: str, watch: Watch) -> None:
    """Copy the backup `name` into an empty database, end its leases, and give up what waits to be told."""
    target = change.session.connection()
    if target.dialect.name != "sqlite":  # SQLite has one writer anyway
        target.execute(text(f"LOCK TABLE {', '.join(table.name for table in LASTING_TABLES)} IN EXCLUSIVE MODE"))
    _refuse_rows(target, str(change.database))
    _copy_rows(source, target, name, watch)
    if target.dialect.name != "sqlite":
        _continue_sequences(target)
    for row in change.session.scalars(select(JobRow).where(JobRow.state == JobState.RUNNING.value)).all():
        change.end_lease(row)
        row.attempts = max(0, row.attempts - 1)  # it was no loss
        change.settle(row, JobState.PAUSED if row.attached else JobState.QUEUED)
    give_up_waiting(change.session, "it waited in a backup that was restored")


def _continue_sequences(target: Connection) -> None:
    """Let the ids of new rows begin after the existing ones."""
    for table in METADATA.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            last = target.scalar(select(func.max(column)))
            target.execute(select(func.setval(sequence, last or 1, last is not None)))


# Both ways


def _copy_rows(source: Connection, target: Connection, name: str, watch: Watch) -> None:
    """Copy all rows that last. Raises Damaged, naming the source `name`, where one of them can't be."""
    for table in LASTING_TABLES:
        number = 0
        try:
            for rows in _read_rows(source, table, name):
                watch(f"copying {table.name}, row {number:,}")
                target.execute(insert(table), rows)
                number += len(rows)
        except (sql.OperationalError, sql.InterfaceError, sql.InternalError):  # of the target, not of the rows
            raise
        except (sql.StatementError, ValueError, TypeError) as error:
            raise Damaged(name, f"its table {table.name} can't be copied: {one_line(error)}") from error


def _read_rows(source: Connection, table: Table, name: str) -> Iterator[list[dict[str, Any]]]:
    rows = select(table).order_by(*table.primary_key)
    if table is KeyRow.__table__:
        rows = rows.where(KeyRow.is_passing.is_(False))
    is_large = any(isinstance(column.type, LargeBinary) for column in table.columns)
    with translate_errors(source.engine.url, name):
        result = source.execute(rows.execution_options(yield_per=PIECES_AT_ONCE if is_large else ROWS_AT_ONCE))
        for partition in result.mappings().partitions():
            yield [dict(row) for row in partition]


@contextmanager
def _open_file(url: URL, name: str) -> Iterator[Engine]:
    """An engine on a file that no other process uses; errors name `name`."""
    engine = make_engine(url, wait_s=0)
    try:
        with translate_errors(engine.url, name):
            yield engine
    finally:
        engine.dispose()


def _file_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path.absolute()))


def _check(engine: Engine, name: str, watch: Watch) -> str:
    """The revision of the schema in a file. Raises Damaged and StoreError, naming `name`."""
    watch("checking")
    with engine.connect() as connection, interruptible(connection):
        damage = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if damage != "ok" or dangling:
            fault = " ".join(damage.split()) if damage != "ok" else "rows are missing"
            raise Damaged(name, fault)
        return _revision(engine, connection, name)


@contextmanager
def interruptible(connection: Connection) -> Iterator[None]:
    """Let Ctrl-C end a long statement, which SQLite would go through with first."""
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: 0, STEPS_BETWEEN_LOOKS)
    try:
        yield
    except sql.OperationalError as error:
        if "interrupted" not in one_line(error):
            raise
        raise KeyboardInterrupt from error  # SQLite has swallowed the one that was raised in the handler
    finally:
        driver.set_progress_handler(None, 0)


def _revision(engine: Engine, connection: Connection, name: str) -> str:
    revision = current_revision(connection)
    refuse_foreign(engine, connection, revision, name)
    if revision is None:
        raise NoDatabase(f"{name}: there is nothing of tunewright in this database")
    return revision

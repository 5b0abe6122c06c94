"""Connections: drivers, settings, and one clear line for each error of a database."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy import exc as sql

from .errors import Damaged, Reason, StoreError, Unreachable, Unreadable, Unwritable
from .sqlite_library import sqlite_module, wal_is_safe

WRITE_OPTION = "tunewright_writes"
"""Execution option of writing connections: on SQLite such a transaction begins with the write lock."""

strict_json = partial(json.dumps, allow_nan=False)
"""JSON that every database takes: PostgreSQL refuses infinities, SQLite would store them."""

URL_FORMS = "sqlite:///FILE or postgresql://USER@HOST/NAME"

OLDEST_SQLITE = (3, 35, 0)
"""The first version with RETURNING."""

IDLE_LIMIT = "60s"
"""PostgreSQL ends a transaction whose process hangs for this long, so that its locks are released."""

LONGEST_MESSAGE = 240
"""Characters of a driver's message that are shown."""

Watch = Callable[[str], None]
"""Is told what goes on in a call that may take long."""

_file_lock = threading.Lock()


def parse_url(text: str) -> URL:
    """The URL with its driver. Raises StoreError for no URL, or one of an unsupported database."""
    try:
        url = make_url(text)
    except (sql.ArgumentError, ValueError):
        quoted = "this" if "@" in text else repr(text)  # there may be a password in it
        raise StoreError(f"a database URL is {URL_FORMS}, not {quoted}") from None
    match url.get_backend_name():
        case "sqlite":
            return url.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case backend:
            raise StoreError(f"a database URL is {URL_FORMS}; {backend} is not supported")


def make_engine(url: URL, wait_s: float, *, reads_only: bool = False) -> Engine:
    """An engine for a parsed URL. `wait_s` is how long to wait for a lock of another process.

    `reads_only`: its connections refuse to write. What a process that was killed left half written is still undone.
    """
    make = _sqlite_engine if url.get_backend_name() == "sqlite" else _postgres_engine
    return make(url, wait_s, reads_only)


def make_reader(url: URL, wait_s: float) -> Engine:
    """An engine that only reads, and needs no right to write: a file stays as it is."""
    engine = make_engine(url, wait_s, reads_only=True)
    # A database in memory, one with options of its own, and a server have no plain file.
    is_plain = url.get_backend_name() == "sqlite" and not is_memory(url) and not str(url.database).startswith("file:")
    path = sqlite_file(url)
    if is_plain and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> Any:
            return _connect_read_only(engine.dialect.loaded_dbapi, path, options)

    return engine


def _connect_read_only(module: Any, path: Path, options: dict[str, Any]) -> Any:
    """A connection to a SQLite file that may not be written."""
    name = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = module.connect(name, uri=True, **options)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except module.Error:
        connection.close()
        if Path(f"{path}-wal").exists():  # another process may be writing
            raise
        # SQLite can't read a file in WAL mode without making two files beside it, unless it is immutable.
        connection = module.connect(f"{name}&immutable=1", uri=True, **options)
    return connection


def one_line(error: BaseException) -> str:
    """A driver's message on one line. It may quote a value of any length."""
    text = " ".join(str(getattr(error, "orig", error)).split())
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}..."


@contextmanager
def translate_errors(url: URL, name: str = "") -> Iterator[None]:
    """Turn errors of the outside world, and numbers too large, into StoreError; wrong SQL and broken constraints stay.

    Errors name `name`, by default the URL.
    """
    name = name or redact(url)
    try:
        yield
    except OverflowError as error:
        if "SQLite" not in str(error):
            raise
        raise StoreError(f"{name}: {TOO_LARGE}") from error
    except (sql.ProgrammingError, sql.IntegrityError, sql.DataError, sql.NotSupportedError) as error:
        if getattr(error.orig, "sqlstate", None) == TOO_LARGE_STATE:
            raise StoreError(f"{name}: {TOO_LARGE}") from error
        raise
    except sql.DBAPIError as error:
        message = one_line(error)
        if error.connection_invalidated or _is_away(error):
            raise Unreachable(f"{name}: {message}") from error
        if (reason := _unwritable(error, message)) is not None:
            advice = "; nothing is stored until there is space on its disk" if reason == "disk full" else ""
            raise Unwritable(f"{name}: {message}{advice}", reason) from error
        if DAMAGE.search(message):
            raise Damaged(name, message) from error
        if "database is locked" in message:
            message += ": another process is writing to it"
        raise StoreError(f"{name}: {message}") from error
    except Unreadable as error:
        raise Damaged(name, error.fault) from error
    except sql.TimeoutError as error:
        raise StoreError(f"{name}: all connections of this process are in use") from error


TOO_LARGE = "a number is larger than any that it holds, which have at most 64 bits"
"""What is said of numbers that go beyond the type of their column or parameter."""

TOO_LARGE_STATE = "22003"
"""The same as SQLSTATE of PostgreSQL: a numeric value out of range."""

UNWRITABLE_ERRORS: dict[str, Reason] = {
    "database or disk is full": "disk full",
    "disk I/O error": "disk fails",
    "readonly database": "database read-only",
}
"""Messages of SQLite where nothing can be stored."""

UNWRITABLE_STATES: dict[str, Reason] = {"53100": "disk full", "58030": "disk fails", "25006": "database read-only"}
"""The same as SQLSTATEs of PostgreSQL: no space left; an I/O error; a standby, or a read-only database."""


DAMAGE = re.compile("malformed|Could not decode to UTF-8")
"""Messages of SQLite about what it would not have written."""


def _unwritable(error: sql.DBAPIError, message: str) -> Reason | None:
    """Why nothing can be stored; None for other errors."""
    if state := getattr(error.orig, "sqlstate", None):
        return UNWRITABLE_STATES.get(str(state))
    return next((reason for text, reason in UNWRITABLE_ERRORS.items() if text in message), None)


AWAY_STATES = re.compile("08...|57P0[1-3]")
"""SQLSTATEs of PostgreSQL: connection exceptions; ended by an administrator, by a crash, not ready to connect yet."""

REFUSAL = re.compile("FATAL: .*(authentication|does not exist|pg_hba.conf|not permitted|permission denied|protocol)")
"""Messages of PostgreSQL to connections that it will refuse later, too."""


def _is_away(error: sql.DBAPIError) -> bool:
    """Whether a server could not be reached or ended the connection."""
    if state := getattr(error.orig, "sqlstate", None):
        return AWAY_STATES.fullmatch(str(state)) is not None
    # Of a connection that can't be made the driver knows no SQLSTATE.
    if not isinstance(error, sql.OperationalError) or not type(error.orig).__module__.startswith("psycopg"):
        return False
    return REFUSAL.search(str(error.orig)) is None


def redact(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)


def is_memory(url: URL) -> bool:
    """Whether it is a SQLite database without a file."""
    return url.get_backend_name() == "sqlite" and (
        url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    )


def sqlite_file(url: URL) -> Path:
    """The file of a SQLite database that has one; the URL may have a path, or a URI with options."""
    name = str(url.database)
    if not name.startswith("file:"):
        return Path(name)
    path, _, _ = name.removeprefix("file:").removeprefix("//localhost").partition("#")
    return Path(unquote(path))


def is_missing(url: URL) -> bool:
    """Whether it is a SQLite database in a missing file; of a server only a connection tells."""
    return url.get_backend_name() == "sqlite" and not is_memory(url) and not sqlite_file(url).exists()


def immutable_url(path: Path) -> URL:
    """A SQLite file that is only read, and that no process writes meanwhile."""
    name = f"file:{quote(str(path.absolute()))}"
    return URL.create("sqlite", database=name, query={"mode": "ro", "immutable": "1", "uri": "true"})


def _sqlite_engine(url: URL, wait_s: float, reads_only: bool) -> Engine:
    module: Any = sqlite_module()
    if module.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {module.sqlite_version} is too old, 3.35 is needed: pip install pysqlite3")
    options: dict[str, Any] = {}
    if is_memory(url):
        # The one connection is the database. Threads take turns with it.
        options = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": wait_s}
    engine = create_engine(
        url,
        module=module,
        json_serializer=strict_json,
        # The driver's own idea of when to begin would take no lock until the first write; see `begin`.
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": wait_s},
        **options,
    )

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA journal_size_limit={64 << 20}")
        # In WAL mode NORMAL can lose the last commits with the power, never with the process, and corrupts nothing.
        wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        connection.execute(f"PRAGMA synchronous={'NORMAL' if wal else 'FULL'}")
        if reads_only:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later fails at once where another one wrote in between, however
        # long it would wait; so writers queue up here, before they read.
        writes = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres_engine(url: URL, wait_s: float, reads_only: bool) -> Engine:
    if "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": "10"})
    try:
        engine = create_engine(url, pool_pre_ping=True, json_serializer=strict_json)
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs its driver: pip install 'tunewright[postgres]' ({error})") from error

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        settings = {
            "application_name": "tunewright",
            "lock_timeout": f"{wait_s * 1000:.0f}ms",
            "idle_in_transaction_session_timeout": IDLE_LIMIT,
        }
        if reads_only:
            settings["default_transaction_read_only"] = "on"
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()

    return engine


def make_file(url: URL) -> None:
    """Make a SQLite file that only its owner may read; an existing one stays as it is.

    SQLite gives the files beside it the same mode. Raises StoreError where the folder is missing, which may be
    mistyped.
    """
    if url.get_backend_name() != "sqlite" or is_memory(url) or str(url.database).startswith("file:"):
        return
    folder = Path(str(url.database)).parent
    with suppress(OSError):  # SQLite will say what is wrong
        if not folder.is_dir():
            raise StoreError(f"{redact(url)}: there is no folder {str(folder)!r}; make it first")
    # Closing a file ends all locks that the process has on it: no other thread may have opened it in between.
    with _file_lock, suppress(OSError):  # it is there, or SQLite will say what is wrong
        os.close(os.open(os.path.realpath(str(url.database)), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def choose_journal(engine: Engine, wait_s: float) -> None:
    """Set the journal mode of a SQLite file that is safe with this library. Does nothing for other databases.

    Raises StoreError where the file is in WAL mode, the library must not use that, and other processes have it open.
    """
    if engine.dialect.name != "sqlite" or is_memory(engine.url):
        return
    is_wal_safe = wal_is_safe(sqlite_version(engine))
    dbapi: Any = engine.dialect.loaded_dbapi
    target_mode, deadline = "wal" if is_wal_safe else "delete", time.monotonic() + wait_s
    with engine.connect() as connection:
        # Outside of a transaction, where alone the mode can change.
        cursor = connection.connection.cursor()
        mode = cursor.execute("PRAGMA journal_mode").fetchone()[0]
        while mode != target_mode:
            try:
                mode = cursor.execute(f"PRAGMA journal_mode={target_mode}").fetchone()[0]
                break
            except dbapi.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    break
                time.sleep(0.02)  # SQLite does not wait for its locks here, nor tells when they are free
        cursor.close()
    if mode == "wal" and not is_wal_safe:
        raise StoreError(
            f"{redact(engine.url)}: another process has it open in WAL mode, and {sqlite_name(engine)} could corrupt "
            "it so: pip install pysqlite3"
        )
    engine.dispose()  # connections choose `synchronous` by the mode when they are made


def leave_unsafe_journal(engine: Engine, wait_s: float) -> None:
    """For reading: `choose_journal`, but a mode that is safe with this library stays, and so does the file."""
    if engine.dialect.name == "sqlite" and not wal_is_safe(sqlite_version(engine)):
        choose_journal(engine, wait_s)


def sqlite_version(engine: Engine) -> tuple[int, ...]:
    """The version of the library in use."""
    module: Any = engine.dialect.loaded_dbapi
    return tuple(module.sqlite_version_info)


def sqlite_name(engine: Engine) -> str:
    """The library in use, e.g. "SQLite 3.53.4 (pysqlite3)"."""
    module: Any = engine.dialect.loaded_dbapi
    return f"SQLite {module.sqlite_version} ({module.__name__.partition('.')[0]})"

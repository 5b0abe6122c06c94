"""Opening a database that is there: none is made, and to read one no right to write is needed."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, Engine

from .database import Database
from .engine import choose_journal, clear_errors, is_memory, make_engine, parse_url, reading_url, shown, sqlite_file
from .errors import StoreError
from .schema import HEAD, current_revision
from .sql_store import SqlStore, open_store


class NoDatabase(StoreError):
    """There is no database at that URL yet, or it is empty."""


def open_reader(url: str, *, wait_s: float = 60.0) -> SqlStore:
    """Open the database at an SQLAlchemy URL as `open_store` does, but make none. Whoever gets it only reads.

    A SQLite file that may not be written is opened for reading alone. Another one of an older schema is migrated.
    Raises NoDatabase, and StoreError as `open_store` does.
    """
    parsed = parse_url(url)
    path = _file(parsed)
    _refuse_missing(parsed)
    if path is None or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return _open(parsed, url, wait_s)
    try:
        return _open(reading_url(path), url, wait_s, writable=False)
    except NoDatabase:
        raise
    except StoreError:
        if Path(f"{path}-wal").exists():  # others may be writing to it at this moment
            raise
        # SQLite can't read a file in WAL mode where it can't make the two files beside it, unless nobody changes it.
        return _open(reading_url(path, immutable="1"), url, wait_s, writable=False)


def open_existing(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> SqlStore:
    """Open the database at an SQLAlchemy URL as `open_store` does, but make none: to change what is in it.

    Raises NoDatabase, and StoreError as `open_store` does.
    """
    parsed = parse_url(url)
    _refuse_missing(parsed)
    return _open(parsed, url, wait_s, patience_s)


def _refuse_missing(url: URL) -> None:
    if url.get_backend_name() == "sqlite" and not is_memory(url) and not sqlite_file(url).exists():
        raise NoDatabase(f"{shown(url)}: there is no such database; tunewright tune and tunewright import make one")


def _file(url: URL) -> Path | None:
    """The file of a SQLite database; None for one in memory, one with options of its own, and on a server."""
    if url.get_backend_name() != "sqlite" or is_memory(url) or str(url.database).startswith("file:"):
        return None
    return sqlite_file(url)


def _open(opened: URL, url: str, wait_s: float, patience_s: float = 0.0, *, writable: bool = True) -> SqlStore:
    """A store on an engine for `opened`, which is the database at `url`."""
    engine = make_engine(opened, wait_s)
    database = Database(engine, patience_s)
    try:
        revision = database.patiently(lambda: _revision(engine))
        if revision == HEAD:
            if writable:
                with clear_errors(engine.url):
                    choose_journal(engine, wait_s)
            return SqlStore(database, revision)
        if revision is None:
            raise NoDatabase(f"{shown(parse_url(url))}: there is nothing of tunewright in this database")
    except BaseException:
        database.close()
        raise
    database.close()
    if not writable:
        raise StoreError(f"{shown(parse_url(url))}: its schema is {revision}, not {HEAD}, and it may not be written")
    return open_store(url, wait_s=wait_s, patience_s=patience_s)


def _revision(engine: Engine) -> str | None:
    with clear_errors(engine.url), engine.connect() as connection:
        return current_revision(connection)

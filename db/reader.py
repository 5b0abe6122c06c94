"""Opening existing databases: none is made, and reading needs no right to write."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, Engine

from .database import Database
from .engine import (
    choose_journal,
    is_memory,
    is_missing,
    make_engine,
    parse_url,
    read_only_url,
    redact,
    sqlite_file,
    translate_errors,
)
from .errors import StoreError
from .schema import HEAD, current_revision
from .store import Store, open_store


class NoDatabase(StoreError):
    """There is no database at that URL yet, or it is empty."""


def open_reader(url: str, *, wait_s: float = 60.0) -> Store:
    """Open the database at an SQLAlchemy URL for reading, as `open_store` does, but make none.

    A SQLite file that may not be written is opened read-only. Another one of an older schema is migrated. Raises
    NoDatabase, and StoreError as `open_store` does.
    """
    parsed = parse_url(url)
    _refuse_missing(parsed)
    # A database in memory, one with options of its own, and a server have no plain file.
    is_file = parsed.get_backend_name() == "sqlite" and not is_memory(parsed)
    path = None if not is_file or str(parsed.database).startswith("file:") else sqlite_file(parsed)
    if path is None or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return _open(parsed, url, wait_s)
    try:
        return _open(read_only_url(path), url, wait_s, writable=False)
    except NoDatabase:
        raise
    except StoreError:
        if Path(f"{path}-wal").exists():  # another process may be writing
            raise
        # SQLite can't read a file in WAL mode without making two files beside it, unless it is immutable.
        return _open(read_only_url(path, immutable="1"), url, wait_s, writable=False)


def open_existing(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> Store:
    """Open the database at an SQLAlchemy URL for changes, as `open_store` does, but make none.

    Raises NoDatabase, and StoreError as `open_store` does.
    """
    parsed = parse_url(url)
    _refuse_missing(parsed)
    return _open(parsed, url, wait_s, patience_s)


def _refuse_missing(url: URL) -> None:
    if is_missing(url):
        raise NoDatabase(f"{redact(url)}: there is no such database; tunewright tune and tunewright import make one")


def _open(engine_url: URL, url: str, wait_s: float, patience_s: float = 0.0, *, writable: bool = True) -> Store:
    """A store on an engine for `engine_url`, which is the database at `url`."""
    engine = make_engine(engine_url, wait_s)
    database = Database(engine, patience_s)
    try:
        revision = database.retry(lambda: _revision(engine))
        if revision == HEAD:
            if writable:
                with translate_errors(engine.url):
                    choose_journal(engine, wait_s)
            return Store(database, revision)
        if revision is None:
            raise NoDatabase(f"{redact(parse_url(url))}: there is nothing of tunewright in this database")
    except BaseException:
        database.close()
        raise
    database.close()
    if not writable:
        raise StoreError(f"{redact(parse_url(url))}: its schema is {revision}, not {HEAD}, and it may not be written")
    return open_store(url, wait_s=wait_s, patience_s=patience_s)


def _revision(engine: Engine) -> str | None:
    with translate_errors(engine.url), engine.connect() as connection:
        return current_revision(connection)

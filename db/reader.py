"""Opening existing databases: none is made, and reading needs no right to write, nor changes anything."""

from __future__ import annotations

from sqlalchemy import URL, Connection

from .database import Database
from .engine import is_missing, leave_unsafe_journal, make_reader, parse_url, redact, translate_errors
from .errors import StoreError
from .schema import HEAD, current_revision, refuse_foreign
from .store import Store, open_store


class NoDatabase(StoreError):
    """There is no database at that URL yet, or it is empty."""


def open_reader(url: str, *, wait_s: float = 60.0) -> Store:
    """Open the database at an SQLAlchemy URL for reading. None is made, and an existing one stays as it is.

    So one of an older schema is refused, and a backup remains one. Raises NoDatabase, and StoreError as `open_store`
    does.
    """
    parsed = parse_url(url)
    _refuse_missing(parsed)
    engine = make_reader(parsed, wait_s)
    database = Database(engine)
    try:
        with translate_errors(parsed):
            with engine.connect() as connection:
                revision = _revision(connection, parsed)
                if revision != HEAD:
                    refuse_foreign(engine, connection, revision)
                    raise StoreError(
                        f"{redact(parsed)}: its schema is {revision}, and this version reads {HEAD}; bring it there "
                        "with tunewright db upgrade --db URL, or fill another database with it if it is a backup: "
                        "tunewright restore FILE --db URL"
                    )
            leave_unsafe_journal(engine, wait_s)
    except BaseException:
        database.close()
        raise
    return Store(database, revision)


def open_existing(url: str, *, wait_s: float = 60.0, patience_s: float = 0.0) -> Store:
    """Open the database at an SQLAlchemy URL for changes, as `open_store` does, but make none.

    Raises NoDatabase, and StoreError as `open_store` does.
    """
    parsed = parse_url(url)
    _refuse_missing(parsed)
    database = Database(make_reader(parsed, wait_s), patience_s)

    def look() -> None:
        with translate_errors(parsed), database.engine.connect() as connection:
            _revision(connection, parsed)

    try:
        database.retry(look)
    finally:
        database.close()
    return open_store(url, wait_s=wait_s, patience_s=patience_s)


def _refuse_missing(url: URL) -> None:
    if is_missing(url):
        raise NoDatabase(f"{redact(url)}: there is no such database; tunewright tune and tunewright import make one")


def _revision(connection: Connection, url: URL) -> str:
    revision = current_revision(connection)
    if revision is None:
        raise NoDatabase(f"{redact(url)}: there is nothing of tunewright in this database")
    return revision

"""The schema of a database and how it gets to the one that this code knows.

A database that is at `HEAD` is opened without Alembic. An empty one gets the tables of `models` at once; tests see to
it that the migrations lead to the same. On any other one the migrations run. All of that is one transaction under a
lock, so of several processes that start at once one does it and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    text,
)

from .engine import WRITES, shown
from .errors import StoreError
from .models import Row

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0006"
"""The revision that `models` describes; a test compares it with the newest file in `migrations/versions`."""

LOCK = 0x74756E65  # "tune": the number of PostgreSQL's advisory lock on the schema


def upgrade(engine: Engine) -> str | None:
    """Bring the schema to `HEAD`. The revision it had before, None for an empty database.

    Raises StoreError where the database is newer than this code or holds tables of another program.
    """
    with engine.connect() as connection:
        before = current_revision(connection)
    if before == HEAD:
        return before
    with _locked(engine) as connection:
        before = current_revision(connection)
        refuse_foreign(engine, connection, before)
        if before is None:
            _create(connection)
        elif before != HEAD:  # another process may have migrated it meanwhile
            migrate(connection)
        _check_references(engine, connection)
    return before


def migrate(connection: Connection) -> None:
    """Run the migrations that are lacking, in the transaction of the connection."""
    from alembic import command

    command.upgrade(migration_config(connection), "head")


def _create(connection: Connection) -> None:
    """Make the tables in an empty database, and note the revision where Alembic looks for it."""
    Row.metadata.create_all(connection, checkfirst=False)
    primary_key = PrimaryKeyConstraint("version_num", name="alembic_version_pkc")
    version = Table("alembic_version", MetaData(), Column("version_num", String(32)), primary_key)
    version.create(connection)
    connection.execute(insert(version).values(version_num=HEAD))


def current_revision(connection: Connection) -> str | None:
    """The revision that the database says it has, None where it says nothing."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def migration_config(connection: Connection) -> Config:
    """What Alembic needs to run the migrations over a connection; `migrations/env.py` takes it from there."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    """A connection in a transaction that no other migration can be in."""
    with engine.connect().execution_options(**{WRITES: True}) as connection:
        sqlite = engine.dialect.name == "sqlite"
        if sqlite:
            # A migration rebuilds tables, which must not touch what refers to them. Inside a transaction, where
            # Alembic is, this setting can't change; the references are checked before the commit instead.
            _pragma(connection, "foreign_keys=OFF")
        try:
            with connection.begin():
                if not sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                yield connection
        finally:
            if sqlite:
                _pragma(connection, "foreign_keys=ON")


def _pragma(connection: Connection, setting: str) -> None:
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def refuse_foreign(engine: Engine, connection: Connection, revision: str | None, name: str = "") -> None:
    """Raises StoreError where the schema is newer than this code, or tables are another program's.

    `name` is what people call the database, by default its URL.
    """
    name = name or shown(engine.url)
    if revision is None:
        taken = set(inspect(connection).get_table_names()) & set(Row.metadata.tables)
        if taken:
            raise StoreError(f"{name}: its table {min(taken)} belongs to another program")
        return
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(migration_config(connection))
    if revision not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreError(
            f"{name}: its schema {revision} is newer than this version of tunewright, which knows "
            f"up to {HEAD}, or belongs to another program"
        )


def _check_references(engine: Engine, connection: Connection) -> None:
    if engine.dialect.name == "sqlite" and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(f"{shown(engine.url)}: the migration left a dangling reference; nothing was changed")

"""The schema of a database, and how it is migrated to the current one.

A database at `HEAD` is opened without Alembic. An empty one gets the tables of `METADATA` at once; a test compares them
with the migrations. On any other one the migrations run. All of that is one transaction under a lock, so of several
processes that start at once one does it and the others wait.
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

from .engine import WRITE_OPTION, redact
from .errors import StoreError
from .logs import tables as log_tables  # noqa: F401 - its tables are of METADATA
from .tables import Row

if TYPE_CHECKING:
    from alembic.config import Config

METADATA = Row.metadata
"""All tables: of `tables` and `logs.tables`."""

HEAD = "0010"
"""Their revision; a test compares it with the newest file in `migrations/versions`."""

LOCK = 0x74756E65  # "tune": the number of PostgreSQL's advisory lock on the schema


def upgrade(engine: Engine) -> str | None:
    """Bring the schema to `HEAD`. Its revision before, None for an empty database.

    Raises StoreError where the database is newer than this code or has tables of another program.
    """
    with engine.connect() as connection:
        revision = current_revision(connection)
    if revision == HEAD:
        return revision
    with _lock(engine) as connection:
        revision = current_revision(connection)
        refuse_foreign(engine, connection, revision)
        if revision is None:
            _create(connection)
        elif revision != HEAD:  # another process may have migrated it meanwhile
            migrate(connection)
        _check_references(engine, connection)
    return revision


def migrate(connection: Connection) -> None:
    """Run the missing migrations in the transaction of the connection."""
    from alembic import command

    command.upgrade(migration_config(connection), "head")


def _create(connection: Connection) -> None:
    """Make the tables in an empty database, and store the revision for Alembic."""
    METADATA.create_all(connection, checkfirst=False)
    primary_key = PrimaryKeyConstraint("version_num", name="alembic_version_pkc")
    version = Table("alembic_version", MetaData(), Column("version_num", String(32)), primary_key)
    version.create(connection)
    connection.execute(insert(version).values(version_num=HEAD))


def current_revision(connection: Connection) -> str | None:
    """The revision of the database, None without one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration to migrate over a connection, for `migrations/env.py`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _lock(engine: Engine) -> Iterator[Connection]:
    """A connection in a transaction that excludes other migrations."""
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection:
        is_sqlite = engine.dialect.name == "sqlite"
        if is_sqlite:
            # A migration rebuilds tables, which must not touch what refers to them. Inside a transaction, where
            # Alembic is, this setting can't change; the references are checked before the commit instead.
            _pragma(connection, "foreign_keys=OFF")
        try:
            with connection.begin():
                if not is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                yield connection
        finally:
            if is_sqlite:
                _pragma(connection, "foreign_keys=ON")


def _pragma(connection: Connection, setting: str) -> None:
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def refuse_foreign(engine: Engine, connection: Connection, revision: str | None, name: str = "") -> None:
    """Raises StoreError where the schema is newer than this code, or tables are another program's.

    Errors name `name`, by default the URL.
    """
    name = name or redact(engine.url)
    if revision is None:
        foreign = set(inspect(connection).get_table_names()) & set(METADATA.tables)
        if foreign:
            raise StoreError(f"{name}: its table {min(foreign)} belongs to another program")
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
        raise StoreError(f"{redact(engine.url)}: the migration left a dangling reference; nothing was changed")

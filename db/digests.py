"""Digests: what a backup says of its own contents, in a table of its own, so that `restore` sees what changed since.

SQLite's own check sees whether pages hang together, not whether a number in a row is the one that was written. A digest
is of what is in the rows, not of the bytes of the file: it outlives VACUUM and everything else that keeps them. It
finds damage and edits, not a forger, who can write another digest too.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Select, Table, Text, insert, inspect, literal_column, select, table
from sqlalchemy import exc as sql

from .engine import Watch, one_line
from .errors import Damaged

DIGESTS = Table(
    "backup_digests", MetaData(), Column("name", Text, primary_key=True), Column("sha256", Text, nullable=False)
)
"""No schema has it, so that a backup of an older one can have it too; `restore` does not copy it."""

ROWS_BETWEEN_LOOKS = 10_000
"""Rows between two words of how far it is."""


def store_digests(connection: Connection, name: str, watch: Watch) -> None:
    """Store the digest of each table of the file, in place of older ones. Raises Damaged, naming `name`."""
    DIGESTS.drop(connection, checkfirst=True)
    digests = _digests(connection, name, watch)
    DIGESTS.create(connection)
    connection.execute(insert(DIGESTS), [{"name": table_name, "sha256": digests[table_name]} for table_name in digests])


def check_digests(connection: Connection, name: str, watch: Watch) -> bool:
    """Whether there are digests. Raises Damaged, naming `name` and the table, where one is not that of its rows."""
    if not inspect(connection).has_table(DIGESTS.name):
        return False
    stored = {row.name: row.sha256 for row in connection.execute(select(DIGESTS))}
    found = _digests(connection, name, watch)
    for table_name in sorted(stored.keys() | found.keys()):
        if stored.get(table_name) != found.get(table_name):
            edited = "if it was changed on purpose, tunewright backup FILE --db URL makes a backup of it as it is"
            raise Damaged(name, f"its table {table_name} is not what was backed up ({edited})")
    return True


def _digests(connection: Connection, name: str, watch: Watch) -> dict[str, str]:
    """The digests of all tables but that of digests, by name."""
    digests = {}
    for table_name in inspect(connection).get_table_names():
        if table_name != DIGESTS.name:
            try:
                digests[table_name] = _digest(connection, table_name, watch)
            except (sql.DBAPIError, UnicodeError) as error:  # such as text that is no UTF-8
                raise Damaged(name, f"its table {table_name} can't be read: {one_line(error)}") from error
    return digests


def _digest(connection: Connection, table_name: str, watch: Watch) -> str:
    """SHA-256 of the names of the columns, then of each row in the order of storing, as Python writes them in ASCII."""
    query: Select[Any] = select(literal_column("*")).select_from(table(table_name)).order_by(literal_column("rowid"))
    result = connection.execute(query)
    digest = hashlib.sha256(ascii(list(result.keys())).encode())
    for number, row in enumerate(result):
        if number % ROWS_BETWEEN_LOOKS == 0:
            watch(f"checking {table_name}, row {number:,}")
        digest.update(ascii(tuple(row)).encode())
    return digest.hexdigest()

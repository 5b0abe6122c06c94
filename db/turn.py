"""Turn: of the processes of a database one does what only one should do."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, func, select
from sqlalchemy import exc as sql

from .database import Database
from .engine import translate_errors

LOCK_SPACE = 0x7475726E  # "turn"
"""The space of PostgreSQL's advisory locks of turns."""


class Turn:
    """Held by one process, from when it first asks until it ends. Not for two threads at once.

    The lock is that of a connection: whose process dies, or whose server goes away, loses it. Processes on a SQLite
    file are few, and on one machine: each of them has its turn.
    """

    def __init__(self, database: Database, number: int) -> None:
        self._database, self._number = database, number
        self._connection: Connection | None = None

    def is_ours(self) -> bool:
        """Whether this process is the one, from now on. Raises StoreError."""
        if self._database.is_sqlite:
            return True
        with translate_errors(self._database.engine.url):
            if self._connection is not None:
                try:
                    return self._take(self._connection)
                except sql.DBAPIError:  # it is lost, and the lock with it
                    self.close()
            connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # the pool would give it to others
            self._connection = connection
            return self._take(connection)

    def close(self) -> None:
        """Let another process have it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(sql.DBAPIError):  # it may be lost
            if not connection.invalidated:
                connection.execute(select(func.pg_advisory_unlock_all()))
        connection.close()

    def _take(self, connection: Connection) -> bool:
        place = func.concat(func.current_schema(), f" {self._number}")  # a database may hold several installations
        return bool(connection.scalar(select(func.pg_try_advisory_lock(LOCK_SPACE, func.hashtext(place)))))

"""Bell: wakes threads that wait for a change of the queue, whichever process made it.

PostgreSQL tells a connection that listens. On SQLite a connection asks at short intervals whether another one wrote to
the file. Either has a thread of its own from the first wait on, which goes on trying where the server is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy import exc as sql

from .engine import is_memory, shown

CHANNEL = "tunewright_jobs"
"""What notifications of PostgreSQL are called."""

LOOK_S = 0.1
"""How often a change of a SQLite file is looked for."""

HARK_S = 0.2
"""How long a connection listens until the thread looks whether it should end."""

PROBE_S = 10.0
"""How often a connection that listens is tried: one that was cut off tells nothing."""

LONGEST_PAUSE_S = 2.0
"""Between two attempts to reach a server that is away."""

_log = logging.getLogger("tunewright.db")


class Bell:
    """Counts how often the queue may have changed. Threads may share it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._condition = threading.Condition()
        self._rings = 0
        self._seen = threading.local()  # `rings`: the count when this thread last ended a wait
        self._ear: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_away = False  # whether that was told

    @property
    def rings(self) -> int:
        """The count, which other processes too make grow from now on."""
        self._hear_others()
        with self._condition:
            return self._rings

    def ring(self) -> None:
        """Something changed."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until the count is not `since`, by default what it was when this thread last ended a wait.

        False when the time is over without.
        """
        self._hear_others()
        known = getattr(self._seen, "rings", -1) if since is None else since
        with self._condition:
            self._condition.wait_for(lambda: self._rings != known or self._closed.is_set(), timeout_s)
            self._seen.rings = self._rings
            return self._rings != known

    def close(self) -> None:
        """End all waits, and the thread."""
        self._closed.set()
        with self._condition:
            self._condition.notify_all()
            ear = self._ear
        if ear is not None:
            ear.join(LONGEST_PAUSE_S)  # not for ever: it may be trying to reach a server, and ends after that

    def _hear_others(self) -> None:
        with self._condition:
            if self._ear is not None or self._closed.is_set() or is_memory(self._engine.url):
                return
            self._ear = threading.Thread(target=self._hear, name="tunewright-bell", daemon=True)
            self._ear.start()

    def _hear(self) -> None:
        dialect: Any = self._engine.dialect
        attend = self._look if dialect.name == "sqlite" else self._listen
        pause_s = LOOK_S
        while not self._closed.is_set():
            started_s = time.monotonic()
            try:
                with self._borrowed() as connection:
                    attend(connection)
            except (dialect.loaded_dbapi.Error, sql.SQLAlchemyError) as error:
                self._tell_away(error)
                pause_s = LOOK_S if time.monotonic() - started_s > PROBE_S else min(2 * pause_s, LONGEST_PAUSE_S)
                self._closed.wait(pause_s)

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        """A connection of the driver that is never given back to the pool."""
        borrowed = self._engine.raw_connection()
        connection: Any = borrowed.driver_connection
        borrowed.detach()
        try:
            yield connection
        finally:
            borrowed.invalidate()  # closed by the pool, it would first be rolled back, though it may be gone
            connection.close()

    def _tell_away(self, error: Exception) -> None:
        """Say once that nothing is heard from here on."""
        if not self._is_away:
            said = " ".join(str(error).split())
            _log.warning("%s: changes by other processes are not heard of for now: %s", shown(self._engine.url), said)
        self._is_away = True

    def _tell_back(self) -> None:
        """Say so where it was said that nothing is heard."""
        if self._is_away:
            _log.warning("%s: changes by other processes are heard of again", shown(self._engine.url))
        self._is_away = False

    def _look(self, connection: Any) -> None:
        before = None
        while not self._closed.is_set():
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            self._tell_back()
            if version != before:  # the first time: what was written until now was not heard
                self.ring()
            before = version
            self._closed.wait(LOOK_S)

    def _listen(self, connection: Any) -> None:
        connection.autocommit = True
        connection.execute(f"LISTEN {CHANNEL}")
        self._tell_back()
        self.ring()  # what was told until now was not heard
        probe_s = time.monotonic() + PROBE_S
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=HARK_S, stop_after=1):
                self.ring()
            if time.monotonic() > probe_s:
                connection.execute("SELECT 1")
                probe_s = time.monotonic() + PROBE_S

"""Notifier: wakes threads that wait for a change of the queue by any process.

On PostgreSQL a connection listens for notifications. On SQLite a connection polls whether another one has written to
the file. Either has its own thread from the first wait on, which keeps trying while the server is away.
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

from .engine import is_memory, redact

CHANNEL = "tunewright_jobs"
"""The channel of PostgreSQL's notifications."""

LOOK_S = 0.1
"""Interval of polling a SQLite file."""

LISTEN_S = 0.2
"""How long a connection listens before the thread checks whether to end."""

PROBE_S = 10.0
"""Interval of testing a listening connection, as a lost one just stays silent."""

LONGEST_PAUSE_S = 2.0
"""Longest pause between two attempts to reach the server."""

_log = logging.getLogger("tunewright.db")


class Notifier:
    """Counts possible changes of the queue. Threads may share it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._condition = threading.Condition()
        self._count = 0
        self._local = threading.local()  # `count` at the time when this thread last ended a wait
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._is_away = False  # whether that was logged

    @property
    def count(self) -> int:
        """The count; from now on changes by other processes count too."""
        self._start()
        with self._condition:
            return self._count

    def notify(self) -> None:
        """Count a change."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until the count is not `since`, by default its value when this thread last ended a wait.

        False on a timeout.
        """
        self._start()
        last_count = getattr(self._local, "count", -1) if since is None else since
        with self._condition:
            self._condition.wait_for(lambda: self._count != last_count or self._closed.is_set(), timeout_s)
            self._local.count = self._count
            return self._count != last_count

    def close(self) -> None:
        """End all waits, and the thread."""
        self._closed.set()
        with self._condition:
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(LONGEST_PAUSE_S)  # it may be trying to reach a server, and ends after that

    def _start(self) -> None:
        with self._condition:
            if self._thread is not None or self._closed.is_set() or is_memory(self._engine.url):
                return
            self._thread = threading.Thread(target=self._run, name="tunewright-notifier", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        dialect: Any = self._engine.dialect
        watch = self._poll if dialect.name == "sqlite" else self._listen
        pause_s = LOOK_S
        while not self._closed.is_set():
            started_s = time.monotonic()
            try:
                with self._open_connection() as connection:
                    watch(connection)
            except (dialect.loaded_dbapi.Error, sql.SQLAlchemyError) as error:
                self._warn_away(error)
                pause_s = LOOK_S if time.monotonic() - started_s > PROBE_S else min(2 * pause_s, LONGEST_PAUSE_S)
                self._closed.wait(pause_s)

    @contextmanager
    def _open_connection(self) -> Iterator[Any]:
        """A connection of the driver, detached from the pool."""
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        try:
            yield connection
        finally:
            pooled.invalidate()  # the pool would roll it back first, though it may be lost
            connection.close()

    def _warn_away(self, error: Exception) -> None:
        """Log once that changes by other processes are not noticed."""
        if not self._is_away:
            name, reason = redact(self._engine.url), " ".join(str(error).split())
            _log.warning("%s: changes by other processes are not heard of for now: %s", name, reason)
        self._is_away = True

    def _note_back(self) -> None:
        """Log that they are noticed again."""
        if self._is_away:
            _log.warning("%s: changes by other processes are heard of again", redact(self._engine.url))
        self._is_away = False

    def _poll(self, connection: Any) -> None:
        last_version = None
        while not self._closed.is_set():
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            self._note_back()
            if version != last_version:  # also the first time, for earlier changes
                self.notify()
            last_version = version
            self._closed.wait(LOOK_S)

    def _listen(self, connection: Any) -> None:
        connection.autocommit = True
        connection.execute(f"LISTEN {CHANNEL}")
        self._note_back()
        self.notify()  # for earlier changes
        probe_s = time.monotonic() + PROBE_S
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=LISTEN_S, stop_after=1):
                self.notify()
            if time.monotonic() > probe_s:
                connection.execute("SELECT 1")
                probe_s = time.monotonic() + PROBE_S

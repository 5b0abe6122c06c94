"""Outbox: entries on their way to the log, so that who tunes does not wait for a server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from tunewright.api.client.log import LogClient
from tunewright.db.logs.entry import LogEntry

MOST_WAITING = 10_000
"""Entries that wait for a server to come back."""


MOST_AT_ONCE = 50
"""Entries of one request: few enough for the time that it may take."""


class Outbox:
    """Sends entries by a thread that lives while there are any.

    The interpreter waits for it at its end, for as long as the client may take. What could not be sent waits for the
    next entry: by then the server may be back.
    """

    def __init__(self, client: LogClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: deque[LogEntry] = deque(maxlen=MOST_WAITING)
        self._thread: threading.Thread | None = None

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Send these too."""
        if self._client.server is None:
            return
        with self._lock:
            self._waiting += entries
            if self._thread is None and self._waiting and not self._client.is_resting:
                self._thread = threading.Thread(target=self._send, name="tunewright-outbox")
                self._thread.start()

    def flush(self, limit_s: float) -> bool:
        """Wait until nothing is being sent. Whether all arrived."""
        thread = self._thread
        if thread is not None:
            thread.join(limit_s)
        return self._thread is None and not self._waiting

    def _send(self) -> None:
        batch: list[LogEntry] = []
        while True:
            sent = not batch or self._client.write(batch)
            with self._lock:
                if not sent:
                    self._waiting.extendleft(reversed(batch))
                if not sent or not self._waiting:
                    self._thread = None
                    return
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]

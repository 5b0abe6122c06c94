"""Changes: tells every open event stream of this process that jobs changed, by one thread that waits for all."""

from __future__ import annotations

import asyncio
import threading

import anyio

from tunewright.db.jobs import Jobs

WAIT_S = 2.0
"""How long one wait lasts at most. Streams look then too: a notification can be lost with its connection."""

PAUSE_S = 0.05
"""Between two calls of all streams: a job that measures changes the database many times a second."""


class Changes:
    """Wakes coroutines when the queue changed in any process. `start` and `close` belong to the app's life."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next = asyncio.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="tunewright-changes", daemon=True)

    @property
    def is_stopped(self) -> bool:
        """Whether streams should end."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Begin to listen. In the event loop that the streams run in."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def next(self) -> asyncio.Event:
        """The event of the next change. Take it before reading the database, and wait for it after."""
        return self._next

    def stop(self) -> None:
        """Wake all for the last time. From any thread."""
        self._stopped.set()
        self._notify()

    async def close(self) -> None:
        """Stop, and wait for the thread."""
        self.stop()
        if self._thread.is_alive():
            await anyio.to_thread.run_sync(self._thread.join)

    def _listen(self) -> None:
        while not self._stopped.is_set():
            self._jobs.wait(WAIT_S)
            self._notify()
            self._stopped.wait(PAUSE_S)

    def _notify(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        passed, self._next = self._next, asyncio.Event()
        if self._stopped.is_set():
            self._next.set()
        passed.set()

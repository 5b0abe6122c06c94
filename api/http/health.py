"""Health: whether the process lives, whether its database can be used, and whether there is anything to tune on."""

from __future__ import annotations

import asyncio
import logging
import time

import anyio
from prometheus_client import Gauge

from tunewright.db.errors import StoreError
from tunewright.db.store import Store

from .fleet import FleetCounts
from .schemas.fleet import IsReady, Ready

LOOK_S = 0.5
"""How often the lag of the event loop is measured."""

LATE_S = 5.0
"""An event loop this late is held up by something that should not run in it."""

FRESH_S = 1.0
"""How long an answer about the database counts: anybody may ask, as often as they like."""

PATIENCE_S = 5.0
"""How long the database may take to answer."""

_log = logging.getLogger("tunewright.api")


class ServiceHealth:
    """The health of this process and its database."""

    def __init__(self, store: Store, lag: Gauge) -> None:
        self._store = store
        self._lag = lag
        self._looked_at_s = time.monotonic()
        self._answer = Ready(status="database unavailable")
        self._answered_at_s = -FRESH_S
        self._turn = asyncio.Lock()
        self._threads = anyio.CapacityLimiter(1)  # apart from those of requests: all of them may be waiting
        self.lag_s = 0.0

    async def watch(self) -> None:
        """Look at the event loop for ever."""
        while True:
            asked_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            self._looked_at_s = time.monotonic()
            self.lag_s = max(0.0, self._looked_at_s - asked_s - LOOK_S)
            self._lag.set(self.lag_s)

    @property
    def is_late(self) -> bool:
        """Whether the event loop is, or was a moment ago, held up for long."""
        return max(self.lag_s, time.monotonic() - self._looked_at_s - LOOK_S) > LATE_S

    async def database(self) -> Ready:
        """Whether the database can be read and takes what is stored, has this version's schema, and who is at work."""
        async with self._turn:
            if time.monotonic() - self._answered_at_s >= FRESH_S:
                self._answer = await self._check_database()
                self._answered_at_s = time.monotonic()
        return self._answer

    async def _check_database(self) -> Ready:
        try:
            with anyio.fail_after(PATIENCE_S):
                return await anyio.to_thread.run_sync(self._read_status, limiter=self._threads, abandon_on_cancel=True)
        except (StoreError, TimeoutError) as error:
            _log.warning("not ready", extra={"reason": str(error) or "the database does not answer"})
            return Ready(status="database unavailable")

    def _read_status(self) -> Ready:
        """The readiness by the database. Raises StoreError."""
        if not self._store.is_current():
            return Ready(status="other schema")
        counts = FleetCounts.of(self._store.fleet.tuners())
        status: IsReady = "ready" if counts.usable else "ready, no devices"
        return Ready(status=self._store.unwritable() or status, tuners=counts.tuners, devices=counts.usable)

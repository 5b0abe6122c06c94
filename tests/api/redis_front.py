"""A front for clients of Redis, for tests: on the log of a store, in a loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tunewright.api.http.access import KeyCache, RateLimits
from tunewright.api.redis.front import RedisFront
from tunewright.db.logs.logs import LogQuota
from tunewright.db.store import Store


@contextmanager
def running_front(store: Store, quota: LogQuota) -> Iterator[int]:
    """The port of a front."""
    listening, loop = socket.create_server(("127.0.0.1", 0)), asyncio.new_event_loop()
    rates = RateLimits(100_000, 100_000, 30)
    front = RedisFront(listening, store, KeyCache(store.keys), rates, quota)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(front.start(), loop).result()
    try:
        yield listening.getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(front.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

"""A cache of values that take long to make: made once for all who ask, and again when their inputs change.

A page waits for such a value only for a moment: then it shows the previous one, or that it is being made.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _CacheEntry(Generic[Value]):
    """A value that is being made or was made."""

    value: asyncio.Future[Value]
    mark: Hashable
    begun_s: float

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and there is no value."""
        return self.value.done() and (self.value.cancelled() or self.value.exception() is not None)


class AsyncCache(Generic[Value]):
    """Values by key. In one event loop.

    `most` are kept. A value whose mark has changed is made anew, but not within `renew_s` of when that was begun.
    """

    def __init__(self, most: int, renew_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._renew_s = renew_s
        self._clock = clock
        self._newest: OrderedDict[Hashable, _CacheEntry[Value]] = OrderedDict()
        self._before: dict[Hashable, Value] = {}  # what was there when the newest was begun
        self._making: set[asyncio.Future[Value]] = set()

    async def get(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[Value]],
        *,
        mark: Hashable = None,
        patience_s: float = inf,
        anew: bool = False,
    ) -> Value | None:
        """The value; an older one, or None, where it takes longer than `patience_s` to make.

        `mark` stands for all that the value follows from besides the key. `anew`: it is made from now on, even if it
        is being made already. What `make` raises, all who wait get, and nobody after them.
        """
        entry = self._newest.get(key)
        if anew or entry is None or entry.has_failed or (entry.value.done() and self._is_due(entry, mark)):
            entry = self._begin(key, make, mark)
        self._newest.move_to_end(key)
        await asyncio.wait([entry.value], timeout=None if patience_s == inf else patience_s)
        return entry.value.result() if entry.value.done() else self._before.get(key)

    def age_s(self, key: Hashable) -> float:
        """How long ago the newest value was begun; infinite where there is none."""
        entry = self._newest.get(key)
        return inf if entry is None else self._clock() - entry.begun_s

    def _is_due(self, entry: _CacheEntry[Value], mark: Hashable) -> bool:
        return entry.mark != mark and self._clock() - entry.begun_s >= self._renew_s

    def _begin(self, key: Hashable, make: Callable[[], Awaitable[Value]], mark: Hashable) -> _CacheEntry[Value]:
        old = self._newest.get(key)
        if old is not None and old.value.done() and not old.has_failed:
            self._before[key] = old.value.result()
        entry = self._newest[key] = _CacheEntry(asyncio.ensure_future(make()), mark, self._clock())
        self._making.add(entry.value)
        entry.value.add_done_callback(lambda _: self._settle(key, entry))
        while len(self._newest) > self._most:
            gone, _ = self._newest.popitem(last=False)
            self._before.pop(gone, None)
        return entry

    def _settle(self, key: Hashable, entry: _CacheEntry[Value]) -> None:
        """Drop a value that could not be made, and the previous one."""
        self._making.discard(entry.value)
        has_failed = entry.has_failed  # asked in any case: nobody else may be there to hear of an error
        if self._newest.get(key) is entry:
            self._before.pop(key, None)
            if has_failed:
                del self._newest[key]

    async def close(self) -> None:
        """Make nothing any more, and wait until nothing is being made."""
        making = list(self._making)
        for value in making:
            value.cancel()
        if making:
            await asyncio.wait(making)

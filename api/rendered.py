"""Rendered: pages as they were made a moment ago, so that many viewers of one page cost as much as one."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

KEEP_S = 1.0
"""How long a page is shown again, from when it was begun. `live.js` waits as long before it looks at what changed."""

MOST_KEPT = 64

Make = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class _Kept:
    content: asyncio.Future[bytes]
    begun_s: float


class Rendered:
    """The pages of one service, by what was asked for. In one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def get(self, asked: str, make: Make, *, anew: bool = False) -> bytes:
        """The page that `make` makes, or made a moment ago; all who ask meanwhile wait for the same.

        `anew`: made now in any case. What `make` raises, all who wait get, and nobody after them.
        """
        kept = self._kept.get(asked)
        if kept is None or anew or self._clock() - kept.begun_s >= KEEP_S:
            kept = _Kept(asyncio.ensure_future(make()), self._clock())
            kept.content.add_done_callback(lambda made: self._forget(asked, made))
            self._kept[asked] = kept
            self._kept.move_to_end(asked)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return await asyncio.shield(kept.content)  # who goes away takes the page from nobody else

    def _forget(self, asked: str, made: asyncio.Future[bytes]) -> None:
        """Keep no page that could not be made."""
        is_good = not made.cancelled() and made.exception() is None
        kept = self._kept.get(asked)
        if not is_good and kept is not None and kept.content is made:
            del self._kept[asked]

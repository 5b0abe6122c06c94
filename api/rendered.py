"""Rendered: pages as they were made a moment ago, so that many viewers of one page cost as much as one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import cast

from .kept import Kept

KEEP_S = 1.0
"""How long a page is shown again, from when it was begun. `live.js` waits as long before it looks at what changed."""

MOST_KEPT = 64


class Rendered:
    """The pages of one service, by what was asked for. In one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pages: Kept[bytes] = Kept(MOST_KEPT, clock=clock)

    async def get(self, asked: str, make: Callable[[], Awaitable[bytes]], *, anew: bool = False) -> bytes:
        """The page that `make` makes, or made a moment ago; all who ask meanwhile wait for the same.

        One that was begun longer ago is old, even if it is still being made: it may lack what changed since. `anew`:
        made now in any case. What `make` raises, all who wait get, and nobody after them.
        """
        is_old = self._pages.age_s(asked) >= KEEP_S
        return cast("bytes", await self._pages.get(asked, make, anew=anew or is_old))

"""QueueWatch: the targets with queued jobs, for any number of tuner processes that wait for one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from math import inf

import anyio

from tunewright.codegen.target import Target

LOOK_S = 1.0
"""Between two reads of the queue."""


class QueueWatch:
    """Reads the queue once a second at most, however many ask. In one event loop."""

    def __init__(
        self, read: Callable[[], Awaitable[list[Target | None]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._targets: list[Target | None] = []
        self._read_at = -inf
        self._reading = anyio.Lock()

    async def targets(self) -> list[Target | None]:
        """`Jobs.queued_targets`, of less than `LOOK_S` ago. Raises StoreError."""
        async with self._reading:
            if self._clock() - self._read_at >= LOOK_S:
                self._targets, self._read_at = await self._read(), self._clock()
        return self._targets

    async def differs(self, seen: Collection[str | None], timeout_s: float, is_over: Callable[[], bool]) -> bool:
        """Whether other targets than those with these keys have queued jobs, within `timeout_s` or until `is_over`."""
        end_s = self._clock() + timeout_s
        while not is_over():
            if {None if target is None else target.key for target in await self.targets()} != set(seen):
                return True
            left_s = end_s - self._clock()
            if left_s <= 0:
                break
            await anyio.sleep(min(LOOK_S, left_s))
        return False

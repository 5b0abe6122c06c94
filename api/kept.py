"""Kept: what takes long to make, made once for all who ask, and kept until what it follows from has changed.

A page that shows such a thing waits for it only for a moment: then it shows what was made before, or says that it is
still being made, and the next look finds it.
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
class _Made(Generic[Value]):
    """One making of a value."""

    value: asyncio.Future[Value]
    mark: Hashable
    begun_s: float

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and there is no value."""
        return self.value.done() and (self.value.cancelled() or self.value.exception() is not None)


class Kept(Generic[Value]):
    """Values by what they are of. In one event loop.

    `most` are kept. A value whose mark has changed is made anew, but not within `renew_s` of when that was begun.
    """

    def __init__(self, most: int, renew_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._renew_s = renew_s
        self._clock = clock
        self._newest: OrderedDict[Hashable, _Made[Value]] = OrderedDict()
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
        made = self._newest.get(key)
        if anew or made is None or made.has_failed or (made.value.done() and self._is_due(made, mark)):
            made = self._begin(key, make, mark)
        self._newest.move_to_end(key)
        await asyncio.wait([made.value], timeout=None if patience_s == inf else patience_s)
        return made.value.result() if made.value.done() else self._before.get(key)

    def age_s(self, key: Hashable) -> float:
        """How long ago the newest value was begun; infinite where there is none."""
        made = self._newest.get(key)
        return inf if made is None else self._clock() - made.begun_s

    def _is_due(self, made: _Made[Value], mark: Hashable) -> bool:
        return made.mark != mark and self._clock() - made.begun_s >= self._renew_s

    def _begin(self, key: Hashable, make: Callable[[], Awaitable[Value]], mark: Hashable) -> _Made[Value]:
        old = self._newest.get(key)
        if old is not None and old.value.done() and not old.has_failed:
            self._before[key] = old.value.result()
        made = self._newest[key] = _Made(asyncio.ensure_future(make()), mark, self._clock())
        self._making.add(made.value)
        made.value.add_done_callback(lambda _: self._settle(key, made))
        while len(self._newest) > self._most:
            gone, _ = self._newest.popitem(last=False)
            self._before.pop(gone, None)
        return made

    def _settle(self, key: Hashable, made: _Made[Value]) -> None:
        """Keep nothing that could not be made, nor what there was before."""
        self._making.discard(made.value)
        has_failed = made.has_failed  # asked in any case: nobody else may be there to hear of an error
        if self._newest.get(key) is made:
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

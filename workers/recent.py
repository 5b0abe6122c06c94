"""Recent: what takes long to make and much memory to keep, kept for who asks again soon."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Recent(Generic[Key, Item]):
    """The items asked for last, `limit_bytes` of them; there is always room for one."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[Key, tuple[int, Item]] = OrderedDict()  # with their sizes, the last one last

    def get(self, key: Key, size_bytes: int, make: Callable[[], Item]) -> Item:
        """The item of a key. It is made where it is not at hand, after others have gone: it may take their memory."""
        found = self._kept.pop(key, None)
        if found is None:
            self._make_room(size_bytes)
            found = size_bytes, make()
        self._kept[key] = found
        return found[1]

    def _make_room(self, size_bytes: int) -> None:
        taken_bytes = sum(kept_bytes for kept_bytes, _ in self._kept.values())
        while self._kept and taken_bytes + size_bytes > self._limit_bytes:
            _, (kept_bytes, _) = self._kept.popitem(last=False)
            taken_bytes -= kept_bytes

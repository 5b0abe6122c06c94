"""LruCache: the items that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class LruCache(Generic[Key, Item]):
    """The items used last, up to `limit` in all: of their sizes, which are 1 unless told. One item may exceed it.

    `close` is called with each item that is dropped.
    """

    def __init__(self, limit: int, close: Callable[[Item], object] | None = None) -> None:
        self._limit, self._close = limit, close
        self._items: OrderedDict[Key, tuple[int, Item]] = OrderedDict()  # with their sizes, the last one last

    def __iter__(self) -> Iterator[Key]:
        """The keys, the one used last at the end."""
        return iter(self._items)

    def get(self, key: Key, make: Callable[[], Item], size: int = 1) -> Item:
        """The item of a key. A missing one is made after others are dropped, so that it can take their memory."""
        entry = self._items.pop(key, None)
        if entry is None:
            while self._items and sum(item[0] for item in self._items.values()) + size > self._limit:
                self._drop(next(iter(self._items)))
            entry = size, make()
        self._items[key] = entry
        return entry[1]

    def clear(self) -> None:
        """Drop all items, the one used last first."""
        while self._items:
            self._drop(next(reversed(self._items)))

    def _drop(self, key: Key) -> None:
        _, item = self._items.pop(key)
        if self._close is not None:
            self._close(item)

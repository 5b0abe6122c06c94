"""The arena: where storages go so that no two that live at once overlap, in as little memory as can be found."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MOST_MEETINGS = 1 << 20
"""Of storages that live at once, pairs up to which the smallest gap is looked for: that takes a second or two. With
more, so many storages live at once that each is placed when it begins to live, in what is free then."""


@dataclass(slots=True)
class Storage:
    """Memory that one root after the other takes, in steps `first` to `last`; `roots` (in order) is empty for scratch.

    Sizes are multiples of the alignment, and so are then the places where storages go.
    """

    size_bytes: int
    first: int
    last: int
    roots: dict[str, None]


def live_bytes(storages: Sequence[Storage], steps: int) -> list[int]:
    """What lives in each step."""
    changes = [0] * (steps + 1)
    for storage in storages:
        changes[storage.first] += storage.size_bytes
        changes[storage.last + 1] -= storage.size_bytes
    return list(accumulate(changes))[:steps]


def arranged(storages: Sequence[Storage], live: Sequence[int]) -> tuple[int, list[int]]:
    """The size of an arena and the offset of each storage. `live` as from `live_bytes`.

    Greedy: one storage after the other goes to the smallest gap that fits among those placed that live when it does.
    Two orders are tried, largest first, and the steps with most alive first (Pisarchyk and Lee 2020).
    """
    meetings = _meetings(storages)
    if meetings is None:
        return _placed_in_turn(storages)
    orders = _by_size(storages), _by_breadth(storages, live)
    return min((_placed(storages, order, meetings) for order in orders), key=lambda tried: tried[0])


def _meetings(storages: Sequence[Storage]) -> list[list[int]] | None:
    """Which others each storage lives at the same time as; None if that is too many pairs."""
    meetings: list[list[int]] = [[] for _ in storages]
    alive: list[tuple[int, int]] = []  # last step and number, the first to end in front
    pairs = 0
    for number in sorted(range(len(storages)), key=lambda n: storages[n].first):
        storage = storages[number]
        while alive and alive[0][0] < storage.first:
            heapq.heappop(alive)
        pairs += len(alive)
        if pairs > MOST_MEETINGS:
            return None
        for _, other in alive:
            meetings[other].append(number)
            meetings[number].append(other)
        heapq.heappush(alive, (storage.last, number))
    return meetings


def _by_size(storages: Sequence[Storage]) -> list[int]:
    return sorted(range(len(storages)), key=lambda n: (-storages[n].size_bytes, storages[n].first, n))


def _by_breadth(storages: Sequence[Storage], live: Sequence[int]) -> list[int]:
    """Those of the step with most alive, the largest first, then those of the next that were in none before."""
    widest = sorted(range(len(live)), key=lambda step: (-live[step], step))
    ranks = dict(zip(widest, range(len(live)), strict=True))
    least = _Least([ranks[step] for step in range(len(live))])
    return sorted(_by_size(storages), key=lambda n: least.between(storages[n].first, storages[n].last))


class _Least:
    """The least of any run of numbers: for each power of two, those of all runs that are so long."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._runs = [list(numbers)]
        length = 1
        while 2 * length <= len(numbers):
            runs = self._runs[-1]
            self._runs.append([min(pair) for pair in zip(runs, runs[length:], strict=False)])
            length *= 2

    def between(self, first: int, last: int) -> int:
        """That of the numbers from `first` to `last`: two runs cover them."""
        power = (last - first + 1).bit_length() - 1
        runs = self._runs[power]
        return min(runs[first], runs[last + 1 - (1 << power)])


def _placed(
    storages: Sequence[Storage], order: Sequence[int], meetings: Sequence[Sequence[int]]
) -> tuple[int, list[int]]:
    """Size of the arena and the offset of each storage, placed in this order."""
    offsets = [0] * len(storages)
    done = [False] * len(storages)
    for number in order:
        storage = storages[number]
        near = sorted((offsets[n], storages[n].size_bytes) for n in meetings[number] if done[n])
        offsets[number] = _best_gap(near, storage.size_bytes)
        done[number] = storage.size_bytes > 0
    return max((o + s.size_bytes for o, s in zip(offsets, storages, strict=True)), default=0), offsets


def _best_gap(near: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Start of the smallest gap that fits between areas (offset, size) in order of offset, or the end of them all."""
    best: tuple[int, int] | None = None
    end = 0
    for offset, area_bytes in near:
        gap_bytes = offset - end
        if gap_bytes >= size_bytes and (best is None or gap_bytes < best[0]):
            best = gap_bytes, end
        end = max(end, offset + area_bytes)
    return end if best is None else best[1]


# Very many at once


def _placed_in_turn(storages: Sequence[Storage]) -> tuple[int, list[int]]:
    """As `_placed`, in the order in which storages begin to live: what lived before has been given back then."""
    offsets = [0] * len(storages)
    free = _Free()
    alive: list[tuple[int, int]] = []
    for number in sorted(range(len(storages)), key=lambda n: (storages[n].first, -storages[n].size_bytes, n)):
        storage = storages[number]
        while alive and alive[0][0] < storage.first:
            _, gone = heapq.heappop(alive)
            free.give(offsets[gone], storages[gone].size_bytes)
        offsets[number] = free.take(storage.size_bytes)
        heapq.heappush(alive, (storage.last, number))
    return free.end_bytes, offsets


class _Free:
    """What is free of an arena that grows when nothing fits."""

    def __init__(self) -> None:
        self.end_bytes = 0
        self._gaps: list[tuple[int, int]] = []  # size and offset, in order
        self._sizes: dict[int, int] = {}  # of gaps by where they begin
        self._starts: dict[int, int] = {}  # of gaps by where they end

    def take(self, size_bytes: int) -> int:
        """The start of the smallest gap that fits, or else of what the arena grows by."""
        if not size_bytes:
            return 0
        place = bisect_left(self._gaps, (size_bytes, 0))
        if place == len(self._gaps):
            self.end_bytes += size_bytes
            return self.end_bytes - size_bytes
        gap_bytes, offset = self._gaps[place]
        self._remove(offset, gap_bytes)
        if gap_bytes > size_bytes:
            self._add(offset + size_bytes, gap_bytes - size_bytes)
        return offset

    def give(self, offset: int, size_bytes: int) -> None:
        """Free what was taken, as one with the gaps beside it."""
        if not size_bytes:
            return
        end = offset + size_bytes
        if end in self._sizes:
            after_bytes = self._sizes[end]
            self._remove(end, after_bytes)
            end += after_bytes
        if offset in self._starts:
            start = self._starts[offset]
            self._remove(start, offset - start)
            offset = start
        self._add(offset, end - offset)

    def _add(self, offset: int, size_bytes: int) -> None:
        insort(self._gaps, (size_bytes, offset))
        self._sizes[offset], self._starts[offset + size_bytes] = size_bytes, offset

    def _remove(self, offset: int, size_bytes: int) -> None:
        del self._gaps[bisect_left(self._gaps, (size_bytes, offset))]
        del self._sizes[offset], self._starts[offset + size_bytes]

"""The memory plan: where in one arena each tensor of a program lives while it is needed.

Names are those of tensors. A *root* is a tensor with memory of its own; a `View` lies inside another tensor. Pinned
roots (inputs, outputs, constants) have memory elsewhere, and so have their views. All others live from the step that
first writes them, or a view of them, to the last step that touches either.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .memory import room_bytes


@dataclass(frozen=True, slots=True)
class Access:
    """The tensors that one step of a program touches.

    `scratch_bytes` are the sizes of memory it needs for itself. `in_place` lists pairs (write, read) of tensors that
    may share memory if nobody needs the read one afterwards: whatever the step makes of an element of it, it has read
    before any thread or iteration writes the element at the same index.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    scratch_bytes: tuple[int, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A tensor that is part of another's memory."""

    of: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArenaProblem:
    """The input of `plan`: the steps in order, the tensors' sizes, the pinned roots, the views.

    Raises ValueError if a view is pinned, leaves the tensor it views or leads to itself, if a tensor is read before a
    step has written it, or has no size, or if a step works in place on what it doesn't touch.
    """

    steps: tuple[Access, ...]
    sizes_bytes: Mapping[str, int]
    pinned: Collection[str]
    views: Mapping[str, View]

    def __post_init__(self) -> None:
        for name, view in self.views.items():
            root, _ = self.locate(name)
            if name in self.pinned:
                raise ValueError(f"{name} is a view: pin {root}")
            if view.offset_bytes < 0 or view.offset_bytes + self._size(name) > self._size(view.of):
                raise ValueError(f"{name} is no part of {view.of}")
        written = set(self.pinned)
        for step in self.steps:
            for name in step.reads:
                if self.locate(name)[0] not in written:
                    raise ValueError(f"{name} is read before it is written")
            for write, read in step.in_place:
                if write not in step.writes or read not in step.reads:
                    raise ValueError(
                        f"{write} in place of {read}, but the step does not write the one and read the other"
                    )
            written.update(self.locate(name)[0] for name in step.writes)
        for root in written - set(self.pinned):
            self._size(root)

    def _size(self, name: str) -> int:
        size_bytes = self.sizes_bytes.get(name, -1)
        if size_bytes < 0:
            raise ValueError(f"{name} has no size")
        return size_bytes

    def locate(self, name: str) -> tuple[str, int]:
        """The root that a tensor lies in, and the offset in bytes."""
        offset_bytes = 0
        for _ in range(len(self.views) + 1):
            view = self.views.get(name)
            if view is None:
                return name, offset_bytes
            name, offset_bytes = view.of, offset_bytes + view.offset_bytes
        raise ValueError(f"{name} is a view of itself")

    def roots(self, names: Iterator[str] | Sequence[str]) -> list[str]:
        """The roots, not pinned, that tensors lie in, each once, in order."""
        located = dict.fromkeys(self.locate(name)[0] for name in names)
        return [root for root in located if root not in self.pinned]

    def lifetimes(self) -> dict[str, tuple[int, int]]:
        """First and last step of each root that is not pinned, in order of the first."""
        spans: dict[str, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for root in self.roots([*step.reads, *step.writes]):
                spans[root] = (spans.get(root, (number, number))[0], number)
        return spans


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets in the arena, in bytes, multiples of 64: of each tensor outside pinned ones, and of each step's scratch.

    The offset of a view is that of its root and its own. `live_bytes` is the most that lives at once: no plan with
    the same tensors in place takes less.
    """

    offsets: Mapping[str, int]
    scratch: tuple[tuple[int, ...], ...]
    size_bytes: int
    live_bytes: int


def plan(problem: ArenaProblem) -> ArenaPlan:
    """A small arena for the tensors; the same for equal problems.

    Time grows as the number of pairs that live at once, and of steps in which each lives, so as the square of how many
    tensors there are at worst; with more pairs than MOST_MEETINGS, as the number of tensors.
    """
    storages = _storages(problem)
    scratch = [
        [Storage(room_bytes(size_bytes), number, number, {}) for size_bytes in step.scratch_bytes]
        for number, step in enumerate(problem.steps)
    ]
    all_storages = [*storages, *(part for parts in scratch for part in parts)]
    live = live_bytes(all_storages, len(problem.steps))
    size_bytes, offsets = arrange(all_storages, live)
    of_root = {root: offset for storage, offset in zip(storages, offsets, strict=False) for root in storage.roots}
    rest = iter(offsets[len(storages) :])
    locations = {name: problem.locate(name) for name in (*problem.lifetimes(), *problem.views)}
    return ArenaPlan(
        {name: of_root[root] + offset for name, (root, offset) in locations.items() if root in of_root},
        tuple(tuple(next(rest) for _ in parts) for parts in scratch),
        size_bytes,
        max(live, default=0),
    )


def _storages(problem: ArenaProblem) -> list[Storage]:
    """One storage a root, but one for both where a step may and can work in place."""
    spans = problem.lifetimes()
    own = {root: Storage(room_bytes(problem.sizes_bytes[root]), *span, {root: None}) for root, span in spans.items()}
    for number, step in enumerate(problem.steps):
        for write, read in step.in_place:
            target, source = own.get(write), own.get(problem.locate(read)[0])
            if target is None or source is None or not _can_share(problem, number, write, read, target, source):
                continue
            source.last = target.last
            source.roots |= target.roots
            own[write] = source
    return list({id(storage): storage for storage in own.values()}.values())


def _can_share(problem: ArenaProblem, number: int, write: str, read: str, target: Storage, source: Storage) -> bool:
    """Whether `target`, which is that of `write`, may take over `source`, in which `read` lies, in step `number`."""
    is_last_use = source.last == number == target.first and source is not target
    is_alone = not any(root in source.roots or root in target.roots for root in _others(problem, number, write, read))
    return is_last_use and is_alone and not problem.locate(read)[1] and source.size_bytes == target.size_bytes


def _others(problem: ArenaProblem, number: int, write: str, read: str) -> list[str]:
    """The roots that a step touches under other names than these two."""
    step = problem.steps[number]
    return problem.roots([name for name in [*step.reads, *step.writes] if name not in (write, read)])


# The arena: where storages go so that no two that live at once overlap, in as little memory as can be found.

MOST_MEETINGS = 1 << 20
"""Most pairs of storages that live at once for which the smallest gap is searched: that takes a second or two. With
more, each storage is placed when it begins to live, in the space that is free then."""


@dataclass(slots=True)
class Storage:
    """Memory used by one root after the other, in steps `first` to `last`; `roots` (in order) is empty for scratch.

    Sizes are multiples of the alignment, so offsets are, too.
    """

    size_bytes: int
    first: int
    last: int
    roots: dict[str, None]


def live_bytes(storages: Sequence[Storage], steps: int) -> list[int]:
    """Bytes that live in each step."""
    changes = [0] * (steps + 1)
    for storage in storages:
        changes[storage.first] += storage.size_bytes
        changes[storage.last + 1] -= storage.size_bytes
    return list(accumulate(changes))[:steps]


def arrange(storages: Sequence[Storage], live: Sequence[int]) -> tuple[int, list[int]]:
    """The size of an arena and the offset of each storage. `live` as from `live_bytes`.

    Greedy: one storage after the other goes to the smallest gap that fits among those placed that live when it does.
    Two orders are tried, largest first, and the steps with most alive first (Pisarchyk and Lee 2020).
    """
    meetings = _meetings(storages)
    if meetings is None:
        return _place_in_turn(storages)
    orders = _by_size(storages), _by_breadth(storages, live)
    return min((_place(storages, order, meetings) for order in orders), key=lambda arrangement: arrangement[0])


def _meetings(storages: Sequence[Storage]) -> list[list[int]] | None:
    """For each storage, the others that live at the same time; None if there are more pairs than MOST_MEETINGS."""
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
    """Storages of the step with most bytes alive, the largest first, then the rest of the next step, and so on."""
    widest = sorted(range(len(live)), key=lambda step: (-live[step], step))
    ranks = [0] * len(live)
    for rank, step in enumerate(widest):
        ranks[step] = rank
    return sorted(_by_size(storages), key=lambda n: min(ranks[storages[n].first : storages[n].last + 1]))


def _place(
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


# Very many at once.


def _place_in_turn(storages: Sequence[Storage]) -> tuple[int, list[int]]:
    """As `_place`, in the order in which storages begin to live, after the dead ones were freed."""
    offsets = [0] * len(storages)
    free = _FreeList()
    alive: list[tuple[int, int]] = []
    for number in sorted(range(len(storages)), key=lambda n: (storages[n].first, -storages[n].size_bytes, n)):
        storage = storages[number]
        while alive and alive[0][0] < storage.first:
            _, dead = heapq.heappop(alive)
            free.give(offsets[dead], storages[dead].size_bytes)
        offsets[number] = free.take(storage.size_bytes)
        heapq.heappush(alive, (storage.last, number))
    return free.end_bytes, offsets


class _FreeList:
    """The free gaps of an arena, which grows when nothing fits."""

    def __init__(self) -> None:
        self.end_bytes = 0
        self._gaps: list[tuple[int, int]] = []  # size and offset, in order
        self._sizes: dict[int, int] = {}  # start of a gap -> its size
        self._starts: dict[int, int] = {}  # end of a gap -> its start

    def take(self, size_bytes: int) -> int:
        """Take the smallest gap that fits, or grow the arena: the offset."""
        if not size_bytes:
            return 0
        index = bisect_left(self._gaps, (size_bytes, 0))
        if index == len(self._gaps):
            self.end_bytes += size_bytes
            return self.end_bytes - size_bytes
        gap_bytes, offset = self._gaps[index]
        self._remove(offset, gap_bytes)
        if gap_bytes > size_bytes:
            self._add(offset + size_bytes, gap_bytes - size_bytes)
        return offset

    def give(self, offset: int, size_bytes: int) -> None:
        """Free an area and merge it with the gaps beside it."""
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

"""The memory plan: where in one arena each tensor of a program lives while it is needed.

Names are those of tensors. A *root* is a tensor with memory of its own; a `View` lies inside another tensor. Pinned
roots (inputs, outputs, constants) have memory elsewhere, and so have their views. All others live from the step that
first writes them, or a view of them, to the last step that touches either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .arena import Storage, arranged, live_bytes
from .memory import ALIGN_BYTES, room_bytes


@dataclass(frozen=True, slots=True)
class Access:
    """What one step of a program touches.

    `scratch_bytes` are the sizes of memory it needs for itself. `in_place` lists pairs (write, read) of tensors that
    may share memory if nobody needs the read one afterwards: whatever the step makes of an element of it, it has read
    before any thread or iteration writes the element at the same place.
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
class Memory:
    """What there is to plan: the steps in order, the tensors' sizes, the pinned roots, the views.

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
class Plan:
    """Offsets in the arena, in bytes, multiples of 64: of each tensor outside pinned ones, and of each step's scratch.

    The offset of a view is that of its root and its own. `live_bytes` is the most that lives at once: no plan with
    the same tensors in place takes less.
    """

    offsets: Mapping[str, int]
    scratch: tuple[tuple[int, ...], ...]
    size_bytes: int
    live_bytes: int


def plan(memory: Memory) -> Plan:
    """A small arena for the tensors; the same for the same memory.

    Time grows as the number of pairs that live at once, so as the square of how many tensors there are at worst; with
    more pairs than MOST_MEETINGS, as the number of tensors.
    """
    storages = _storages(memory)
    scratch = [
        [Storage(room_bytes(size_bytes), number, number, {}) for size_bytes in step.scratch_bytes]
        for number, step in enumerate(memory.steps)
    ]
    everything = [*storages, *(part for parts in scratch for part in parts)]
    live = live_bytes(everything, len(memory.steps))
    size_bytes, places = arranged(everything, live)
    of_root = {root: place for storage, place in zip(storages, places, strict=False) for root in storage.roots}
    rest = iter(places[len(storages) :])
    return Plan(
        {name: of_root[root] + offset for name, root, offset in _located(memory) if root in of_root},
        tuple(tuple(next(rest) for _ in parts) for parts in scratch),
        size_bytes,
        max(live, default=0),
    )


def _located(memory: Memory) -> Iterator[tuple[str, str, int]]:
    for name in dict.fromkeys([*memory.lifetimes(), *memory.views]):
        yield name, *memory.locate(name)


def _storages(memory: Memory) -> list[Storage]:
    """One storage a root, but one for both where a step may and can work in place."""
    spans = memory.lifetimes()
    own = {root: Storage(room_bytes(memory.sizes_bytes[root]), *span, {root: None}) for root, span in spans.items()}
    for number, step in enumerate(memory.steps):
        for write, read in step.in_place:
            target, source = own.get(write), own.get(memory.locate(read)[0])
            if target is None or source is None or not _can_share(memory, number, write, read, target, source):
                continue
            source.last = target.last
            source.roots |= target.roots
            own[write] = source
    return list({id(storage): storage for storage in own.values()}.values())


def _can_share(memory: Memory, number: int, write: str, read: str, target: Storage, source: Storage) -> bool:
    """Whether `target`, which is that of `write`, may take over `source`, in which `read` lies, in step `number`."""
    dying = source.last == number == target.first and source is not target
    alone = not any(root in source.roots or root in target.roots for root in _others(memory, number, write, read))
    return dying and alone and not memory.locate(read)[1] and source.size_bytes == target.size_bytes


def _others(memory: Memory, number: int, write: str, read: str) -> list[str]:
    """The roots that a step touches under other names than these two."""
    step = memory.steps[number]
    return memory.roots([name for name in [*step.reads, *step.writes] if name not in (write, read)])


def check(memory: Memory, planned: Plan) -> None:
    """Prove that tensors alive in the same step do not overlap, but where one works in place. Raises ValueError if not.

    It looks at the steps one by one and at what is alive in each, not at how the plan was made.
    """
    for name, offset_bytes in planned.offsets.items():
        root, inside_bytes = memory.locate(name)
        if offset_bytes != planned.offsets[root] + inside_bytes or planned.offsets[root] % ALIGN_BYTES:
            raise ValueError(f"{name} is at {offset_bytes}, not where {root} or the alignment wants it")
    spans = memory.lifetimes()
    for number, step in enumerate(memory.steps):
        alive = [root for root, (first, last) in spans.items() if first <= number <= last]
        areas = [(planned.offsets[root], memory.sizes_bytes[root], root) for root in alive]
        scratch = zip(planned.scratch[number], step.scratch_bytes, strict=True)
        areas += [(offset_bytes, size_bytes, "") for offset_bytes, size_bytes in scratch]
        areas = sorted(area for area in areas if area[1])
        for place, (begin, size_bytes, name) in enumerate(areas):
            if begin < 0 or begin + size_bytes > planned.size_bytes:
                raise ValueError(f"step {number}: {name or 'scratch'} is outside the arena")
            for other_begin, _, other in areas[place + 1 :]:
                if other_begin >= begin + size_bytes:
                    break
                same = begin == other_begin
                if not (same and _works_in_place(memory, spans, number, {name, other})):
                    raise ValueError(f"step {number}: {name or 'scratch'} and {other or 'scratch'} overlap")


def _works_in_place(memory: Memory, spans: Mapping[str, tuple[int, int]], number: int, overlapping: set[str]) -> bool:
    """Whether step `number` lets the two overlap: one dies in it, read under one name, the other is born there."""
    for write, read in memory.steps[number].in_place:
        root, inside_bytes = memory.locate(read)
        dying = {write, root} == overlapping and spans[root][1] == number == spans[write][0]
        if dying and not inside_bytes and overlapping.isdisjoint(_others(memory, number, write, read)):
            return True
    return False

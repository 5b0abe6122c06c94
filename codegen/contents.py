"""Contents: what a basic block knows to be in memory, so that it is not loaded again."""

from __future__ import annotations

from typing import NamedTuple

from .dtype import DType
from .ir import Buffer, Scope
from .listing import Value


class Memory(NamedTuple):
    """A buffer as a function sees it, with what is asked of it often."""

    buffer: Buffer
    space: str  # what may overlap it: all global buffers (empty), or its own alloca alone
    base: str  # pointer to the first element; empty until it is needed
    dtype: DType
    size_bytes: int  # of an element
    register: bool

    @staticmethod
    def of(buffer: Buffer, pointer: str = "") -> Memory:
        """The memory of a buffer at a pointer; without one, of an argument that nothing has touched so far."""
        space = "" if buffer.scope is Scope.GLOBAL else pointer
        register = buffer.scope is Scope.REGISTER
        return Memory(buffer, space, pointer, buffer.dtype, buffer.dtype.size_bytes, register)


class Place(NamedTuple):
    """What a load reads or a store writes: lanes side by side from `pointer + offset`."""

    pointer: str
    offset: int  # bytes
    lanes: int
    used: int  # leading lanes that touch memory


class Contents:
    """The values of places, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Place, Value]] = {}  # by space
        self._grids: dict[str, int] = {}  # space -> bytes of each known slot, if they lie on a grid; 0 if they don't

    def get(self, memory: Memory, place: Place) -> Value | None:
        """The value in a place, if it is known."""
        known = self._known.get(memory.space)
        return None if known is None else known.get(place)

    def read(self, memory: Memory, place: Place, value: Value) -> None:
        """Note what a place holds. The known places of a register buffer are slots that don't overlap."""
        known = self._known.setdefault(memory.space, {})
        slot = memory.register and place.pointer == memory.base
        if place in known or not memory.register or (slot and not self._overlapping(memory, place, known)):
            known[place] = value

    def wrote(self, memory: Memory, place: Place, value: Value) -> None:
        """Forget what a store to a place may have changed, and note what the place holds now."""
        known = self._known.setdefault(memory.space, {})
        if not memory.register or place.pointer != memory.base:
            known.clear()
        elif known.pop(place, None) is None:
            for other in self._overlapping(memory, place, known):
                del known[other]
        if place.used == place.lanes:
            self.read(memory, place, value)

    def _overlapping(self, memory: Memory, place: Place, known: dict[Place, Value]) -> list[Place]:
        """The other known slots of a register buffer that share bytes with a slot."""
        first, span = place.offset, place.lanes * memory.size_bytes
        grid = self._grids.setdefault(memory.space, span)
        if grid == span and first % span == 0:
            return []  # all slots are of this size and next to each other: the common case, and quick
        self._grids[memory.space] = 0
        ends = first + span
        return [p for p in known if p.offset < ends and first < p.offset + p.lanes * memory.size_bytes and p != place]

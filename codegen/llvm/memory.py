"""Memory: the addresses of loads and stores, and the values that need not be loaded again in a basic block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Ramp
from ..expr.index import Form, form
from ..expr.lanes import lanes_of
from ..ir.ir import Buffer, Scope, Store
from .function import SsaValue


class Address(NamedTuple):
    """Bytes from the start of a buffer to lane 0, offset + sum of scale * expression, and on to the other lanes."""

    terms: tuple[tuple[Expr, int], ...]  # scalars; no scale is zero
    offset: int
    lanes: int
    used: int  # leading lanes that touch memory
    step: int | None  # bytes from lane to lane; None where the lanes follow no line


def _address(access: Load | Store, strides: Sequence[int], size_bytes: int) -> Address:
    """The address of an access, for `AddressBook.address`."""
    total, offset = _sum(map(form, access.index), strides, size_bytes)
    lanes = max([i.lanes for i in access.index], default=1)
    if lanes == 1:
        return Address(tuple(total.items()), offset, 1, 1, 0)
    scalars = tuple([term for term in total.items() if term[0].lanes == 1])
    vectors = [term for term in total.items() if term[0].lanes > 1]
    on_a_line = all(isinstance(atom, Ramp) for atom, _ in vectors)  # a form's ramps all start at 0
    used = lanes if access.count is None else min(access.count, lanes)
    return Address(scalars, offset, lanes, used, sum([scale for _, scale in vectors]) if on_a_line else None)


def _elements(access: Load | Store, strides: Sequence[int], size_bytes: int) -> list[Address]:
    """The addresses of the lanes of an access, for `AddressBook.elements`."""
    used = _address(access, strides, size_bytes).used
    parts = [(i, form(i)) if i.lanes == 1 else (i, None) for i in access.index]
    addresses: list[Address] = []
    for lane in range(used):
        total, offset = _sum([part or lanes_of(i)[lane] for i, part in parts], strides, size_bytes)
        terms = tuple(total.items())
        if addresses and addresses[0].terms == terms:
            terms = addresses[0].terms
        addresses.append(Address(terms, offset, 1, 1, 0))
    return addresses


def _sum(parts: Iterable[Form], strides: Sequence[int], size_bytes: int) -> tuple[Mapping[Expr, int], int]:
    """The indices along each dimension as bytes: multiples of atoms, and what is constant."""
    terms: dict[Expr, int] = {}
    offset = 0
    for part, stride in zip(parts, strides, strict=True):
        scale = stride * size_bytes
        offset += part.constant * scale
        for atom, coefficient in part.terms.items():
            total = terms.get(atom, 0) + coefficient * scale
            if total:
                terms[atom] = total
            else:
                del terms[atom]
    return terms, offset


class AddressBook:
    """A cache of addresses: unrolled code is emitted many times.

    Buffers are known by identity, and kept alive so that no other object takes over an id.
    """

    def __init__(self) -> None:
        self._addresses: dict[tuple[object, ...], Address] = {}
        self._elements: dict[tuple[object, ...], list[Address]] = {}
        self._strides: dict[int, tuple[int, ...]] = {}
        self._buffers: list[Buffer] = []

    def address(self, access: Load | Store, buffer: Buffer) -> Address:
        """The address of a load from a buffer or a store to it."""
        key = (id(buffer), access.count, access.index)
        result = self._addresses.get(key)
        if result is None:
            result = self._addresses[key] = _address(access, self._strides_of(buffer), buffer.dtype.size_bytes)
        return result

    def elements(self, access: Load | Store, buffer: Buffer) -> list[Address]:
        """The address of each lane of a vector access that touches memory."""
        key = (id(buffer), access.count, access.index)
        result = self._elements.get(key)
        if result is None:
            result = self._elements[key] = _elements(access, self._strides_of(buffer), buffer.dtype.size_bytes)
        return result

    def _strides_of(self, buffer: Buffer) -> tuple[int, ...]:
        """The strides of a buffer."""
        strides = self._strides.get(id(buffer))
        if strides is None:
            strides = self._strides[id(buffer)] = buffer.strides
            self._buffers.append(buffer)
        return strides


class BufferPointer(NamedTuple):
    """A buffer in a function: its base pointer, and properties that are needed often."""

    buffer: Buffer
    space: str  # buffers that may overlap: all global ones (empty), or its own alloca alone
    base: str  # pointer to the first element; empty until it is needed
    dtype: DType
    size_bytes: int  # of an element
    register: bool

    @staticmethod
    def of(buffer: Buffer, pointer: str = "") -> BufferPointer:
        """A buffer at a pointer; without one, an argument that nothing has touched so far."""
        space = "" if buffer.scope is Scope.GLOBAL else pointer
        register = buffer.scope is Scope.REGISTER
        return BufferPointer(buffer, space, pointer, buffer.dtype, buffer.dtype.size_bytes, register)


class MemoryRange(NamedTuple):
    """The memory of a load or store: lanes side by side from `pointer + offset`."""

    pointer: str
    offset: int  # bytes
    lanes: int
    used: int  # leading lanes that touch memory


class MemoryState:
    """Known values by memory range."""

    def __init__(self) -> None:
        self._values: dict[str, dict[MemoryRange, SsaValue]] = {}  # by space
        self._grids: dict[str, int] = {}  # space -> bytes of each known slot, if they lie on a grid; 0 if they don't

    def get(self, memory: BufferPointer, memory_range: MemoryRange) -> SsaValue | None:
        """The value of a range, if it is known."""
        known = self._values.get(memory.space)
        return None if known is None else known.get(memory_range)

    def read(self, memory: BufferPointer, memory_range: MemoryRange, value: SsaValue) -> None:
        """Note the value of a range. The known ranges of a register buffer are slots that don't overlap."""
        known = self._values.setdefault(memory.space, {})
        slot = memory.register and memory_range.pointer == memory.base
        if memory_range in known or not memory.register or (slot and not self._overlaps(memory, memory_range, known)):
            known[memory_range] = value

    def write(self, memory: BufferPointer, memory_range: MemoryRange, value: SsaValue) -> None:
        """Forget values that a store to a range may have changed, and note the new one."""
        known = self._values.setdefault(memory.space, {})
        if not memory.register or memory_range.pointer != memory.base:
            known.clear()
        elif known.pop(memory_range, None) is None:
            for other in self._overlaps(memory, memory_range, known):
                del known[other]
        if memory_range.used == memory_range.lanes:
            self.read(memory, memory_range, value)

    def _overlaps(
        self, memory: BufferPointer, memory_range: MemoryRange, known: dict[MemoryRange, SsaValue]
    ) -> list[MemoryRange]:
        """The other known slots of a register buffer that share bytes with a slot."""
        first, span = memory_range.offset, memory_range.lanes * memory.size_bytes
        grid = self._grids.setdefault(memory.space, span)
        if grid == span and first % span == 0:
            return []  # all slots are of this size and next to each other: the common case, and quick
        self._grids[memory.space] = 0
        ends = first + span
        near = (slot for slot in known if slot.offset < ends and slot != memory_range)
        return [slot for slot in near if first < slot.offset + slot.lanes * memory.size_bytes]

"""Where loads and stores go: bytes from the start of a buffer, and how they move from lane to lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .expr import Expr, Load, Ramp
from .index import Form, form
from .ir import Buffer, Store
from .lanes import lanes_of


class Address(NamedTuple):
    """Bytes from the start of a buffer to lane 0, offset + sum of scale * expression, and on to the other lanes."""

    terms: tuple[tuple[Expr, int], ...]  # scalars; no scale is zero
    offset: int
    lanes: int
    used: int  # leading lanes that touch memory
    step: int | None  # bytes from lane to lane; None where the lanes follow no line


def _address(access: Load | Store, strides: Sequence[int], size_bytes: int) -> Address:
    """See `AddressBook.address`."""
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
    """See `AddressBook.elements`."""
    used = _address(access, strides, size_bytes).used
    parts = [(i, form(i)) if i.lanes == 1 else (i, None) for i in access.index]
    found: list[Address] = []
    for lane in range(used):
        total, offset = _sum([part or lanes_of(i)[lane] for i, part in parts], strides, size_bytes)
        terms = tuple(total.items())
        if found and found[0].terms == terms:
            terms = found[0].terms
        found.append(Address(terms, offset, 1, 1, 0))
    return found


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
    """Addresses, each worked out once: what is unrolled is emitted many times.

    Buffers are known by identity, and kept alive so that no other object takes over an id.
    """

    def __init__(self) -> None:
        self._addresses: dict[tuple[object, ...], Address] = {}
        self._elements: dict[tuple[object, ...], list[Address]] = {}
        self._strides: dict[int, tuple[int, ...]] = {}
        self._kept: list[Buffer] = []

    def address(self, access: Load | Store, buffer: Buffer) -> Address:
        """Where a load from a buffer, or a store to it, goes."""
        key = (id(buffer), access.count, access.index)
        found = self._addresses.get(key)
        if found is None:
            found = self._addresses[key] = _address(access, self._known(buffer), buffer.dtype.size_bytes)
        return found

    def elements(self, access: Load | Store, buffer: Buffer) -> list[Address]:
        """Where each lane of a vector access goes that touches memory, worked out for itself."""
        key = (id(buffer), access.count, access.index)
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = _elements(access, self._known(buffer), buffer.dtype.size_bytes)
        return found

    def _known(self, buffer: Buffer) -> tuple[int, ...]:
        """The strides of a buffer."""
        found = self._strides.get(id(buffer))
        if found is None:
            found = self._strides[id(buffer)] = buffer.strides
            self._kept.append(buffer)
        return found

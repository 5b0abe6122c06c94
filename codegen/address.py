"""Where loads and stores go: bytes from the start of a buffer, and how they move from lane to lane."""

from __future__ import annotations

from typing import NamedTuple

from .expr import Const, Expr, Load, Op, Ramp, Var, const, op
from .index import NOTHING, form
from .ir import Buffer, Store


class Address(NamedTuple):
    """Bytes from the start of a buffer to lane 0, offset + sum of scale * expression, and on to the other lanes."""

    terms: tuple[tuple[Expr, int], ...]  # scalars; no scale is zero
    offset: int
    lanes: int
    used: int  # leading lanes that touch memory
    step: int | None  # bytes from lane to lane; None where the lanes follow no line


def address(access: Load | Store, buffer: Buffer) -> Address:
    """Where a load from a buffer, or a store to it, goes."""
    total = NOTHING
    for expr, stride in zip(access.index, buffer.strides, strict=True):
        total = total.plus(form(expr), stride * buffer.dtype.size_bytes)
    vectors = {atom: scale for atom, scale in total.terms.items() if atom.lanes > 1}
    on_a_line = all(isinstance(atom, Ramp) for atom in vectors)  # a form's ramps all start at 0
    scalars = tuple((atom, scale) for atom, scale in total.terms.items() if atom.lanes == 1)
    lanes = max([i.lanes for i in access.index], default=1)
    used = lanes if access.count is None else min(access.count, lanes)
    return Address(scalars, total.constant, lanes, used, sum(vectors.values()) if on_a_line else None)


def elements(access: Load | Store, buffer: Buffer) -> list[Address]:
    """Where each lane of a vector access goes that touches memory, worked out for itself."""
    found = []
    for lane in range(address(access, buffer).used):
        index = tuple(_lane(i, lane, {}) for i in access.index)
        found.append(address(Load(buffer.name, index, buffer.dtype), buffer))
    return found


def _lane(node: Expr, lane: int, done: dict[int, Expr]) -> Expr:
    """One lane of an expression, as a scalar expression."""
    if node.lanes == 1:
        return node
    if id(node) not in done:
        match node:
            case Ramp(base):
                done[id(node)] = base + lane
            case Load(count=count) if count is not None and lane >= count:
                done[id(node)] = const(0, node.dtype)
            case Load(tensor, index, dtype):
                done[id(node)] = Load(tensor, tuple(_lane(i, lane, done) for i in index), dtype)
            case Op(name, args, dtype):
                done[id(node)] = op(name, *(_lane(a, lane, done) for a in args), dtype=dtype)
            case Const() | Var():
                done[id(node)] = node
    return done[id(node)]


class AddressBook:
    """The answers of this module, each worked out once: what is unrolled is emitted many times.

    Buffers are known by identity, and kept alive so that no other object takes over an id.
    """

    def __init__(self) -> None:
        self._addresses: dict[tuple[object, ...], Address] = {}
        self._elements: dict[tuple[object, ...], list[Address]] = {}
        self._kept: list[Buffer] = []

    def address(self, access: Load | Store, buffer: Buffer) -> Address:
        """As the function."""
        key = (id(buffer), access.count, *access.index)
        found = self._addresses.get(key)
        if found is None:
            found = self._addresses[key] = address(access, buffer)
            self._kept.append(buffer)
        return found

    def elements(self, access: Load | Store, buffer: Buffer) -> list[Address]:
        """As the function."""
        key = (id(buffer), access.count, *access.index)
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = elements(access, buffer)
            self._kept.append(buffer)
        return found

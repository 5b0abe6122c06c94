"""Memory for tensors: aligned arrays, recycled ones, and ones between guards that tell of writes out of bounds."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..dtype import DType

ALIGN_BYTES = 64
"""A cache line, and the widest vector: where tensors of our own begin, so that no vector lies in two lines."""

HUGE_BYTES = 2 << 20
"""A huge page of most systems."""

MAPPED_BYTES = 2 * HUGE_BYTES
"""Any array so large or larger gets pages of its own, huge ones where the system has them. Memory that was somebody's
before would be in small pages, or not, by chance, and kernels that read much of it slower by a tenth, or not. To map
less, for each of the arrays that are soon gone, would cost more than it gains."""

SHELVED_BYTES = range(4096, HUGE_BYTES // 2 + 1)
"""Blocks of these sizes share huge pages. Smaller ones fill not even a small page and stay in the heap, larger ones get
huge pages of their own. What a block shares with others is given back with the last of them, so one that is kept for
long keeps no more than a page."""

IDLE_BLOCKS = 2
"""Blocks that wait for their next use: who runs a model in a loop holds one result while the next is made."""

GUARD_BYTES = 4096

# No two neighbours alike, no zero, nothing that a kernel would write by chance.
_PATTERN = (np.arange(GUARD_BYTES) * 167 % 251 + 1).astype(np.uint8)


def aligned_empty(shape: tuple[int, ...], dtype: DType, align_bytes: int = ALIGN_BYTES) -> NDArray[np.generic]:
    """A C-contiguous array, not initialised, whose address is a multiple of `align_bytes` (a power of two).

    For what is there for a moment: what stays is better off in a `lasting_empty`.
    """
    size_bytes = prod(shape) * dtype.size_bytes
    made = aligned_block if size_bytes >= MAPPED_BYTES else _in_heap
    return made(size_bytes, align_bytes).view(dtype.numpy).reshape(shape)


def lasting_empty(shape: tuple[int, ...], dtype: DType) -> NDArray[np.generic]:
    """The same in an `aligned_block`."""
    return aligned_block(prod(shape) * dtype.size_bytes).view(dtype.numpy).reshape(shape)


def aligned_block(size_bytes: int, align_bytes: int = ALIGN_BYTES) -> NDArray[np.uint8]:
    """Aligned bytes, not initialised, for tensors that stay a while: in huge pages, where the system has some.

    Where small pages lie in physical memory is by chance, so what is in many of them meets itself in the second-level
    cache or not: a convolution on a Zen 3 took 0.58 ms in one process and 0.95 in another.
    """
    if size_bytes in SHELVED_BYTES:
        return _shelf.take(size_bytes, align_bytes)
    if size_bytes < SHELVED_BYTES.start:
        return _in_heap(size_bytes, align_bytes)
    return _cut(_mapped(size_bytes + HUGE_BYTES), size_bytes, max(align_bytes, HUGE_BYTES))


class _Shelf:
    """Hands out what is left of a huge page, one part behind the other, then of another page."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._room = np.empty(0, np.uint8)

    def take(self, size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
        """A part, which keeps the whole page. What it needs to be aligned must fit, too."""
        with self._turn:
            start = -address_of(self._room) % align_bytes
            if start + size_bytes > len(self._room):
                self._room, start = aligned_block(HUGE_BYTES, align_bytes), 0
            taken, self._room = self._room[start : start + size_bytes], self._room[start + size_bytes :]
            return taken

    def begin_anew(self) -> None:
        """In the child of a fork: who holds the turn may not be here, and the page is the parent's, too."""
        self._turn, self._room = Lock(), np.empty(0, np.uint8)


_shelf = _Shelf()
os.register_at_fork(after_in_child=_shelf.begin_anew)


def address_of(array: NDArray[np.generic]) -> int:
    """Where an array's elements begin."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # takes a third of the other way's time
    except (TypeError, ValueError, BufferError):  # read-only, empty, or nothing that buffers know
        address: int = array.ctypes.data
        return address


class _Block:
    """Memory, and how numpy wants to be told of it."""

    __slots__ = ("address", "interface", "memory")

    def __init__(self, size_bytes: int) -> None:
        self.memory = aligned_block(size_bytes)
        self.address: int = self.memory.ctypes.data
        self.interface = {"version": 3, "typestr": "|u1", "shape": (size_bytes,), "data": (self.address, False)}


class _Loan:
    """Memory of arrays until the last of them is gone: numpy keeps it as their base."""

    __slots__ = ("__array_interface__", "_block", "_idle")

    def __init__(self, block: _Block, idle: list[_Block]) -> None:
        self._block, self._idle = block, idle
        self.__array_interface__ = block.interface

    def __del__(self) -> None:
        if len(self._idle) < IDLE_BLOCKS:
            self._idle.append(self._block)


class Recycler:
    """Makes arrays of one size again and again, in memory that is free for the next once no array or view is left.

    Fresh memory costs the system's time: it is mapped and zeroed page by page.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        self._shape, self._dtype = shape, dtype.numpy
        self._size_bytes = prod(shape) * dtype.size_bytes
        self._idle: list[_Block] = []

    def array(self) -> tuple[NDArray[np.generic], int]:
        """An array, not initialised, and its address."""
        try:
            block = self._idle.pop()
        except IndexError:
            block = _Block(self._size_bytes)
        return np.ndarray(self._shape, self._dtype, np.asarray(_Loan(block, self._idle))), block.address


def room_bytes(size_bytes: int) -> int:
    """What an array takes of a larger block, so that the next one in it is aligned too."""
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _in_heap(size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
    return _cut(np.empty(size_bytes + align_bytes, np.uint8), size_bytes, align_bytes)


def _cut(block: NDArray[np.uint8], size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
    """The first so many bytes of it that are aligned."""
    start = -block.ctypes.data % align_bytes
    return block[start : start + size_bytes]


def _mapped(size_bytes: int) -> NDArray[np.uint8]:
    """Pages of the system's, all zeros, huge ones up to the last. Raises MemoryError as numpy does."""
    whole_bytes = -(-size_bytes // HUGE_BYTES) * HUGE_BYTES
    try:
        pages = mmap.mmap(-1, whole_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"Unable to allocate {size_bytes:,} bytes: {error.strerror}") from error
    with suppress(AttributeError, OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


@dataclass(frozen=True, slots=True)
class Guarded:
    """`array` and the guards beside it. The array starts with all bits set: NaN in floats, -1 in signed integers."""

    array: NDArray[np.generic]
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]

    def check(self) -> str | None:
        """What was written outside the array, or None. It sees the 4 KiB on each side, from the first byte on."""
        damage = []
        for guard, side in ((self.before, "before"), (self.after, "after")):
            wrong = np.flatnonzero(guard != _PATTERN)
            if wrong.size:
                nearest = GUARD_BYTES - int(wrong[-1]) if side == "before" else int(wrong[0]) + 1
                damage.append(f"{wrong.size} bytes {side} the array, the nearest at distance {nearest}")
        return f"written out of bounds: {'; '.join(damage)}" if damage else None


def guarded_empty(shape: tuple[int, ...], dtype: DType, align_bytes: int = ALIGN_BYTES) -> Guarded:
    """An aligned array with guards of 4 KiB right before its first and right behind its last byte."""
    size_bytes = prod(shape) * dtype.size_bytes
    lead_bytes = -(-GUARD_BYTES // align_bytes) * align_bytes
    block = aligned_block(lead_bytes + size_bytes + GUARD_BYTES, align_bytes)
    inner = block[lead_bytes : lead_bytes + size_bytes]
    before, after = block[lead_bytes - GUARD_BYTES : lead_bytes], block[lead_bytes + size_bytes :]
    inner[:] = 0xFF
    before[:] = _PATTERN
    after[:] = _PATTERN
    return Guarded(inner.view(dtype.numpy).reshape(shape), before, after)

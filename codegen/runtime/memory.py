"""Memory for tensors: aligned arrays, recycled ones, and ones between guards that tell of writes out of bounds.

What a process no longer needs is given back to the system: free heap, and pages of the compiler's code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..expr.dtype import DType

ALIGN_BYTES = 64
"""A cache line, and the widest vector: where tensors of our own begin, so that no vector lies in two lines."""

HUGE_BYTES = 2 << 20
"""A huge page of most systems."""

MAPPED_BYTES = 2 * HUGE_BYTES
"""Arrays of at least this size get pages of their own, huge ones where the system has them. Reused memory is in small
pages or not by chance, which makes kernels that read much of it a tenth slower. Mapping smaller arrays, which soon go,
would cost more than it gains."""

SLAB_BYTES = range(4096, HUGE_BYTES // 2 + 1)
"""Blocks of these sizes share huge pages. Smaller ones fill not even a small page and stay in the heap, larger ones get
huge pages of their own. A shared page is freed with the last of its blocks, so one block keeps at most a page alive."""

IDLE_BLOCKS = 2
"""Blocks that wait for their next use: a caller in a loop holds one result while the next is computed."""

GUARD_BYTES = 4096

# No two neighbours alike, no zero, nothing that a kernel would write by chance.
_PATTERN = (np.arange(GUARD_BYTES) * 167 % 251 + 1).astype(np.uint8)


def aligned_empty(shape: tuple[int, ...], dtype: DType, align_bytes: int = ALIGN_BYTES) -> NDArray[np.generic]:
    """A C-contiguous array, not initialised, whose address is a multiple of `align_bytes` (a power of two).

    For short-lived arrays; `lasting_empty` is for arrays that stay.
    """
    size_bytes = prod(shape) * dtype.size_bytes
    allocate = aligned_block if size_bytes >= MAPPED_BYTES else _in_heap
    return allocate(size_bytes, align_bytes).view(dtype.numpy).reshape(shape)


def lasting_empty(shape: tuple[int, ...], dtype: DType) -> NDArray[np.generic]:
    """As `aligned_empty`, in an `aligned_block`."""
    return aligned_block(prod(shape) * dtype.size_bytes).view(dtype.numpy).reshape(shape)


def aligned_block(size_bytes: int, align_bytes: int = ALIGN_BYTES) -> NDArray[np.uint8]:
    """Aligned bytes, not initialised, for tensors that stay a while: in huge pages, where the system has some.

    Where small pages lie in physical memory is chance, and so is whether parts of a large array evict each other from
    the second-level cache: a convolution on a Zen 3 took 0.58 ms in one process and 0.95 in another.
    """
    if size_bytes in SLAB_BYTES:
        return _slab.take(size_bytes, align_bytes)
    if size_bytes < SLAB_BYTES.start:
        return _in_heap(size_bytes, align_bytes)
    return _cut(_map_pages(size_bytes + HUGE_BYTES), size_bytes, max(align_bytes, HUGE_BYTES))


class _Slab:
    """Hands out parts of a huge page, one behind the other, then of another page."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._room = np.empty(0, np.uint8)

    def take(self, size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
        """An aligned part, which keeps the whole page alive."""
        with self._turn:
            start = -address_of(self._room) % align_bytes
            if start + size_bytes > len(self._room):
                self._room, start = aligned_block(HUGE_BYTES, align_bytes), 0
            block, self._room = self._room[start : start + size_bytes], self._room[start + size_bytes :]
            return block

    def reset(self) -> None:
        """Start afresh in the child of a fork: the holder of the lock may be missing, and the page is shared."""
        self._turn, self._room = Lock(), np.empty(0, np.uint8)


_slab = _Slab()
os.register_at_fork(after_in_child=_slab.reset)


def address_of(array: NDArray[np.generic]) -> int:
    """Where an array's elements begin."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # takes a third of the other way's time
    except (TypeError, ValueError, BufferError):  # read-only, empty, or nothing that buffers know
        address: int = array.ctypes.data
        return address


class _Block:
    """Memory, and its description for numpy's array interface."""

    __slots__ = ("address", "interface", "memory")

    def __init__(self, size_bytes: int) -> None:
        self.memory = aligned_block(size_bytes)
        self.address: int = self.memory.ctypes.data
        self.interface = {"version": 3, "typestr": "|u1", "shape": (size_bytes,), "data": (self.address, False)}


class _Loan:
    """Owner of a block of arrays: numpy keeps it as their base, and recycles the block with the last of them."""

    __slots__ = ("__array_interface__", "_block", "_idle")

    def __init__(self, block: _Block, idle: list[_Block]) -> None:
        self._block, self._idle = block, idle
        self.__array_interface__ = block.interface

    def __del__(self) -> None:
        if len(self._idle) < IDLE_BLOCKS:
            self._idle.append(self._block)


class Recycler:
    """Creates arrays of one size, in memory that is reused once no array or view of it is left.

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
    """The size of an array inside a larger block, rounded up so that the next one is aligned, too."""
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _in_heap(size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
    return _cut(np.empty(size_bytes + align_bytes, np.uint8), size_bytes, align_bytes)


def _cut(block: NDArray[np.uint8], size_bytes: int, align_bytes: int) -> NDArray[np.uint8]:
    """The first so many bytes of it that are aligned."""
    start = -block.ctypes.data % align_bytes
    return block[start : start + size_bytes]


def _map_pages(size_bytes: int) -> NDArray[np.uint8]:
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
class GuardedArray:
    """`array` and the guards beside it. The array starts with all bits set: NaN in floats, -1 in signed integers."""

    array: NDArray[np.generic]
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]

    def check(self) -> str | None:
        """A description of writes outside the array (within 4 KiB on each side), or None."""
        damage = []
        for guard, side in ((self.before, "before"), (self.after, "after")):
            wrong = np.flatnonzero(guard != _PATTERN)
            if wrong.size:
                nearest = GUARD_BYTES - int(wrong[-1]) if side == "before" else int(wrong[0]) + 1
                damage.append(f"{wrong.size} bytes {side} the array, the nearest at distance {nearest}")
        return f"written out of bounds: {'; '.join(damage)}" if damage else None


def guarded_empty(shape: tuple[int, ...], dtype: DType, align_bytes: int = ALIGN_BYTES) -> GuardedArray:
    """An aligned array with guards of 4 KiB right before its first and right behind its last byte."""
    size_bytes = prod(shape) * dtype.size_bytes
    lead_bytes = -(-GUARD_BYTES // align_bytes) * align_bytes
    block = aligned_block(lead_bytes + size_bytes + GUARD_BYTES, align_bytes)
    inner = block[lead_bytes : lead_bytes + size_bytes]
    before, after = block[lead_bytes - GUARD_BYTES : lead_bytes], block[lead_bytes + size_bytes :]
    inner[:] = 0xFF
    before[:] = _PATTERN
    after[:] = _PATTERN
    return GuardedArray(inner.view(dtype.numpy).reshape(shape), before, after)


MAPPINGS = Path("/proc/self/smaps")
"""Linux's list of the mappings of a process, and how much of each is in memory."""

COMPILER = "libllvmlite"
"""Prefix of the file name of the library that contains LLVM."""

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(/.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
"""A mapping of a file, and the details of it that follow, a line each."""


def trim_heap() -> None:
    """Return free heap memory to the system, where the C library can (glibc keeps large blocks for later)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def trim_compiler() -> None:
    """Drop LLVM's unmodified pages: those that are needed again are read from its file when touched.

    Most took part in loading alone, or in compiling: some 40 MB once it is loaded, and twice that when it has compiled.
    Nothing happens where the system is not Linux.
    """
    global _compiler_mappings
    if not MAPPINGS.exists():
        return
    if not _compiler_mappings:  # it is not loaded yet, or these were never looked for
        text = MAPPINGS.read_text(encoding="utf-8", errors="replace")
        _compiler_mappings = tuple(clean_mappings(text, COMPILER))
    advise = ctypes.CDLL(None).madvise
    for begin, end in _compiler_mappings:
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(mmap.MADV_DONTNEED))


_compiler_mappings: tuple[tuple[int, int], ...] = ()
"""What `clean_mappings` found: the library stays where it was loaded, and nothing writes what can't be written.

To ask Linux for all mappings takes longer than to drop the pages.
"""


def clean_mappings(mappings: str, library: str) -> Iterator[tuple[int, int]]:
    """Begin and end of the mappings of a library that are read-only and were never written.

    Pages that were written, relocated tables say, would be lost. They may lie where nothing can be written any more.
    """
    for mapping in _MAPPING.finditer(mappings):
        begin, end, rights, path, details = mapping.groups()
        is_clean = rights in ("r--p", "r-xp") and re.search(r"^Anonymous: +0 ", details, re.MULTILINE)
        if is_clean and Path(path).name.startswith(library):
            yield int(begin, 16), int(end, 16)

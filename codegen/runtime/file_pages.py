"""FilePages: files in memory, read-only: mapped at first, then in huge pages at the same addresses."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..host import available_memory_bytes
from .memory import HUGE_BYTES

LEAST_BYTES = 4 * HUGE_BYTES
"""For fewer bytes huge pages are not worth it: processors remember where so many small ones are."""

MEMORY_SHARE = 0.25
"""Part that a copy may take of the memory that is free just now, and of that of the container."""

POPULATE_READ = 22
"""Linux's advice, from 5.14 on, that pages of a mapping be there before they are read: see madvise(2)."""

MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
"""Linux's numbers, which Python's `mmap` does not have: see mmap(2)."""

_EXCHANGE = 1 | 2 | 4
"""MREMAP_MAYMOVE, _FIXED and _DONTUNMAP, from 5.7 on: the addresses that the pages leave stay ours. See mremap(2)."""

HUGE_PAGES, MEMORY = Path("/sys/kernel/mm/transparent_hugepage/enabled"), Path("/proc/meminfo")


class FilePages:
    """Open files one behind the other, each from a page of its own on; they may be closed then. Raises OSError.

    `files` are pairs of a handle and the number of bytes, at least one. `blocks` are their contents.

    The system's memory of the files is used as it is: nothing is copied, processes share it, and where it lacks memory
    it drops pages that it can read again. A file that is mapped may be replaced or removed, but not changed. To read
    BERT's 434 MB into huge pages took 0.5 s, to map them 0.02 s; but a run on such small pages took 130 ms instead of
    117, as processors look up where each page is. So `make_huge` exchanges them later on.
    """

    def __init__(self, files: Sequence[tuple[int, int]]) -> None:
        rooms = [-(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE for _, size_bytes in files]
        self._range = _AddressRange(sum(rooms))
        self.size_bytes = sum(rooms)
        self.blocks: list[NDArray[np.uint8]] = []
        at = self._range.address
        for (handle, size_bytes), room in zip(files, rooms, strict=True):
            _call("mmap", at, size_bytes, mmap.PROT_READ, mmap.MAP_PRIVATE | MAP_FIXED, handle, 0)
            _populate(at, size_bytes)
            self.blocks.append(np.asarray(_Part(self._range, at, size_bytes)))
            at += room

    def make_huge(self) -> bool:
        """Put a copy in huge pages in the place of the files' pages; whether that was done.

        Readers see the same bytes all the while: the system exchanges the pages in one step. It is not done where the
        system has no huge pages, or memory is short; then processes go on sharing the files' pages.
        """
        if not _has_huge_pages() or self.size_bytes > MEMORY_SHARE * _free_bytes():
            return False
        copy, size_bytes = _AddressRange(self.size_bytes), self.size_bytes
        _call("mprotect", copy.address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        _call("madvise", copy.address, size_bytes, mmap.MADV_HUGEPAGE)
        ctypes.memmove(copy.address, self._range.address, size_bytes)
        _call("mprotect", copy.address, size_bytes, mmap.PROT_READ)
        _call("mremap", copy.address, size_bytes, size_bytes, _EXCHANGE, self._range.address)
        return True


class _AddressRange:
    """Addresses from a huge page's first on, at which nothing can be read or written yet. Given back with it."""

    def __init__(self, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._whole_bytes = size_bytes + HUGE_BYTES
        self._start = _call("mmap", None, self._whole_bytes, 0, flags, -1, 0)
        self.address = -(-self._start // HUGE_BYTES) * HUGE_BYTES
        self._unmap = ctypes.CDLL(None).munmap

    def __del__(self) -> None:
        self._unmap(ctypes.c_void_p(self._start), ctypes.c_size_t(self._whole_bytes))


class _Part:
    """A part of a range, which numpy keeps as the base of its array. Python's own mappings hold the file open."""

    __slots__ = ("__array_interface__", "_range")

    def __init__(self, addresses: _AddressRange, address: int, size_bytes: int) -> None:
        self._range = addresses
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size_bytes,), "data": (address, True)}


def _populate(address: int, size_bytes: int) -> None:
    """Have the pages there, many at a time; where the system has no such advice, they come when they are touched."""
    if sys.platform != "linux":
        return
    for advice in (mmap.MADV_HUGEPAGE, POPULATE_READ):
        try:
            _call("madvise", address, size_bytes, advice)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a page can't be read
                raise


def _call(name: str, *arguments: int | None) -> int:
    """A function of the system's that gives -1 where it fails. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_void_p if name in ("mmap", "mremap") else ctypes.c_int
    result = function(*(ctypes.c_void_p(argument) for argument in arguments))
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result or 0)


def _has_huge_pages() -> bool:
    try:
        return "[never]" not in HUGE_PAGES.read_text()
    except OSError:
        return False


def _free_bytes() -> int:
    """Memory that can be had just now, and no more than that of the container; 0 where the system does not say."""
    try:
        lines = MEMORY.read_text().splitlines()
    except OSError:
        return 0
    free = next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)
    return min(free, available_memory_bytes())

"""Memory that a process has and needs no more goes back to the system: of the heap, and of the compiler's code."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

MAPPINGS = Path("/proc/self/smaps")
"""Where Linux tells what a process has mapped, and how much of it is in memory."""

COMPILER = "libllvmlite"
"""How the file of the library begins that has LLVM in it."""

_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)")


def trim_heap() -> None:
    """Give back what was freed where the C library can be told to: glibc's keeps large blocks for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def trim_compiler() -> None:
    """Give back LLVM's pages, as far as they are as in its file: what is still wanted is there again when touched.

    Most took part in loading alone, or in compiling: some 40 MB once it is loaded, and twice that when it has compiled.
    Nothing happens where the system is not Linux.
    """
    if not MAPPINGS.exists():
        return
    advise = ctypes.CDLL(None).madvise
    for begin, end in unwritten(MAPPINGS.read_text(encoding="utf-8", errors="replace"), COMPILER):
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(mmap.MADV_DONTNEED))


def unwritten(mappings: str, library: str) -> Iterator[tuple[int, int]]:
    """Begin and end of what is mapped of a library, can't be written and never was: no page is other than in the file.

    Pages that were written, relocated tables say, would be lost. They may lie where nothing can be written any more.
    """
    place: tuple[int, int] | None = None
    for line in mappings.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            begin, end, rights, path = head.groups()
            ours = Path(path).name.startswith(library) and rights in ("r--p", "r-xp")
            place = (int(begin, 16), int(end, 16)) if ours else None
        elif place is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield place

"""What of a library's file is in memory: most of it took part in loading alone, or in compiling."""

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


def trim_compiler() -> None:
    """Give back LLVM's pages, as far as they are as in its file: what is still wanted is there again when touched.

    They are some 40 MB once it is loaded, and twice that when it has compiled. Nothing happens where the system is not
    Linux.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advice is None or advise is None or not MAPPINGS.exists():
        return
    for begin, end in unwritten(MAPPINGS.read_text(encoding="utf-8", errors="replace"), COMPILER):
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(advice))


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

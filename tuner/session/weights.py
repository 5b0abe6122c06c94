"""Weights: large constants by their content, on disk and in memory once for all images that have them.

Models of one architecture at several sizes, or on several numbers of threads, mostly read the same packed weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock, Timer, get_native_id
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.host import NICENESS
from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.runtime.file_pages import LEAST_BYTES, FilePages

Block = NDArray[np.uint8]

HUGE_AFTER_S = 0.5
"""When weights are put into huge pages: the first answers come before."""

_held: WeakValueDictionary[str, Block] = WeakValueDictionary()
"""Digest -> the weight, while something in this process has it."""

_turn = Lock()
os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


class WeightFiles:
    """Weights in a folder, each a file named by the SHA-256 of its bytes."""

    def __init__(self, files: PrivateFolder) -> None:
        self._files = files

    def put(self, weight: Block) -> str:
        """Keep a weight, which nobody changes any more; returns its digest. Raises OSError."""
        with _turn:  # one that serves several images is put again and again
            digest = next((known for known, held in _held.items() if held is weight), None)
        if digest is None:
            digest = hashlib.sha256(weight.data).hexdigest()
        path = self._path(digest)
        if not path.exists() or path.stat().st_size != weight.nbytes:
            self._files.write(path, [weight.data], lasting=True)
        with _turn:
            _held.setdefault(digest, weight)
        return digest

    def get(self, sizes: Sequence[tuple[str, int]]) -> tuple[Block, ...]:
        """Weights of these digests and sizes: those that this process has already, and the files of the others mapped.

        Processes share what they map. Raises OSError where one is missing, ValueError where one is cut short.
        """
        with _turn:
            found = {digest: held for digest, _ in sizes if (held := _held.get(digest)) is not None}
            missing = {digest: size for digest, size in sizes if digest not in found}
            if missing:
                found |= zip(missing, self._map(missing), strict=True)
            _held.update(found)
        for digest in found.keys() - missing.keys():
            os.utime(self._path(digest))  # in use; Raises where the file has gone: the next process would miss it
        return tuple(found[digest] for digest, _ in sizes)

    def _map(self, sizes: Mapping[str, int]) -> list[Block]:
        """The weights, in pages that are made huge when the first answers are there."""
        with ExitStack() as stack:
            files = [(stack.enter_context(self._path(digest).open("rb")), size) for digest, size in sizes.items()]
            for file, size_bytes in files:
                os.utime(file.fileno())
                if os.fstat(file.fileno()).st_size < size_bytes:
                    raise ValueError("a file that was cut short")
            pages = FilePages([(file.fileno(), size_bytes) for file, size_bytes in files])
        if pages.size_bytes >= LEAST_BYTES:
            timer = Timer(HUGE_AFTER_S, _make_huge, [pages])
            timer.daemon = True
            timer.start()
        return pages.blocks

    def _path(self, digest: str) -> Path:
        return self._files.path / f"{digest}.weight"


def _make_huge(pages: FilePages) -> None:
    """In a thread that steps back behind others; in small pages weights are as right, and slower."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        pages.make_huge()

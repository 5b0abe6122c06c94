"""Weights: large constants by their content, on disk and in memory once for all images that have them.

Models of one architecture at several sizes, or on several numbers of threads, mostly read the same packed weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock, Thread
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.runtime.memory import ALIGN_BYTES, aligned_block

Block = NDArray[np.uint8]

PIECE_BYTES = 8 << 20
"""Bytes that a thread reads at a time."""

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

    def get(self, sizes: Sequence[tuple[str, int]], readers: int) -> tuple[Block, ...]:
        """Weights of these digests and sizes, by at most so many threads: those that this process has already, and the
        others from their files. Raises OSError where one is missing, ValueError where one is cut short.
        """
        with _turn:
            found = {digest: held for digest, _ in sizes if (held := _held.get(digest)) is not None}
            missing = {digest: size for digest, size in sizes if digest not in found}
            found |= self._read(missing, readers)
            _held.update(found)
        for digest in found.keys() - missing.keys():
            os.utime(self._path(digest))  # in use; Raises where the file has gone: the next process would miss it
        return tuple(found[digest] for digest, _ in sizes)

    def _read(self, sizes: Mapping[str, int], readers: int) -> dict[str, Block]:
        """In one block of memory, whose pages are huge ones where the system has some."""
        rooms = {digest: -(-size // ALIGN_BYTES) * ALIGN_BYTES for digest, size in sizes.items()}
        block, start, found = aligned_block(sum(rooms.values())), 0, dict[str, Block]()
        for digest, size in sizes.items():
            found[digest] = block[start : start + size]
            start += rooms[digest]
        with ExitStack() as stack:
            pieces: list[Piece] = []
            for digest, weight in found.items():
                file = stack.enter_context(self._path(digest).open("rb"))
                os.utime(file.fileno())
                pieces += pieces_of(file.fileno(), 0, weight)
            read(pieces, readers)
        return found

    def _path(self, digest: str) -> Path:
        return self._files.path / f"{digest}.weight"


Piece = tuple[int, int, Block]
"""An open file, where to read in it, and the memory to fill."""


def pieces_of(handle: int, start: int, block: Block) -> list[Piece]:
    """The pieces of what begins at a place of a file."""
    return [
        (handle, start + begin, block[begin : begin + PIECE_BYTES]) for begin in range(0, block.nbytes, PIECE_BYTES)
    ]


def read(pieces: Sequence[Piece], readers: int) -> None:
    """Fill memory from files, by at most so many threads. Raises ValueError where a file is too short, and OSError."""
    faults: list[OSError | ValueError] = []

    def read_share(number: int) -> None:
        try:
            for piece in pieces[number::readers]:
                _fill(*piece)
        except (OSError, ValueError) as fault:
            faults.append(fault)

    threads = [Thread(target=read_share, args=(number,)) for number in range(1, min(readers, len(pieces)))]
    for thread in threads:
        thread.start()
    read_share(0)
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def _fill(handle: int, start: int, block: Block) -> None:
    view, done = block.data, 0
    while done < block.nbytes:
        count = os.preadv(handle, [view[done:]], start + done)
        if count == 0:
            raise ValueError("a file that was cut short")
        done += count

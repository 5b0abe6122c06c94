"""Accesses of buffers, as both interpreters see them: who read and wrote each element, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..gpu import WARP
from .ir import Buffer, Kernel

Array = NDArray[np.generic]


class BoundsError(IndexError):
    """An access outside its buffer."""


class UndefinedRead(RuntimeError):
    """A read of an element that nothing has written."""


class RaceError(RuntimeError):
    """Two iterations of a parallel loop, or threads, touch one element, and one of them at least writes it."""


def flat_parameters(kernel: Kernel, arrays: Sequence[Array]) -> Iterator[tuple[Buffer, Array]]:
    """The parameters of a kernel with their arrays, flat. Raises ValueError if these don't fit."""
    for buffer, array in zip(kernel.params, arrays, strict=True):
        if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
            layout = "" if array.flags.c_contiguous else ", not contiguous"
            raise ValueError(f"parameter {buffer}: the array is {array.dtype}{list(array.shape)}{layout}")
        yield buffer, array.reshape(-1)


def element_name(buffer: Buffer, number: int) -> str:
    """The element with a linear index, for people."""
    return f"{buffer.name}{[int(i) for i in np.unravel_index(number, buffer.shape)]}"


class ThreadElements(NamedTuple):
    """Elements that threads access: (active threads, leading lanes in use)."""

    buffer: Buffer
    where: NDArray[np.int64]  # linear index in the memory of all owners
    threads: NDArray[np.int64]  # their numbers

    def of(self, chosen: slice | NDArray[np.bool_]) -> ThreadElements:
        """Those of some of the threads."""
        return ThreadElements(self.buffer, self.where[chosen], self.threads[chosen])

    def first_name(self, chosen: NDArray[np.bool_]) -> str:
        """The first of some elements, for people."""
        number = int(self.where[chosen][0]) % prod(self.buffer.shape)
        index = [int(i) for i in np.unravel_index(number, self.buffer.shape)]
        return f"{self.buffer.name}{index}"


NOBODY, SEVERAL = -1, -2
"""Values in place of the number of a thread, a block or an iteration."""


def warp_of(threads: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values that stand for the whole warps of threads."""
    return SEVERAL - 1 - threads // WARP


@dataclass(slots=True)
class AccessLog:
    """The thread (in a block), block (in a launch) or iteration that accessed each element since the last barrier."""

    reader: NDArray[np.int64]
    writer: NDArray[np.int64]
    what: str
    is_changed: bool = False  # since the last `sync_warps`

    @staticmethod
    def empty(size: int, what: str) -> AccessLog:
        return AccessLog(np.full(size, NOBODY), np.full(size, NOBODY), what)

    def forget(self) -> None:
        self.reader.fill(NOBODY)
        self.writer.fill(NOBODY)

    def forget_at(self, elements: ThreadElements) -> None:
        """Forget accesses to these elements: later ones are ordered after those."""
        self.reader[elements.where] = NOBODY
        self.writer[elements.where] = NOBODY

    def sync_warps(self) -> None:
        """Attribute accesses of threads to their whole warps, which have met."""
        if self.is_changed:
            for by in (self.reader, self.writer):
                np.copyto(by, warp_of(by), where=by >= 0)
        self.is_changed = False

    def read(self, elements: ThreadElements, by: NDArray[np.int64]) -> None:
        """Note reads; `by` has the reader of each element. Raises RaceError."""
        self.is_changed = True
        self._refuse(elements, by, self.writer, "reads", "wrote")
        before = self.reader[elements.where]
        is_own = (before == NOBODY) | (before == by) | (before == warp_of(by))
        self.reader[elements.where] = np.where(is_own, by, SEVERAL)
        again = self.reader[elements.where]  # of several readers in this statement the last one is noted
        self.reader[elements.where[(again != by) & (again != SEVERAL)]] = SEVERAL

    def write(self, elements: ThreadElements, by: NDArray[np.int64]) -> None:
        """Note writes, as `read`."""
        self.is_changed = True
        self._refuse(elements, by, self.writer, "writes", "wrote")
        self._refuse(elements, by, self.reader, "writes", "read")
        self.writer[elements.where] = by
        self._refuse(elements, by, self.writer, "writes", "writes too")

    def _refuse(
        self, elements: ThreadElements, by: NDArray[np.int64], before: NDArray[np.int64], does: str, did: str
    ) -> None:
        others = before[elements.where]
        clashes = (others != NOBODY) & (others != by) & (others != warp_of(by))
        if clashes.any():
            other = others[clashes][0]
            which = "several" if other < 0 else other
            does = f"{self.what} {by[clashes][0]} {does} {elements.first_name(clashes)}"
            raise RaceError(f"{does}, which {self.what} {which} {did}")

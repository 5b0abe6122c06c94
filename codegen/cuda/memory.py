"""What is known of each element of a buffer while a kernel of a GPU is interpreted: its value, and who touched it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..interp import Array, RaceError, UndefinedRead
from ..ir import Buffer, Scope

NOBODY, SEVERAL = -1, -2
"""In the place of a thread or a block."""


@dataclass(slots=True)
class Notes:
    """Who touched each element since all met last; in a block its threads, in a launch its blocks."""

    reader: NDArray[np.int64]
    writer: NDArray[np.int64]
    what: str

    @staticmethod
    def none(size: int, what: str) -> Notes:
        return Notes(np.full(size, NOBODY), np.full(size, NOBODY), what)

    def forget(self) -> None:
        self.reader.fill(NOBODY)
        self.writer.fill(NOBODY)

    def read(self, places: Places, by: NDArray[np.int64]) -> None:
        """`by`: for each place, who reads there."""
        self._refuse(places, by, self.writer, "reads", "wrote")
        before = self.reader[places.where]
        self.reader[places.where] = np.where((before == NOBODY) | (before == by), by, SEVERAL)
        again = self.reader[places.where]  # of several in this very statement the last one is noted
        self.reader[places.where[(again != by) & (again != SEVERAL)]] = SEVERAL

    def wrote(self, places: Places, by: NDArray[np.int64]) -> None:
        """As `read`."""
        self._refuse(places, by, self.writer, "writes", "wrote")
        self._refuse(places, by, self.reader, "writes", "read")
        self.writer[places.where] = by
        self._refuse(places, by, self.writer, "writes", "writes too")

    def _refuse(self, places: Places, by: NDArray[np.int64], before: NDArray[np.int64], does: str, did: str) -> None:
        others = before[places.where]
        clashes = (others != NOBODY) & (others != by)
        if clashes.any():
            other = others[clashes][0]
            which = "several" if other == SEVERAL else other
            does = f"{self.what} {by[clashes][0]} {does} {places.element(clashes)}"
            raise RaceError(f"{does}, which {self.what} {which} {did}")


WRITTEN, SHOWN = 2, 1
"""What threads did to an element that products, which are apart from them, have not seen yet; shown it is, once all of
a block have met. 0: nothing."""


@dataclass(slots=True)
class Memory:
    """A buffer's elements, flat: those of each owner, which is the device, a block or a thread."""

    buffer: Buffer
    data: Array
    undefined: NDArray[np.bool_]
    arriving: NDArray[np.bool_]  # asynchronous copies are under way to them, or products
    lent: NDArray[np.bool_]  # products read them
    unseen: NDArray[np.uint8]  # by products: see WRITTEN
    is_shown: bool = False  # some of it, since all met last
    threads: Notes | None = None
    blocks: Notes | None = None

    @staticmethod
    def of(buffer: Buffer, data: Array, *, defined: bool = False) -> Memory:
        none = np.zeros(data.shape, np.bool_)
        return Memory(buffer, data, np.full(data.shape, not defined), none, none.copy(), none.astype(np.uint8))

    def show(self) -> None:
        """What was written so far is to be seen by products."""
        self.is_shown = self.buffer.scope is not Scope.REGISTER
        self.unseen[self.unseen == WRITTEN] = SHOWN if self.is_shown else 0

    def meet(self) -> None:
        """All threads of a block have met."""
        if self.is_shown:
            self.unseen[self.unseen == SHOWN] = 0
        self.is_shown = False
        if self.threads is not None:
            self.threads.forget()

    def defined(self, places: Places) -> Array:
        """What is there. Raises UndefinedRead."""
        undefined = self.undefined[places.where]
        if undefined.any():
            raise UndefinedRead(f"{places.element(undefined)} is read before anything wrote it")
        return self.data[places.where]

    def put(self, places: Places, values: Array) -> None:
        """Threads write it."""
        self.data[places.where] = values
        self.undefined[places.where] = False
        self.unseen[places.where] = WRITTEN

    def refuse_arriving(self, places: Places) -> None:
        """Raises RaceError where a copy or a product is under way to what is touched."""
        arriving = self.arriving[places.where]
        if arriving.any():
            raise RaceError(f"{places.element(arriving)} is touched before what comes to it was waited for")

    def refuse_lent(self, places: Places) -> None:
        """Raises RaceError where a product still reads what is written."""
        lent = self.lent[places.where]
        if lent.any():
            raise RaceError(f"{places.element(lent)} is written before the product that reads it was waited for")

    def refuse_unseen(self, places: Places, by: str) -> None:
        """Raises RaceError where a product can't see yet what is there."""
        unseen = self.unseen[places.where] > 0
        if unseen.any():
            raise RaceError(f"{by} reads {places.element(unseen)}, which was not shown to it")

    def read_by_several(self, places: Places) -> None:
        """What a product reads is read by a unit that all threads of the group have in common."""
        if self.threads is not None:
            self.threads.reader[places.where] = SEVERAL


class Places(NamedTuple):
    """Elements that threads touch: (threads that do, leading lanes in use)."""

    buffer: Buffer
    where: NDArray[np.int64]  # in the memory of all owners
    threads: NDArray[np.int64]  # which threads

    def element(self, chosen: NDArray[np.bool_]) -> str:
        """The first of some elements, for people."""
        number = int(self.where[chosen][0]) % prod(self.buffer.shape)
        index = [int(i) for i in np.unravel_index(number, self.buffer.shape)]
        return f"{self.buffer.name}{index}"

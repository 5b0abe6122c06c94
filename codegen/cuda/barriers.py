"""What roles of a block wait for while a kernel of a GPU is interpreted: barriers, and each other's turns.

A barrier in shared memory holds the number of its phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from ..gpu import WARP
from ..instructions.warpgroup import GROUP, PAIR
from ..ir.access import RaceError, ThreadElements
from .buffer_state import AsyncCopy, BufferState


@dataclass(slots=True, eq=False)
class Read:
    """Reads of shared memory, and whether a barrier has ordered what follows behind them."""

    memory: BufferState
    elements: ThreadElements
    is_ordered: bool = False

    def order(self) -> None:
        """Order what follows behind these reads, at the first of the barriers that their threads come to."""
        if not self.is_ordered and self.memory.threads is not None:
            self.memory.threads.forget_at(self.elements)
        self.is_ordered = True


@dataclass(slots=True)
class BarrierPhase:
    """A phase of a barrier: the arrivals and bytes so far, and pending copies."""

    arrivals: int = 0
    expected_bytes: int = 0
    copies: list[AsyncCopy] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)  # reads that happened before the arrivals

    def is_complete(self, arrivals: int) -> bool:
        """Whether `arrivals` threads have arrived and the copies bring exactly the expected bytes."""
        return self.arrivals == arrivals and self.expected_bytes == sum(copy.values.nbytes for copy in self.copies)


@dataclass(slots=True)
class Reads:
    """Reads of shared memory in a role that no barrier has ordered yet: of threads, and of warps that met since."""

    _of_threads: list[Read] = field(default_factory=list)
    _of_warps: list[Read] = field(default_factory=list)

    def note(self, memory: BufferState, elements: ThreadElements) -> None:
        """Note reads of threads."""
        self._of_threads.append(Read(memory, elements))

    def note_warps(self, memory: BufferState, elements: ThreadElements) -> None:
        """Note reads of whole warps."""
        self._of_warps.append(Read(memory, elements))

    def sync_warps(self) -> None:
        """Attribute reads of threads to their whole warps."""
        self._of_warps += self._of_threads
        self._of_threads = []

    def known(self, threads: NDArray[np.int64]) -> list[Read]:
        """The reads known to some threads, which arrive at a barrier."""
        of_threads, others = _divide(self._of_threads, threads, 1)
        of_warps, other_warps = _divide(self._of_warps, threads, WARP)
        self._of_threads, self._of_warps = of_threads + others, of_warps + other_warps
        return of_threads + of_warps


def _divide(reads: list[Read], threads: NDArray[np.int64], together: int) -> tuple[list[Read], list[Read]]:
    """The reads of some threads (in groups of `together`), and those of others."""
    known = np.unique(threads // together)
    own: list[Read] = []
    others: list[Read] = []
    for read in reads:
        is_own = np.isin(read.elements.threads // together, known)
        if read.is_ordered:
            continue
        if is_own.all():
            own.append(read)
        elif not is_own.any():
            others.append(read)
        else:
            own.append(Read(read.memory, read.elements.of(is_own)))
            others.append(Read(read.memory, read.elements.of(~is_own)))
    return own, others


@dataclass(slots=True)
class Barriers:
    """The barriers of some blocks: in shared memory, by buffer and element, and named ones, by block and number."""

    _phases: dict[tuple[str, int], BarrierPhase] = field(default_factory=dict)  # phases that are not over
    _arrivals: dict[tuple[str, int], int] = field(default_factory=dict)  # arrivals that end a phase
    _visits: dict[tuple[int, int], int] = field(default_factory=dict)  # threads, by block and number of named ones

    @property
    def has_copies(self) -> bool:
        return any(phase.copies for phase in self._phases.values())

    def set_up(self, memory: BufferState, elements: ThreadElements, arrivals: int) -> None:
        """Set the number of arrivals that end a phase."""
        self._arrivals.update({(memory.buffer.name, element): arrivals for element in elements.where[:, 0].tolist()})

    def phases(self, memory: BufferState, elements: ThreadElements) -> list[BarrierPhase]:
        """The phases of the barriers that threads name. Raises UndefinedRead."""
        memory.read(elements)
        return [self._phase(memory, element) for element in elements.where[:, 0].tolist()]

    def arrive(self, memory: BufferState, elements: ThreadElements, size_bytes: int, reads: Reads) -> None:
        """Threads arrive at the barriers that they name, and say how much comes. Raises UndefinedRead."""
        memory.read(elements)
        for element in np.unique(elements.where[:, 0]).tolist():
            threads, phase = elements.threads[elements.where[:, 0] == element], self._phase(memory, element)
            phase.arrivals += len(threads)
            phase.expected_bytes += size_bytes * len(threads)
            phase.reads += reads.known(threads)

    def is_over(self, memory: BufferState, element: int, last_bit: int) -> bool:
        """Whether the phase whose number has this last bit is over, or nothing is missing for that."""
        phase = self._phases.get((memory.buffer.name, element))
        return self._has_ended(memory, element, last_bit) or (
            phase is not None and phase.is_complete(self._arrivals[memory.buffer.name, element])
        )

    def end(self, memory: BufferState, element: int, last_bit: int) -> BarrierPhase | None:
        """End the phase whose number has this last bit, and return it; None where it was ended before."""
        if self._has_ended(memory, element, last_bit):
            return None
        memory.data[element] = memory.data[element] + 1
        return self._phases.pop((memory.buffer.name, element))

    def arrive_named(self, block: int, number: int) -> int:
        """A warpgroup comes to a named barrier of its block: how many threads have come there so far."""
        self._visits[block, number] = self._visits.get((block, number), 0) + GROUP
        return self._visits[block, number]

    def has_pair_met(self, block: int, number: int, come: int) -> bool:
        """Whether both warpgroups of a pair have come: the pair of the one with which `come` threads had come."""
        return self._visits[block, number] >= -(-come // PAIR) * PAIR

    def _phase(self, memory: BufferState, element: int) -> BarrierPhase:
        return self._phases.setdefault((memory.buffer.name, element), BarrierPhase())

    @staticmethod
    def _has_ended(memory: BufferState, element: int, last_bit: int) -> bool:
        return bool(memory.data[element] % 2 != last_bit)


class Turns:
    """A deterministic scheduler of roles: each runs until it waits, whatever the order of Python's threads."""

    def __init__(self, count: int) -> None:
        self._condition = Condition()
        self._waiting = list(range(count))  # the roles that are not done, the one whose turn it is first
        self._idle = 0  # roles in a row that found nothing new
        self._failure: int | None = None  # the role that failed first

    def run(self, roles: Sequence[Callable[[], None]]) -> None:
        """Run all roles to their ends. Raises the error of the role that fails first."""
        with ThreadPoolExecutor(len(roles)) as pool:
            contexts = [copy_context() for _ in roles]
            futures = [pool.submit(contexts[n].run, self._play, n, role) for n, role in enumerate(roles)]
        if self._failure is not None:
            futures[self._failure].result()

    def progress(self) -> None:
        """Note that the current role did something that others may wait for."""
        self._idle = 0

    def wait(self, is_over: Callable[[], bool], what: str) -> None:
        """Suspend the current role until `is_over()`. Raises RaceError on a deadlock."""
        while not is_over():
            self._idle += 1
            if self._idle > len(self._waiting):
                raise RaceError(f"{what}: threads wait for what nobody brings")
            with self._condition:
                role = self._waiting.pop(0)
                self._waiting.append(role)
                self._condition.notify_all()
                self._await(role)
        self.progress()

    def _play(self, number: int, role: Callable[[], None]) -> None:
        has_ended = False
        with self._condition:
            self._await(number)
        try:
            role()
            has_ended = True
        finally:
            with self._condition:
                if not has_ended and self._failure is None:
                    self._failure = number
                self._waiting.remove(number)
                self._idle = 0
                self._condition.notify_all()

    def _await(self, number: int) -> None:
        self._condition.wait_for(lambda: self._failure is not None or self._waiting[0] == number)
        if self._failure is not None:
            raise _Cancellation


class _Cancellation(Exception):
    """Another role failed."""

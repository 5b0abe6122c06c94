"""Cache flush: timing a kernel with its constants as far away as in the run of a model.

Between two runs of a kernel in a model all others run, and read their own weights. A kernel that is timed again and
again on the same memory looks faster than it is in any model, and one that reads many transformed weights to save
arithmetic looks better than one that reads few. Inputs and outputs are in the caches in a model too: the kernel before
has just written them.

How far away constants are depends on the model. Those of a task that fill a core's second-level cache are read from
memory, since models with such tasks are larger than the last-level cache; others from the last-level cache.

- From memory: they are evicted before each run (`Eviction`), by an instruction for each line. Copies that exceed the
  last-level cache would do too, but take 40 MB or more for each packing, and filling them takes longer than building
  and timing a candidate.
- From the last-level cache: no instruction evicts from the nearer caches alone, and some last-level caches hold only
  what was evicted from those. So each run reads the next of many copies (`Copies`), which together exceed the
  second-level caches. Schedules that read the same packing share the copies and take turns on them, so that no run
  finds in the cache what another has just read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum, auto
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import Caches
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.runtime.library import eviction_kernel
from tunewright.codegen.runtime.memory import address_of, room_bytes
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool

Array = NDArray[Any]

EVICTING_RATIO = 1.25
"""Constants of this multiple of the last-level cache evict each other: none are left from the run before."""

USABLE_L3_BYTES = 32 << 20
"""The part of a last-level cache that a model can count on: many cores share larger ones, on virtual machines with
other guests. On two cores of a Xeon with 260 MiB, resnet18 took 12 to 17% longer than by default with the schedules
that were the fastest in warm caches for its three largest tasks."""

COPIES_RATIO = 4
"""Copies take this multiple of the second-level caches, so that none of them stays there."""

MAX_COPIES = 256

LASTING_S = 2e-3
"""A run of this length loads its inputs and outputs by itself, and takes as long with warm constants as with cold."""

OWN = range(1)
"""The call of a program with the constants themselves instead of copies."""


class Distance(Enum):
    """How far away the constants of a kernel are in the run of a model."""

    ANY = auto()  # there are none, or too many for any cache
    MEMORY = auto()
    LAST_LEVEL = auto()


def distance(constant_bytes: int, caches: Caches, threads: int) -> Distance:
    """How far away so many bytes of constants are in most models."""
    cache_bytes = max(caches.l3_bytes, COPIES_RATIO * caches.l2_bytes * threads)
    if not constant_bytes or constant_bytes >= EVICTING_RATIO * cache_bytes:
        return Distance.ANY
    return Distance.MEMORY if constant_bytes >= caches.l2_bytes else Distance.LAST_LEVEL


def is_warm_in_model(constant_bytes: int, model_bytes: int, l2_bytes: int, l3_bytes: int) -> bool:
    """Whether a kernel's constants are as near in this model as after a run of the kernel alone.

    `model_bytes` are the constants of all its kernels.
    """
    if model_bytes <= l2_bytes:
        return True
    is_far = constant_bytes >= l2_bytes  # a run alone leaves them in the last-level cache
    return is_far and EVICTING_RATIO * model_bytes <= min(l3_bytes, USABLE_L3_BYTES)


def copy_count(constant_bytes: int, caches: Caches, threads: int) -> int:
    """Number of copies of constants that exceed the second-level caches."""
    return min(ceil(COPIES_RATIO * caches.l2_bytes * threads / constant_bytes), MAX_COPIES)


class Copies:
    """Copies of some arrays, to be read in turn. `addresses[i]` are those of the i-th copy."""

    def __init__(self, arrays: Sequence[Array], memory: NDArray[np.uint8]) -> None:
        """Fill `memory`, which is aligned and has room for whole copies of `copy_bytes` each."""
        stride = copy_bytes(arrays)
        self.size_bytes = len(memory)
        self._memory = memory  # stored, as only its addresses are used
        self._count = len(memory) // stride
        rows = memory[: self._count * stride].reshape(self._count, stride)
        offsets = []
        offset = 0
        for array in arrays:
            offsets.append(offset)
            rows[0, offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
            offset += room_bytes(array.nbytes)
        rows[1:] = rows[0]
        start = address_of(memory)
        self.addresses = [[start + n * stride + offset for offset in offsets] for n in range(self._count)]
        self._next = 0

    def take(self, runs: int) -> tuple[range, int]:
        """The next copies, at most `runs`, and how many times each is read in a row."""
        if self._next == 0 and runs >= self._count:
            return range(self._count), runs // self._count
        first = self._next
        end = min(first + runs, self._count)
        self._next = end % self._count
        return range(first, end), 1

    def sample_s(self, program: Program, runs: int) -> float:
        """Mean seconds of a run of a program whose calls are `OWN` and one for each copy, in their order.

        The clock stops where the turn comes back to the first copy.
        """
        remaining_runs, total_s = runs, 0.0
        while remaining_runs:
            numbers, rounds = self.take(remaining_runs)
            [round_s] = program.time(1, rounds, calls=range(numbers.start + 1, numbers.stop + 1))
            total_s += rounds * round_s
            remaining_runs -= rounds * len(numbers)
        return total_s / runs


def copy_bytes(arrays: Sequence[Array]) -> int:
    """Memory of one copy of all arrays."""
    return sum(room_bytes(array.nbytes) for array in arrays)


class Eviction:
    """Programs (`evictors`) that evict arrays from all caches, on the threads that read them."""

    def __init__(self, evictors: Sequence[Program]) -> None:
        self._evictors = evictors

    def evict(self) -> None:
        """Evict the arrays."""
        for program in self._evictors:
            program.run()

    def sample_s(self, program: Program, runs: int) -> float:
        """Mean seconds of a run of a program's first call. The clock stops during evictions."""
        total_s = 0.0
        for _ in range(runs):
            self.evict()
            [run_s] = program.time(1, calls=OWN)
            total_s += run_s
        return total_s / runs


def evictor(array: Array, pool: ThreadPool) -> Program:
    """A program that evicts an array from all caches."""
    return Program([(eviction_kernel(Buffer("memory", array.shape, DType(array.dtype.name))), [array])], pool)


class Runs:
    """Runs of a kernel, each after a `flush` of its constants; None: without."""

    def __init__(self, program: Program, flush: Copies | Eviction | None) -> None:
        self._program = program
        self.flush = flush

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        """Seconds of a run, once a sample, as `Program.time`."""
        if self.flush is None:
            return self._program.time(samples, repeats, deadline_s=deadline_s, calls=OWN)
        samples_s = [self.flush.sample_s(self._program, repeats)]
        while len(samples_s) < samples and time.monotonic() < deadline_s:
            samples_s.append(self.flush.sample_s(self._program, repeats))
        return samples_s

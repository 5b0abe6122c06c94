"""Cold: timing a kernel with its constants where the run of a model finds them, not in the nearest cache.

Between two runs of one kernel of a model all others run, and read their own weights. So a kernel that is timed by
itself, again and again on the same memory, looks faster than it is in any model, and one that reads many transformed
weights to save arithmetic looks better than one that reads few. Inputs and results stay what they are in a model: just
written, by the kernel before.

How far away constants are depends on the model. Those of a task that fill a core's second-level cache are read from
memory, since models with such tasks are larger than the last-level cache; others from the last-level cache.

- From memory: they are evicted before each run (`Evicted`), by an instruction that does so line by line. Copies that
  exceed the last-level cache, read in turn, would do as well. But each form that schedules read constants in would take
  40 MB of them or more, and to fill these takes longer than to build and time a candidate.
- From the last-level cache: no instruction evicts from the nearer ones alone, and some last-level caches have only what
  fell out of those. So the constants are there many times, and each run reads the next copy (`Copies`). Together they
  exceed the second-level caches, which is soon filled. Schedules of a task that read their constants in the same form
  share the copies, and take turns on them: so no run of one finds in the cache what the other has just read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum, auto
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.host import Caches
from tunewright.codegen.ir import Buffer
from tunewright.codegen.runtime.eviction import evicting
from tunewright.codegen.runtime.memory import address_of, room_bytes
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool

Array = NDArray[Any]

BEYOND = 1.25
"""Times the last-level cache that constants take, for none of them to be left there from the run before."""

COUNTED_ON_BYTES = 32 << 20
"""Of a last-level cache, what a model can count on: larger ones are of chips that many cores share, on virtual machines
with strangers. Two cores of a Xeon with 260 MiB did not keep the weights of resnet18 there from run to run: with those
schedules for its three largest tasks that were the fastest in warm caches, it took 12 to 17% longer than by default."""

NEAR = 4
"""Times the second-level caches that copies take to be in none of them."""

MOST_COPIES = 256

LASTING_S = 2e-3
"""A run of that length brings inputs and outputs near by itself, and takes about as long wherever its constants are."""

OWN = range(1)
"""The call of a program that has the constants themselves, not copies."""


class Distance(Enum):
    """How far away the run of a model finds a kernel's constants."""

    ANY = auto()  # there are none, or so many that no cache keeps them
    MEMORY = auto()
    LAST_LEVEL = auto()


def distance(constant_bytes: int, caches: Caches, threads: int) -> Distance:
    """How far away so many bytes of constants are, in most models."""
    if not constant_bytes or constant_bytes >= BEYOND * max(caches.l3_bytes, NEAR * caches.l2_bytes * threads):
        return Distance.ANY
    return Distance.MEMORY if constant_bytes >= caches.l2_bytes else Distance.LAST_LEVEL


def stays(constant_bytes: int, model_bytes: int, l2_bytes: int, l3_bytes: int) -> bool:
    """Whether a kernel's constants are, when its turn comes again in this model, where a run of it alone leaves them.

    `model_bytes` are those of all its kernels.
    """
    if model_bytes <= l2_bytes:
        return True
    is_far = constant_bytes >= l2_bytes  # so that a run alone leaves them in the last-level cache
    return is_far and BEYOND * model_bytes <= min(l3_bytes, COUNTED_ON_BYTES)


def copies(constant_bytes: int, caches: Caches, threads: int) -> int:
    """How many copies of constants, more than none, are in no second-level cache when their turn comes."""
    return min(ceil(NEAR * caches.l2_bytes * threads / constant_bytes), MOST_COPIES)


class Copies:
    """Copies of some arrays, and whose turn it is. `addresses[i]` are where those of the i-th copy begin."""

    def __init__(self, arrays: Sequence[Array], memory: NDArray[np.uint8]) -> None:
        """As many as fit into `memory`, which is aligned and has room for `copy_bytes` of each."""
        stride = copy_bytes(arrays)
        self.size_bytes = len(memory)
        self._memory = memory  # kept, as only addresses of it go on
        self._count = len(memory) // stride
        each = memory[: self._count * stride].reshape(self._count, stride)
        offsets = []
        offset = 0
        for array in arrays:
            offsets.append(offset)
            each[0, offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
            offset += room_bytes(array.nbytes)
        each[1:] = each[0]
        start = address_of(memory)
        self.addresses = [[start + n * stride + offset for offset in offsets] for n in range(self._count)]
        self._next = 0

    def take(self, runs: int) -> tuple[range, int]:
        """The copies whose turn it is, at most as many as there shall be `runs`, and how often in a row."""
        if self._next == 0 and runs >= self._count:
            return range(self._count), runs // self._count
        first = self._next
        end = min(first + runs, self._count)
        self._next = end % self._count
        return range(first, end), 1

    def sample_s(self, program: Program, runs: int) -> float:
        """Seconds of a run of a program whose calls are `OWN` and one for each of the copies, in their order.

        Between pieces of the sample, where the turn comes to the first copy, no clock runs.
        """
        left, spent_s = runs, 0.0
        while left:
            numbers, rounds = self.take(left)
            [round_s] = program.time(1, rounds, calls=range(numbers.start + 1, numbers.stop + 1))
            spent_s += rounds * round_s
            left -= rounds * len(numbers)
        return spent_s / runs


def copy_bytes(arrays: Sequence[Array]) -> int:
    """Memory of one copy of all."""
    return sum(room_bytes(array.nbytes) for array in arrays)


class Evicted:
    """Arrays that are put out of all caches before each run, by the threads that run it. `evictors` do that."""

    def __init__(self, evictors: Sequence[Program]) -> None:
        self._evictors = evictors

    def evict(self) -> None:
        """Put them out."""
        for program in self._evictors:
            program.run()

    def sample_s(self, program: Program, runs: int) -> float:
        """Seconds of a run of a program's first call, which reads the arrays. No clock runs while they are put out."""
        spent_s = 0.0
        for _ in range(runs):
            self.evict()
            [run_s] = program.time(1, calls=OWN)
            spent_s += run_s
        return spent_s / runs


def evictor(array: Array, pool: ThreadPool) -> Program:
    """What puts an array out of all caches."""
    return Program([(evicting(Buffer("memory", array.shape, DType(array.dtype.name))), [array])], pool)


class Runs:
    """Runs of a kernel, each with its constants where `away` puts them; None: where they are."""

    def __init__(self, program: Program, away: Copies | Evicted | None) -> None:
        self._program = program
        self.away = away

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        """Seconds of a run, once a sample: see `Program.time`."""
        if self.away is None:
            return self._program.time(samples, repeats, deadline_s=deadline_s, calls=OWN)
        taken = [self.away.sample_s(self._program, repeats)]
        while len(taken) < samples and time.monotonic() < deadline_s:
            taken.append(self.away.sample_s(self._program, repeats))
        return taken

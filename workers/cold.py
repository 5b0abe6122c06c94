"""Cold: timing a kernel with its constants where the run of a model finds them, not in the nearest cache.

Between two runs of one kernel of a model all others run, and read their own weights. So a kernel that is timed by
itself, again and again on the same memory, looks faster than it is in any model, and one that reads many transformed
weights to save arithmetic looks better than one that reads few. Here the constants are there many times, and each run
reads the next copy. Inputs and results stay what they are in a model: just written, by the kernel before.

Schedules of a task that read their constants in the same form share the copies, and take turns on them: so no run of
one finds in the cache what the other has just read.

How far away constants are depends on the model. Those of a task that fill a core's second-level cache are read from
memory, since models with such tasks are larger than the last-level cache; others from the last-level cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.host import Caches
from tunewright.codegen.runtime.memory import address_of, room_bytes
from tunewright.codegen.runtime.native import Program

Array = NDArray[Any]

BEYOND = 1.25
"""Times the last-level cache that the copies take, for none to be there when its turn comes again."""

NEAR = 4
"""Times the second-level caches that copies take to be in none of them."""

MOST_COPIES = 256

OWN = range(1)
"""The call of a program that has the constants themselves, not copies."""


def copies(constant_bytes: int, caches: Caches, threads: int) -> int:
    """How many copies of a kernel's constants put them as far away as they are in a model."""
    if not constant_bytes:
        return 1
    near_bytes = NEAR * caches.l2_bytes * threads
    last_bytes = max(caches.l3_bytes, near_bytes)
    wanted_bytes = BEYOND * last_bytes if constant_bytes >= caches.l2_bytes else near_bytes
    return min(ceil(wanted_bytes / constant_bytes), MOST_COPIES)


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


def copy_bytes(arrays: Sequence[Array]) -> int:
    """Memory of one copy of all."""
    return sum(room_bytes(array.nbytes) for array in arrays)


class Cold:
    """Runs of a kernel, each with the copy of its constants whose turn it is, or all with the constants themselves.

    The program's calls are `OWN`, with these, and one for each of the copies, in their order.
    """

    def __init__(self, program: Program, turns: Copies | None) -> None:
        self._program = program
        self._turns = turns

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        """Seconds of a run, once a sample: see `Program.time`."""
        if self._turns is None:
            return self._program.time(samples, repeats, deadline_s=deadline_s, calls=OWN)
        taken = [self._sample_s(self._turns, repeats)]
        while len(taken) < samples and time.monotonic() < deadline_s:
            taken.append(self._sample_s(self._turns, repeats))
        return taken

    def _sample_s(self, turns: Copies, runs: int) -> float:
        """Seconds of a run. Between pieces of the sample, where the turn comes to the first copy, no clock runs."""
        left, spent_s = runs, 0.0
        while left:
            numbers, rounds = turns.take(left)
            [round_s] = self._program.time(1, rounds, calls=range(numbers.start + 1, numbers.stop + 1))
            spent_s += rounds * round_s
            left -= rounds * len(numbers)
        return spent_s / runs

"""Cold: timing a kernel with its constants where the run of a model finds them, not in the nearest cache.

Between two runs of one kernel of a model all others run, and read their own weights. So a kernel that is timed by
itself, again and again on the same memory, looks faster than it is in any model, and one that reads many transformed
weights to save arithmetic looks better than one that reads few. Here the constants are there many times, and each run
reads the next copy. Inputs and results stay what they are in a model: just written, by the kernel before.

How far away constants are depends on the model. Those of a task that fill a core's second-level cache are read from
memory, since models with such tasks are larger than the last-level cache; others from the last-level cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from math import ceil, inf
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.dtype import DType
from tunewright.codegen.host import Caches
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool

Array = NDArray[Any]

BEYOND = 1.25
"""Times the last-level cache that the copies take, for none to be there when its turn comes again."""

NEAR = 4
"""Times the second-level caches that copies take to be in none of them."""

MOST_COPIES = 256

PARTS = 5
"""Programs that the runs of all copies are divided among, so that a sample need not be a whole round."""

PART_S = 500e-6
"""A part takes that long at least: it is a sample."""


def copies(constant_bytes: int, caches: Caches, threads: int) -> int:
    """How many copies of a kernel's constants put them as far away as they are in a model."""
    if not constant_bytes:
        return 1
    near_bytes = NEAR * caches.l2_bytes * threads
    last_bytes = max(caches.l3_bytes, near_bytes)
    wanted_bytes = BEYOND * last_bytes if constant_bytes >= caches.l2_bytes else near_bytes
    return min(ceil(wanted_bytes / constant_bytes), MOST_COPIES)


class Cold:
    """An artifact over `count` copies of its constants; `operands` are its params and scratch.

    `once_s` is about what a run takes. Times as `Program.time` does: seconds of a run.
    """

    def __init__(
        self,
        artifact: Artifact,
        operands: Sequence[Array],
        constants: Sequence[int],
        count: int,
        once_s: float,
        pool: ThreadPool,
    ) -> None:
        calls = [(artifact, _with_copies(operands, constants if n else ())) for n in range(count)]
        parts = max(1, min(PARTS, count, int(count * once_s / PART_S)))
        step = ceil(count / parts)
        self._parts = [calls[first : first + step] for first in range(0, count, step)]
        self._programs = [Program(part, pool) for part in self._parts]
        self._turn = cycle(range(len(self._programs)))

    def time(
        self, samples: int, repeats: int = 1, *, minimum: int = 3, limit_s: float = inf, deadline_s: float = inf
    ) -> list[float]:
        """See `Program.time`; `repeats` is rounded to whole parts."""
        taken: list[float] = []
        while len(taken) < samples:
            number = next(self._turn)
            runs = len(self._parts[number])
            [part_s] = self._programs[number].time(1, max(1, round(repeats / runs)))
            taken.append(part_s / runs)
            if time.monotonic() >= deadline_s or (len(taken) >= minimum and median(taken) > limit_s):
                break
        return taken

    def close(self) -> None:
        """Unload the code."""
        for program in self._programs:
            program.close()


def _with_copies(operands: Sequence[Array], numbers: Sequence[int]) -> list[Array]:
    """The operands, those of these numbers copied."""
    result = list(operands)
    for number in numbers:
        result[number] = aligned_empty(operands[number].shape, DType(operands[number].dtype.name))
        np.copyto(result[number], operands[number])
    return result

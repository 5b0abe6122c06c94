"""Stolen time: a virtual machine's processors were elsewhere while it believed to be running on them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

STAT = Path("/proc/stat")

STOLEN = 8
"""The place of that number in a processor's line: proc_stat(5), "steal"."""

BUSY = (1, 2, 3, 6, 7)
"""Places of what it did there: "user", "nice", "system", "irq" and "softirq"."""

ATTEMPTS = 3
"""At what is to be timed undisturbed: where more is stolen than that, it may go on for minutes."""

SHARE = 0.1
"""Of the time that an attempt takes, what may be stolen: medians see little of it. The kernel counts in hundredths of a
second, so of an attempt that takes less nothing may be stolen."""

TOO_LONG_S = 0.5
"""What takes longer is not begun anew: a request has a limit, and something is stolen from nearly all that lasts."""

Result = TypeVar("Result")


def stolen_s() -> float:
    """Seconds since the machine started that were stolen from each of the processors this process may use, in the mean;
    0 where no kernel tells.
    """
    lines = _lines()
    return sum(int(line[STOLEN]) for line in lines) / max(len(lines), 1) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Seconds since the machine started that the processors this process may use were busy, all together, whoever with;
    0 where no kernel tells.
    """
    return sum(int(line[place]) for line in _lines() for place in BUSY) / os.sysconf("SC_CLK_TCK")


def _lines() -> list[list[str]]:
    """What the kernel tells of each processor that this process may use."""
    try:
        lines = STAT.read_text().splitlines()
    except OSError:
        return []
    wanted = _names(frozenset(os.sched_getaffinity(0)))
    return [line.split() for line in lines if line.partition(" ")[0] in wanted]


@cache
def _names(cores: frozenset[int]) -> frozenset[str]:
    return frozenset(f"cpu{core}" for core in cores)


def undisturbed(
    attempt: Callable[[], Result],
    anew: Callable[[], None] = lambda: None,
    *,
    stolen: Callable[[], float] = stolen_s,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """What the first attempt gives in which hardly anything was stolen, else that of `ATTEMPTS` with the least share.

    `anew` is called before each but the first.
    """
    found: list[tuple[float, Result]] = []
    while True:
        before_s, begun_s = stolen(), clock()
        result = attempt()
        elapsed_s = clock() - begun_s
        found.append(((stolen() - before_s) / max(elapsed_s, 1e-9), result))
        if found[-1][0] <= SHARE or len(found) == ATTEMPTS or elapsed_s > TOO_LONG_S:
            return min(found, key=lambda one: one[0])[1]
        anew()

"""What Linux counts, as /proc tells it: the time of processors and of processes. What it does not tell is no fault."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
PROCESSES = Path("/proc")

STEAL_FIELD = 8
"""Index of "steal" in a processor's line: proc_stat(5)."""

BUSY_FIELDS = (1, 2, 3, 6, 7)
"""Indices of "user", "nice", "system", "irq" and "softirq"."""

OWN = slice(11, 13)
"""Of a process's line, after its name: its time as user and system, proc_pid_stat(5)."""

WITH_CHILDREN = slice(11, 15)
"""The same, and that of its children that have ended."""

LONGEST_COUNT = 20
"""Digits of the longest number that a kernel counts to."""


class ProcessorTimes(NamedTuple):
    """Seconds since the machine started, of some processors together."""

    busy_s: float
    steal_s: float
    processors: int


def read_text(path: Path) -> str:
    """A file of the system; empty where there is none."""
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace")
    return ""


def read_count(word: str) -> int | None:
    """A number as the kernel writes it."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= LONGEST_COUNT else None


def own_cores() -> list[int]:
    """The processors that this process may use, whatever its quota."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_times() -> ProcessorTimes | None:
    """The times of the processors that this process may use; None where nothing tells."""
    return processor_times(read_text(STAT), {f"cpu{core}" for core in own_cores()})


def processor_times(stat: str, names: Collection[str]) -> ProcessorTimes | None:
    """The times of the processors of these names in a text like /proc/stat; None where it tells of none."""
    busy = steal = processors = 0
    for line in stat.splitlines():
        if line.partition(" ")[0] not in names:
            continue
        counts = [read_count(word) for word in line.split()]
        told = [counts[field] for field in (*BUSY_FIELDS, STEAL_FIELD) if field < len(counts)]
        if len(told) <= len(BUSY_FIELDS) or None in told:
            continue
        *of_busy, of_steal = (count for count in told if count is not None)
        busy, steal, processors = busy + sum(of_busy), steal + of_steal, processors + 1
    return ProcessorTimes(_ticks_s(busy), _ticks_s(steal), processors) if processors else None


def spent_s(pid: int, times: slice = OWN) -> float:
    """Processor time that a process has used; 0 if it is unknown or the process has ended."""
    words = read_text(PROCESSES / str(pid) / "stat").rpartition(")")[2].split()
    return _ticks_s(sum(count for word in words[times] if (count := read_count(word)) is not None))


def _ticks_s(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")

"""Noise: what else kept the processors busy while something was timed, and how far its times differ."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tunewright.codegen.host import available_cores

from .stolen import busy_s, stolen_s

NOISY_STOLEN = 0.05
"""Of the time: what is stolen in bursts meets single samples, of which medians see little; this much meets most."""

NOISY_OTHERS = 0.1
"""Of the processors that the kernel needed: with a thread on each, one that has to share is what all wait for."""

NOISY_SPREAD = 0.1
"""Width of the interval of a median, as a part of it: gains below that can't be told."""

LEAST_S = 0.25
"""The kernel counts in hundredths of a second: what took less time says nothing of others."""

PROCESSES = Path("/proc")
USER, SYSTEM = 11, 12
"""Places of a process's times after its name in its line: proc_pid_stat(5), "utime" and "stime"."""


class Disturbance(NamedTuple):
    """What happened while something was timed, in seconds."""

    elapsed_s: float = 0.0
    stolen_s: float = 0.0  # of each processor, in the mean
    others_s: float = 0.0  # that others than the processes at hand were busy, on all processors together

    @staticmethod
    def total(several: Iterable[Disturbance]) -> Disturbance:
        """Of one after the other."""
        return Disturbance(*map(sum, zip(UNDISTURBED, *several, strict=True)))


UNDISTURBED = Disturbance()
"""By nothing, as far as is known."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far times can be relied on."""

    stolen: float = 0.0  # part of the time that the processors were away, at other virtual machines
    others: float = 0.0  # processors that other processes kept busy of those that were needed, as a part of them
    spread: float = 0.0  # width of the 95% interval of the median, as a part of it

    @staticmethod
    def of(seen: Disturbance, threads: int, spread: float = 0.0) -> Noise:
        """What a disturbance meant to a kernel on so many threads."""
        if seen.elapsed_s < LEAST_S:
            return Noise(spread=spread)
        free = max(len(available_cores()) - threads, 0)
        return Noise(
            min(seen.stolen_s / seen.elapsed_s, 1.0),
            min(max(seen.others_s / seen.elapsed_s - free, 0.0) / threads, 1.0),
            spread,
        )

    @property
    def reason(self) -> str:
        """Why they can't, for people, without an end; empty where they can."""
        said = []
        if self.stolen > NOISY_STOLEN:
            said.append(f"its processors were away at other virtual machines for {self.stolen:.0%} of the time")
        if self.others > NOISY_OTHERS:
            said.append(f"other processes took {self.others:.0%} of the processors that it ran on")
        if self.spread > NOISY_SPREAD:
            said.append(f"times of one and the same schedule lie {self.spread:.0%} apart")
        return ", ".join(said)


class Watch:
    """Sees what disturbs from when it is made on. `pids` are other processes whose work is no disturbance."""

    def __init__(
        self, pids: Callable[[], Iterable[int | None]] = tuple, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pids, self._clock = pids, clock
        self._begun_s, self._stolen_s, self._busy_s = clock(), stolen_s(), busy_s()
        self._own_s = self._spent_s()

    def seen(self) -> Disturbance:
        """What happened so far."""
        elapsed_s = self._clock() - self._begun_s
        own_s = self._spent_s() - self._own_s
        return Disturbance(elapsed_s, stolen_s() - self._stolen_s, max(busy_s() - self._busy_s - own_s, 0.0))

    def _spent_s(self) -> float:
        return time.process_time() + sum(_spent_s(pid) for pid in self._pids() if pid is not None)


def _spent_s(pid: int) -> float:
    """Processor time that a process has used; 0 where no kernel tells, or it is gone."""
    with suppress(OSError, ValueError, IndexError):
        fields = (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[USER]) + int(fields[SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return 0.0

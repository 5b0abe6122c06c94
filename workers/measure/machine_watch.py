"""MachineWatch: what the machine did since the last look, whatever was timed meanwhile. Read `MachineWatch.sample`.

A look takes about a millisecond, of a process that is bound to no processor. What a system does not tell, as in some
containers or on macOS, is None, and never a fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tunewright.codegen.host import SYSTEM, available_cores, group_texts

from ..machine_sample import MachineSample
from . import proc
from .noise import MIN_WATCH_S, Disturbance, Noise
from .proc import ProcessorTimes, processor_times, read_count, read_text

CPUINFO = Path("/proc/cpuinfo")
PRESSURE = Path("/proc/pressure/cpu")
MONITORS = Path("/sys/class/hwmon")

THERMOMETERS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
"""Names of those in processors."""

MOST_CLOCKS = 8
"""Processors whose clock is read: asking a processor takes a moment of it."""

MOST_PROCESSES = 10_000
"""Processes that are counted as ours."""


class GpuState(NamedTuple):
    """What a GPU tells of itself now; None where it does not."""

    clock_mhz: float | None = None
    temperature_c: float | None = None
    is_slowed: bool | None = None  # by heat, or since its machine has not the power


class _Counters(NamedTuple):
    """What a look reads: the seconds so far."""

    at_s: float
    ours: ProcessorTimes | None  # of the processors that this process may use
    all: ProcessorTimes | None
    own_s: float | None
    waited_s: float | None
    throttled_s: float | None


class MachineWatch:
    """Watches this machine for what is timed on it on so many threads, from its creation on.

    The processes below this one are ours, all others disturb. One thread may use it at a time.
    """

    def __init__(
        self, threads: int, gpu: Callable[[], GpuState] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threads, self._gpu, self._clock = max(threads, 1), gpu, clock
        self._files = [] if gpu else list(_thermometers())
        self._before = self._read()

    def sample(self) -> MachineSample:
        """What the machine did since the sample before."""
        before, now = self._before, self._read()
        self._before = now
        elapsed_s = now.at_s - before.at_s
        if elapsed_s < MIN_WATCH_S:
            return MachineSample(max(elapsed_s, 0.0))
        steal_s, others_s = _steal_s(before, now), _others_s(before, now)
        seen = Noise.of(Disturbance(elapsed_s, steal_s or 0.0, others_s or 0.0), self._threads)
        cores, own_cores = len(available_cores()), proc.own_cores()
        state = self._gpu() if self._gpu else GpuState(_clock_mhz(own_cores[:MOST_CLOCKS]), _hottest_c(self._files))
        throttled = _part(before.throttled_s, now.throttled_s, elapsed_s * cores)
        return MachineSample(
            elapsed_s,
            steal=None if steal_s is None else seen.steal,
            others=None if others_s is None else seen.others,
            load=_load(before, now),
            pressure=_part(before.waited_s, now.waited_s, elapsed_s),
            throttled=throttled if state.is_slowed is None else max(float(state.is_slowed), throttled or 0.0),
            clock_mhz=state.clock_mhz,
            temperature_c=state.temperature_c,
            is_noisy=bool(seen.reason),
        )

    def _read(self) -> _Counters:
        stat = read_text(proc.STAT)
        names = {f"cpu{core}" for core in proc.own_cores()}
        return _Counters(
            self._clock(),
            processor_times(stat, names),
            processor_times(stat, {"cpu"}),
            _own_s() if stat else None,
            waited_s(read_text(PRESSURE)),
            _throttled_s(),
        )


def _steal_s(before: _Counters, now: _Counters) -> float | None:
    """The mean of our processors."""
    if before.ours is None or now.ours is None:
        return None
    return max(now.ours.steal_s - before.ours.steal_s, 0.0) / now.ours.processors


def _others_s(before: _Counters, now: _Counters) -> float | None:
    """Seconds of other processes, on all of our processors together."""
    if before.ours is None or now.ours is None or before.own_s is None or now.own_s is None:
        return None
    own_s = max(now.own_s - before.own_s, 0.0)  # less: a process is gone, and nobody was told of its time
    return max(now.ours.busy_s - before.ours.busy_s - own_s, 0.0)


def _load(before: _Counters, now: _Counters) -> float | None:
    if before.all is None or now.all is None:
        return None
    processors = os.cpu_count() or 1
    return _part(before.all.busy_s, now.all.busy_s, (now.at_s - before.at_s) * processors)


def _part(before_s: float | None, now_s: float | None, of_s: float) -> float | None:
    """What a counter has grown by, as a part of some time."""
    if before_s is None or now_s is None:
        return None
    return min(max(now_s - before_s, 0.0) / of_s, 1.0)


# What the system tells: texts that may be anything


def waited_s(pressure: str) -> float | None:
    """Seconds in which some process waited, from a text like /proc/pressure/cpu."""
    for line in pressure.splitlines():
        if line.startswith("some "):
            total = next((word for word in line.split() if word.startswith("total=")), "")
            if (count := read_count(total.removeprefix("total="))) is not None:
                return count / 1e6
    return None


def throttled_s(stat: str) -> float | None:
    """Seconds that a quota held processors up, from a text like cpu.stat of a group."""
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_usec" and (count := read_count(value.strip())) is not None:
            return count / 1e6
    return None


def _throttled_s() -> float | None:
    """The same of the group that is held up the most, of this process's and those around it."""
    told = (throttled_s(text) for text in group_texts("cpu.stat"))
    return max((seconds for seconds in told if seconds is not None), default=None)


def clocks_mhz(cpuinfo: str, cores: Collection[int]) -> list[float]:
    """The clocks of these processors, from a text like /proc/cpuinfo."""
    clocks: list[float] = []
    core = -1
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if name == "processor":
            core = count if (count := read_count(value)) is not None else -1
        elif name == "cpu MHz" and core in cores:
            whole, _, rest = value.partition(".")
            if read_count(whole) is not None and read_count(rest or "0") is not None:
                clocks.append(float(value))
    return clocks


def _clock_mhz(cores: Collection[int]) -> float | None:
    """The mean clock of these processors now."""
    files = (SYSTEM / f"cpu{core}" / "cpufreq" / "scaling_cur_freq" for core in cores)
    clocks = [khz / 1e3 for file in files if (khz := read_count(read_text(file).strip())) is not None]
    clocks = clocks or clocks_mhz(read_text(CPUINFO), cores)
    return fmean(clocks) if clocks else None


def _thermometers() -> Iterator[Path]:
    """The files of the thermometers in processors."""
    with suppress(OSError):
        for monitor in sorted(MONITORS.iterdir()):
            if read_text(monitor / "name").strip() in THERMOMETERS:
                yield from sorted(monitor.glob("temp*_input"))


def _hottest_c(files: Collection[Path]) -> float | None:
    told = (read_count(read_text(file).strip()) for file in files)
    return max((milli_c / 1e3 for milli_c in told if milli_c is not None), default=None)


def _own_s() -> float | None:
    """Processor time of this process, those below it and those that were; None where nobody tells which these are."""
    if not _are_children_told():
        return None
    ours, total_s = [os.getpid()], 0.0
    for pid in ours:
        if len(ours) > MOST_PROCESSES:
            return None
        total_s += proc.spent_s(pid, proc.WITH_CHILDREN)
        ours += _children(pid)
    return total_s


def _are_children_told() -> bool:
    with suppress(OSError):
        return (proc.PROCESSES / "self" / "task" / str(os.getpid()) / "children").exists()
    return False


def _children(pid: int) -> Iterator[int]:
    """The children of a process: each of its threads has its own."""
    with suppress(OSError):  # it may just have ended
        for task in (proc.PROCESSES / str(pid) / "task").iterdir():
            yield from (
                child for word in read_text(task / "children").split() if (child := read_count(word)) is not None
            )

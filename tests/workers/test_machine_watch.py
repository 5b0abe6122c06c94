"""MachineWatch: what a system tells of itself, or does not, and whose work is whose."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen import host
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import Clock, DeviceFault
from tunewright.workers.machine_sample import MachineSample
from tunewright.workers.measure import gpu, machine_watch, noise, proc
from tunewright.workers.measure.machine_watch import (
    GpuState,
    MachineWatch,
    clocks_mhz,
    throttled_s,
    waited_s,
)
from tunewright.workers.measure.proc import ProcessorTimes, processor_times

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

ODD = st.one_of(
    st.text(max_size=80),
    st.lists(
        st.sampled_from(
            [
                *("cpu", "cpu0", "cpu1", "intr", "some", "total=12", "total=", "throttled_usec", "processor"),
                *("cpu MHz", ":", "7", "-7", "1.5", "1.5.5", "nan", "9" * 400, "²", "٣", "0x1", "\n", "\t", " "),
            ]
        ),
        max_size=40,
    ).map(" ".join),
)
"""Texts of systems that write them otherwise."""


@given(text=ODD)
def test_no_text_is_a_fault(text: str) -> None:
    for names in ({"cpu"}, {"cpu0", "cpu1"}):
        told = processor_times(text, names)
        assert told is None or (told.processors > 0 and min(told) >= 0)
    assert all(value is None or value >= 0 for value in (waited_s(text), throttled_s(text)))
    assert all(0 <= clock < 1e21 for clock in clocks_mhz(text, {0, 1, 7}))


def test_what_linux_writes() -> None:
    stat = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 1000 1000 8 16 32 5 5\ncpu1 1 0 0 0 0 0 0 1 0 0\ncpu10 7 7 7\nbtime 5\n"
    )
    assert processor_times(stat, {"cpu0"}) == ProcessorTimes(31 * TICK_S, 32 * TICK_S, 1)
    assert processor_times(stat, {"cpu0", "cpu1"}) == ProcessorTimes(32 * TICK_S, 33 * TICK_S, 2)
    assert processor_times(stat, {"cpu10"}) is None
    assert waited_s("some avg10=0.00 avg60=1.00 total=1500000\nfull avg10=0.00 total=7\n") == 1.5
    assert throttled_s("usage_usec 5\nthrottled_usec 250000\n") == 0.25
    cpuinfo = (
        "processor\t: 0\ncpu MHz\t\t: 2596.120\n\nprocessor\t: 1\ncpu MHz\t\t: 800\n\nprocessor : 2\ncpu MHz : 9\n"
    )
    assert clocks_mhz(cpuinfo, {0, 1}) == [2596.12, 800.0]


class System:
    """A system of two processors that tells what the test wants, in files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_s = folder, 100.0
        self.ticks = {name: [0] * 10 for name in ("cpu0", "cpu1")}
        self.children: dict[int, list[int]] = {os.getpid(): []}
        self.own: dict[int, list[int]] = {os.getpid(): [0, 0, 0, 0]}
        places = {proc: ("STAT", "PROCESSES"), machine_watch: ("CPUINFO", "PRESSURE", "MONITORS", "SYSTEM")}
        for module, names in places.items():
            for name in names:
                monkeypatch.setattr(module, name, folder / name.lower())
        monkeypatch.setattr(host, "OWN_CGROUP", folder / "cgroup")
        monkeypatch.setattr(host, "CGROUPS", folder / "groups")
        monkeypatch.setattr(proc, "own_cores", lambda: [0, 1])
        monkeypatch.setattr(machine_watch, "available_cores", lambda: [0, 1])
        monkeypatch.setattr(noise, "available_cores", lambda: [0, 1])
        monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def save(self) -> None:
        """Write what is counted."""
        sums = [sum(column) for column in zip(*self.ticks.values(), strict=True)]
        lines = {"cpu": sums, **self.ticks}
        self.write("stat", "".join(f"{name} {' '.join(map(str, counts))}\n" for name, counts in lines.items()))
        self.write(f"processes/self/task/{os.getpid()}/children", "")
        for pid, children in self.children.items():
            self.write(f"processes/{pid}/task/{pid}/children", " ".join(map(str, children)))
        for pid, counts in self.own.items():
            self.write(
                f"processes/{pid}/stat", f"{pid} (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, counts))} 20"
            )

    def watch(self, threads: int = 2) -> MachineWatch:
        self.save()
        return MachineWatch(threads, clock=lambda: self.now_s)

    def spend(self, seconds: float) -> None:
        self.now_s += seconds
        self.save()


def ticks(seconds: float) -> int:
    return round(seconds / TICK_S)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    return System(tmp_path, monkeypatch)


def test_a_quiet_machine(system: System) -> None:
    watch = system.watch()
    system.spend(10.0)
    assert watch.sample() == MachineSample(10.0, 0.0, 0.0, 0.0)
    assert watch.sample() == MachineSample(0.0)  # at once again: too short to say anything


def test_steal(system: System) -> None:
    watch = system.watch()
    system.ticks["cpu1"][7] += ticks(3.0)
    system.spend(10.0)
    seen = watch.sample()
    assert seen.steal == pytest.approx(0.15) and (seen.others, seen.is_noisy) == (0.0, True)
    system.spend(10.0)
    assert not watch.sample().is_noisy  # that was before


def test_our_work_and_that_of_others(system: System) -> None:
    me, child, grandchild = os.getpid(), 4001, 4002
    system.children |= {me: [child], child: [grandchild], grandchild: []}
    system.own |= {child: [0, 0, 0, 0], grandchild: [5, 5, 0, 0]}
    watch = system.watch()
    system.ticks["cpu0"][0] += ticks(8.0)
    system.own[grandchild] = [ticks(5.0) + 5, ticks(3.0) + 5, 0, 0]
    system.spend(10.0)
    ours = watch.sample()
    assert ours.load == pytest.approx(0.2) and (ours.others, ours.is_noisy) == (0.0, False)
    del system.own[grandchild]  # it ends, and its parent has its time
    (system.folder / f"processes/{grandchild}/stat").unlink()
    system.children[child] = []
    system.own[child] = [0, 0, ticks(5.0) + 5, ticks(3.0) + 5]
    system.ticks["cpu1"][2] += ticks(4.0)
    system.spend(10.0)
    others = watch.sample()
    assert others.others == pytest.approx(0.2) and others.is_noisy


def test_a_processor_that_is_left_free_may_be_busy(system: System) -> None:
    watch = system.watch(threads=1)
    system.ticks["cpu1"][0] += ticks(9.0)
    system.spend(10.0)
    seen = watch.sample()
    assert seen.load == pytest.approx(0.225) and (seen.others, seen.is_noisy) == (0.0, False)


def test_what_else_it_tells(system: System) -> None:
    system.write("cgroup", "0::/ours\n")
    system.write("groups/ours/cpu.stat", "throttled_usec 0\n")
    system.write("groups/cpu.stat", "throttled_usec 1000000\n")
    system.write("pressure", "some avg10=0.00 total=1000000\n")
    system.write("monitors/hwmon0/name", "k10temp\n")
    system.write("monitors/hwmon0/temp1_input", "71500\n")
    system.write("monitors/hwmon1/name", "nvme\n")
    system.write("monitors/hwmon1/temp1_input", "99000\n")
    system.write("system/cpu0/cpufreq/scaling_cur_freq", "3000000\n")
    system.write("system/cpu1/cpufreq/scaling_cur_freq", "2000000\n")
    watch = system.watch()
    system.write("groups/cpu.stat", "throttled_usec 5000000\n")
    system.write("pressure", "some avg10=0.00 total=3000000\n")
    system.spend(10.0)
    seen = watch.sample()
    assert seen.pressure == pytest.approx(0.2) and seen.throttled == pytest.approx(0.2)
    assert (seen.clock_mhz, seen.temperature_c) == (2500.0, 71.5)


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(tmp_path, monkeypatch)
    watch = MachineWatch(2, clock=lambda: system.now_s)
    system.now_s += 10.0
    assert watch.sample() == MachineSample(10.0)


def test_a_system_that_tells_of_no_children(system: System) -> None:
    """Then nobody knows what is ours."""
    watch = system.watch()
    (system.folder / f"processes/self/task/{os.getpid()}/children").unlink()
    system.now_s += 10.0
    assert watch.sample() == MachineSample(10.0, 0.0, None, 0.0)


@pytest.mark.parametrize(
    ("state", "throttled", "clock_mhz"),
    [
        (GpuState(1410.0, 64.0, True), 1.0, 1410.0),
        (GpuState(1980.0, None, False), 0.0, 1980.0),
        (GpuState(), None, None),
    ],
)
def test_a_gpu_tells_of_itself(
    system: System, state: GpuState, throttled: float | None, clock_mhz: float | None
) -> None:
    system.save()
    watch = MachineWatch(1, lambda: state, lambda: system.now_s)
    system.spend(10.0)
    seen = watch.sample()
    assert (seen.throttled, seen.clock_mhz, seen.temperature_c) == (throttled, clock_mhz, state.temperature_c)


def test_this_machine() -> None:
    """Whatever it is: what it tells is in its bounds."""
    moments = iter([0.0, 60.0])
    seen = MachineWatch(1, clock=lambda: next(moments)).sample()
    shares = (seen.steal, seen.others, seen.load, seen.pressure, seen.throttled)
    assert all(part is None or 0.0 <= part <= 1.0 for part in shares)
    if sys.platform == "linux" and Path("/proc/stat").exists():
        assert seen.load is not None


@dataclass
class Sensors:
    """Those of a GPU; a clock that is a fault is raised."""

    now: Clock | DeviceFault | None

    def clock(self) -> Clock | None:
        if isinstance(self.now, DeviceFault):
            raise self.now
        return self.now

    def temperature_c(self) -> float | None:
        return 55.0


@pytest.mark.parametrize(
    ("now", "clock_mhz", "throttled", "temperature_c"),
    [
        (Clock(1_980_000_000, False), 1980.0, 0.0, 55.0),
        (Clock(900_000_000, True), 900.0, 1.0, 55.0),
        (None, None, None, 55.0),
        (DeviceFault("it is lost"), None, None, None),
    ],
)
def test_the_sensors_of_a_gpu(
    system: System,
    monkeypatch: pytest.MonkeyPatch,
    now: Clock | DeviceFault | None,
    clock_mhz: float | None,
    throttled: float | None,
    temperature_c: float | None,
) -> None:
    monkeypatch.setattr(gpu, "open_sensors", lambda: Sensors(now))
    system.save()
    watch = MachineWatch(1, gpu.gpu_watch(1)._gpu, lambda: system.now_s)
    system.spend(10.0)
    seen = watch.sample()
    assert (seen.clock_mhz, seen.throttled, seen.temperature_c) == (clock_mhz, throttled, temperature_c)


def test_a_gpu_without_sensors(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in (NoDevice("no driver"), DeviceFault("it is lost")):

        def fail(fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr(gpu, "open_sensors", fail)
        assert gpu.gpu_watch(1).sample().clock_mhz is None

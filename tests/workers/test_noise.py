"""Noise: what else kept the processors busy, told from what this process did itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunewright.codegen.host import available_cores, detect
from tunewright.workers import noise, stolen
from tunewright.workers.noise import LEAST_S, UNDISTURBED, Disturbance, Noise, Watch
from tunewright.workers.rates import noise as noise_now

SPIN = "import sys\nprint(flush=True)\nwhile True: pass"


@pytest.mark.parametrize(
    ("seen", "spread", "words"),
    [
        (Disturbance(1.0, 0.0, 0.0), 0.0, ""),
        (Disturbance(1.0, 0.04, 0.05), 0.09, ""),
        (Disturbance(2.0, 0.3, 0.0), 0.0, "away at other virtual machines for 15% of the time"),
        (Disturbance(2.0, 0.0, 1.0), 0.0, "other processes took 25% of the processors that it ran on"),
        (Disturbance(1.0, 0.0, 0.0), 0.25, "times of one and the same schedule lie 25% apart"),
        (Disturbance(LEAST_S / 2, LEAST_S, LEAST_S), 0.0, ""),  # the kernel's clock is too coarse
    ],
)
def test_what_is_said(seen: Disturbance, spread: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "available_cores", lambda: [0, 1])
    reason = Noise.of(seen, 2, spread).reason
    assert (words in reason) and bool(reason) is bool(words)


def test_a_processor_that_is_free_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "available_cores", lambda: [0, 1, 2])
    assert Noise.of(Disturbance(1.0, 0.0, 1.0), 2).reason == ""
    assert Noise.of(Disturbance(1.0, 0.0, 1.5), 2).others == 0.25


def test_disturbances_add_up() -> None:
    assert Disturbance.total([]) == UNDISTURBED
    assert Disturbance.total([Disturbance(1.0, 0.5, 0.25), Disturbance(2.0, 0.5, 0.5)]) == Disturbance(3.0, 1.0, 0.75)


STAT = "cpu0 {busy} 0 0 900 0 0 0 {stolen} 0 0\n"


def test_own_work_is_no_disturbance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a told machine: a second of the clock, in which the processor was busy for 0.8 s and away for 0.1."""
    path, ticks, now_s = tmp_path / "stat", os.sysconf("SC_CLK_TCK"), [10.0]
    monkeypatch.setattr(stolen, "STAT", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(time, "process_time", lambda: 3.0 if now_s[0] == 10.0 else 3.25)
    monkeypatch.setattr(noise, "_spent_s", lambda pid: 5.0 if now_s[0] == 10.0 else 5.5)
    path.write_text(STAT.format(busy=100 * ticks, stolen=ticks))
    watch = Watch(lambda: [4711, None], lambda: now_s[0])
    now_s[0] = 11.0
    path.write_text(STAT.format(busy=round(100.8 * ticks), stolen=round(1.1 * ticks)))
    assert watch.seen() == pytest.approx((1.0, 0.1, 0.8 - 0.25 - 0.5))


def test_a_process_that_is_gone_has_spent_nothing() -> None:
    assert noise._spent_s(2**22 + 1) == 0.0
    assert noise._spent_s(os.getpid()) >= 0.0


@pytest.fixture
def _busy() -> Iterator[None]:
    """Every processor has a process that spins on it."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in available_cores()]
    for one in spinning:
        assert one.stdout is not None and one.stdout.readline()
    yield
    for one in spinning:
        one.kill()
        one.communicate()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no kernel tells")
@pytest.mark.usefixtures("_busy")
def test_a_machine_made_busy_is_noisy(tmp_path: Path) -> None:
    found = noise_now(detect(len(available_cores())), tmp_path)
    assert found.others > noise.NOISY_OTHERS and "other processes took" in found.reason


def test_what_this_process_does_is_its_own() -> None:
    watch, until_s = Watch(), time.process_time() + 0.3
    while time.process_time() < until_s:
        pass
    seen = watch.seen()
    assert seen.elapsed_s >= 0.3 and seen.others_s <= len(available_cores()) * seen.elapsed_s - 0.25

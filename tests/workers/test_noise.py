"""Noise: what else kept the processors busy, told from what this process did itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.host import available_cores, detect
from tunewright.search_space.measurement import DRIFT, NOISE, Measurement, Status
from tunewright.workers.measure import measure, noise, proc
from tunewright.workers.measure.noise import (
    MAX_ATTEMPTS,
    MAX_RETRIED_S,
    MAX_STEAL_SHARE,
    MIN_WATCH_S,
    UNDISTURBED,
    Disturbance,
    Noise,
    Watch,
    noise_note,
    noise_of,
    run_undisturbed,
    steal_s,
)
from tunewright.workers.measure.rates import noise as noise_now
from tunewright.workers.wire import candidate_json

SPIN = "import sys\nprint(flush=True)\nwhile True: pass"


@pytest.mark.parametrize(
    ("seen", "spread", "words"),
    [
        (Disturbance(1.0, 0.0, 0.0), 0.0, ""),
        (Disturbance(1.0, 0.04, 0.05), 0.09, ""),
        (Disturbance(2.0, 0.3, 0.0), 0.0, "away at other virtual machines for 15% of the time"),
        (Disturbance(2.0, 0.0, 1.0), 0.0, "other processes took 25% of the processors that it ran on"),
        (Disturbance(1.0, 0.0, 0.0), 0.25, "times of one and the same schedule lie 25% apart"),
        (Disturbance(1.0, 0.0, 0.0), 406.99, "schedule lie more than 10 times their median apart"),
        (Disturbance(MIN_WATCH_S / 2, MIN_WATCH_S, MIN_WATCH_S), 0.0, ""),  # the kernel's clock is too coarse
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


@pytest.mark.parametrize(
    ("provenance", "note"),
    [
        ({}, ""),
        ({DRIFT: "0.5"}, ""),  # a machine may become twice as fast
        ({DRIFT: "3.1"}, ""),  # what was slower all the same
        ({DRIFT: "0.08"}, "the schedule that it was timed beside took 0.08 times its time"),
        ({DRIFT: "0.08", NOISE: "others"}, "others"),
        ({DRIFT: "nan"}, ""),
        ({DRIFT: "so so"}, ""),
        ({DRIFT: "-1"}, ""),
    ],
)
def test_what_older_versions_divided_by_a_drift_beyond_belief_is_noted(provenance: dict[str, str], note: str) -> None:
    assert noise_note(provenance) == note


def test_a_spread_is_told_once() -> None:
    """A comparison's note may be of the other schedule, whose times lie apart otherwise."""
    spread = "times of one and the same schedule lie {} apart"
    assert noise_of(0.2, "others") == f"others; {spread.format('20%')}"
    assert noise_of(0.2, f"others, {spread.format('27%')}") == f"others, {spread.format('27%')}"


def test_disturbances_add_up() -> None:
    assert Disturbance.total([]) == UNDISTURBED
    assert Disturbance.total([Disturbance(1.0, 0.5, 0.25), Disturbance(2.0, 0.5, 0.5)]) == Disturbance(3.0, 1.0, 0.75)


STAT = "cpu0 {busy} 0 0 900 0 0 0 {steal} 0 0\n"


def test_own_work_is_no_disturbance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a told machine: a second of the clock, in which the processor was busy for 0.8 s and away for 0.1."""
    path, ticks, now_s = tmp_path / "stat", os.sysconf("SC_CLK_TCK"), [10.0]
    monkeypatch.setattr(proc, "STAT", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(time, "process_time", lambda: 3.0 if now_s[0] == 10.0 else 3.25)
    monkeypatch.setattr(proc, "spent_s", lambda pid: 5.0 if now_s[0] == 10.0 else 5.5)
    path.write_text(STAT.format(busy=100 * ticks, steal=ticks))
    watch = Watch(lambda: [4711, None], lambda: now_s[0])
    now_s[0] = 11.0
    path.write_text(STAT.format(busy=round(100.8 * ticks), steal=round(1.1 * ticks)))
    assert watch.disturbance() == pytest.approx((1.0, 0.1, 0.8 - 0.25 - 0.5))


def test_a_process_that_is_gone_has_spent_nothing() -> None:
    assert proc.spent_s(2**22 + 1) == 0.0
    assert proc.spent_s(os.getpid()) >= 0.0


@pytest.fixture
def _busy() -> Iterator[None]:
    """Every processor has a process that spins on it."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in available_cores()]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline()
    yield
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no kernel tells")
@pytest.mark.usefixtures("_busy")
def test_a_machine_made_busy_is_noisy(tmp_path: Path) -> None:
    busy = noise_now(detect(len(available_cores())), tmp_path)
    assert busy.others > noise.NOISY_OTHERS and "other processes took" in busy.reason


def test_what_this_process_does_is_its_own() -> None:
    watch, until_s = Watch(), time.process_time() + 0.3
    while time.process_time() < until_s:
        pass
    disturbance = watch.disturbance()
    assert disturbance.others_s <= len(available_cores()) * disturbance.elapsed_s - 0.25


TWO_CORES = """\
cpu  90 0 9 900 1 0 0 777 0 0
cpu0 50 0 5 500 1 0 0 {first} 0 0
cpu1 40 0 4 400 0 0 0 {second} 0 0
cpu11 40 0 4 400 0 0 0 5000 0 0
intr 12345 0 0
"""


def test_it_is_that_of_the_processors_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stat"
    path.write_text(TWO_CORES.format(first=120, second=30))
    monkeypatch.setattr(proc, "STAT", path)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for cores, ticks in (({0, 1}, 75), ({1}, 30), ({7}, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        assert steal_s() == pytest.approx(ticks * tick_s)


def test_where_no_kernel_tells_nothing_is_stolen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "STAT", tmp_path / "none")
    assert steal_s() == 0.0


class Machine:
    """On which parts of an attempt are stolen."""

    def __init__(self, parts: list[float], attempt_s: float = 0.1) -> None:
        self.attempt_s = attempt_s
        self.parts = iter(parts)
        self.now_s = self.steal_s = 0.0
        self.done: list[str] = []

    def attempt(self) -> int:
        self.done.append("attempt")
        self.now_s += self.attempt_s
        self.steal_s += self.attempt_s * next(self.parts)
        return self.done.count("attempt")

    def run(self) -> int:
        return run_undisturbed(
            self.attempt, lambda: self.done.append("anew"), steal_clock_s=lambda: self.steal_s, clock=lambda: self.now_s
        )


@pytest.mark.parametrize(
    ("parts", "attempts"),
    [
        ([0.0], 1),
        ([0.9 * MAX_STEAL_SHARE], 1),
        ([1.1 * MAX_STEAL_SHARE, 0.0], 2),
        ([0.5, 0.4, 0.9 * MAX_STEAL_SHARE], 3),
    ],
)
def test_what_is_stolen_from_is_begun_anew(parts: list[float], attempts: int) -> None:
    machine = Machine(parts)
    assert machine.run() == attempts
    assert machine.done == ["attempt", *["anew", "attempt"] * (attempts - 1)]


def test_where_it_goes_on_the_best_attempt_counts() -> None:
    machine = Machine([0.5, 0.3, 0.4])
    assert machine.run() == 2 and machine.done.count("attempt") == MAX_ATTEMPTS


def test_what_lasts_is_not_begun_anew() -> None:
    assert Machine([0.5, 0.0], 1.1 * MAX_RETRIED_S).run() == 1


def test_races_and_samples_of_comparisons_are_begun_anew(make, tmp_path, monkeypatch) -> None:
    attempts: list[str] = []

    def again(attempt: Callable[[], Any], anew: Callable[[], None]) -> Any:
        attempt()
        attempts.append("anew")
        anew()
        return attempt()

    monkeypatch.setattr(measure, "run_undisturbed", again)
    measure.prepare(make.task.to_json())
    arguments = {"task_key": make.task.key, "threads": 1}
    arguments["artifact"] = measure.build_candidate(candidate_json(make.default()), str(tmp_path))["artifact"]
    assert (
        Measurement.from_json(measure.measure(**arguments, budget_s=0.01, best_s=None)["measurement"]).status
        is Status.OK
    )
    number = measure.load(**arguments)["number"]
    assert measure.sample(number) > 0 and measure.warm(number) > 0
    assert attempts == ["anew"] * 3
    assert measure.recheck(number)["fault"] is None

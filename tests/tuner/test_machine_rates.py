"""The peak of this machine: the highest that was found, and marked where no moment was good."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tunewright.codegen.host import detect
from tunewright.tuner import machine_rates
from tunewright.workers.measure import rates
from tunewright.workers.measure.rates import BUSY, PeakRates

GOOD, BAD = PeakRates(2e11, 5e10), PeakRates(1e11, 2e10, BUSY)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[PeakRates]:
    """What is measured next, in order. Each call of `ask` is a process of its own."""
    found: list[PeakRates] = []
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(machine_rates, "measure", lambda target, objects: found.pop(0))
    monkeypatch.setattr(machine_rates, "_known", {})
    return found


def ask(monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> PeakRates:
    monkeypatch.setattr(machine_rates, "_known", {})
    return machine_rates.machine_rates(detect(threads))


def test_the_highest_is_kept(measured: list[PeakRates], monkeypatch: pytest.MonkeyPatch) -> None:
    measured += [BAD, GOOD, BAD]
    assert ask(monkeypatch) == BAD  # it says so itself
    assert ask(monkeypatch) == GOOD
    assert ask(monkeypatch) == GOOD
    assert not measured


def test_other_targets_and_other_code_have_their_own(
    measured: list[PeakRates], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured += [GOOD, BAD, BAD]
    assert [ask(monkeypatch), ask(monkeypatch, threads=2)] == [GOOD, BAD]
    monkeypatch.setattr(machine_rates, "code_digest", lambda folders: "other")
    assert ask(monkeypatch) == BAD


def test_a_process_measures_until_a_moment_is_good(measured: list[PeakRates]) -> None:
    measured += [BAD, GOOD]
    assert [machine_rates.machine_rates(detect(1)) for _ in range(3)] == [BAD, GOOD, GOOD]


def test_what_is_kept_may_be_damaged(
    measured: list[PeakRates], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured += [GOOD, BAD]
    ask(monkeypatch)
    [file] = (tmp_path / "rates").iterdir()
    file.write_text("[")
    assert ask(monkeypatch) == BAD


def test_both_rates_are_the_highest_and_a_good_moment_counts() -> None:
    other = replace(BAD, bandwidth_bytes_s=9e10)
    assert GOOD.highest(other) == other.highest(GOOD) == PeakRates(2e11, 9e10)
    assert BAD.highest(other).noise == BUSY and GOOD.highest(None) == GOOD


def test_threads_as_fast_as_one_alone_were_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates._OwnTime, "at_once", lambda self: 0.0)
    monkeypatch.setattr(time, "sleep", lambda pause_s: None)
    monkeypatch.setattr(rates, "_alone_s", lambda target: 1.0)
    assert rates.measure(detect(1), tmp_path).noise == ""
    monkeypatch.setattr(rates, "_alone_s", lambda target: 1e-9)
    assert rates.measure(detect(1), tmp_path).noise == BUSY


@pytest.mark.parametrize(("own_s", "part"), [(2.0, 1.0), (1.0, 0.0), (1.3, 0.3)])
def test_two_threads_that_ran_for_longer_than_one_ran_at_once(
    own_s: float, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = rates._OwnTime(2)
    watch._start_s, watch._own_s = time.perf_counter() - 1.0, time.process_time() - own_s
    assert watch.at_once() == pytest.approx(part, abs=0.2)


@pytest.mark.parametrize(
    ("shares", "moments", "is_noisy"),
    [([1.0, 1.0], 2, False), ([0.0, 1.0, 0.1, 1.0], 4, False), ([0.1] * 4, 4, True), ([0.0, 0.0, 0.0, 0.3], 4, False)],
)
def test_moments_in_which_a_thread_was_always_missing_do_not_count(
    shares: list[float], moments: int, is_noisy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "_alone_s", lambda target: 0.0)  # as where threads share a core
    left, pauses = list(shares), list[float]()
    monkeypatch.setattr(rates._OwnTime, "at_once", lambda self: left.pop(0))
    monkeypatch.setattr(time, "sleep", pauses.append)
    found = rates.measure(detect(1), tmp_path)
    assert len(pauses) == moments - 1 and not left
    assert (found.noise == BUSY) is is_noisy and found.peak_flops_s > 0

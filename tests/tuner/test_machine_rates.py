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
    monkeypatch.setattr(machine_rates, "_measured", {})
    return found


def ask(monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> PeakRates:
    monkeypatch.setattr(machine_rates, "_measured", {})
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


@pytest.mark.parametrize(
    ("shares", "moments", "is_noisy"),
    [([1.0, 1.0], 2, False), ([0.5, 1.0, 0.5, 1.0], 4, False), ([0.5] * 4, 4, True), ([0.5, 0.5, 0.5, 0.95], 4, False)],
)
def test_moments_without_all_processors_do_not_count(
    shares: list[float], moments: int, is_noisy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, pauses = list(shares), list[float]()
    monkeypatch.setattr(rates._OwnTime, "share", lambda self: left.pop(0))
    monkeypatch.setattr(time, "sleep", pauses.append)
    found = rates.measure(detect(1), tmp_path)
    assert len(pauses) == moments - 1 and not left
    assert (found.noise == BUSY) is is_noisy and found.peak_flops_s > 0

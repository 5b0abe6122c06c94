"""Stolen time: what the kernel tells of it, and that it is not taken for the time of a schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers import measure, stolen
from tunewright.workers.stolen import ATTEMPTS, SHARE, TOO_LONG_S, stolen_s, undisturbed
from tunewright.workers.wire import candidate_json

STAT = """\
cpu  90 0 9 900 1 0 0 777 0 0
cpu0 50 0 5 500 1 0 0 {first} 0 0
cpu1 40 0 4 400 0 0 0 {second} 0 0
cpu11 40 0 4 400 0 0 0 5000 0 0
intr 12345 0 0
"""


def test_it_is_that_of_the_processors_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stat"
    path.write_text(STAT.format(first=120, second=30))
    monkeypatch.setattr(stolen, "STAT", path)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for cores, ticks in (({0, 1}, 75), ({1}, 30), ({7}, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        assert stolen_s() == pytest.approx(ticks * tick_s)


def test_where_no_kernel_tells_nothing_is_stolen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stolen, "STAT", tmp_path / "none")
    assert stolen_s() == 0.0


class Machine:
    """On which parts of an attempt are stolen."""

    def __init__(self, parts: list[float], attempt_s: float = 0.1) -> None:
        self.attempt_s = attempt_s
        self.parts = iter(parts)
        self.now_s = self.stolen_s = 0.0
        self.done: list[str] = []

    def attempt(self) -> int:
        self.done.append("attempt")
        self.now_s += self.attempt_s
        self.stolen_s += self.attempt_s * next(self.parts)
        return self.done.count("attempt")

    def run(self) -> int:
        return undisturbed(
            self.attempt, lambda: self.done.append("anew"), stolen=lambda: self.stolen_s, clock=lambda: self.now_s
        )


@pytest.mark.parametrize(
    ("parts", "attempts"),
    [
        ([0.0], 1),
        ([0.9 * SHARE], 1),
        ([1.1 * SHARE, 0.0], 2),
        ([0.5, 0.4, 0.9 * SHARE], 3),
    ],
)
def test_what_is_stolen_from_is_begun_anew(parts: list[float], attempts: int) -> None:
    machine = Machine(parts)
    assert machine.run() == attempts
    assert machine.done == ["attempt", *["anew", "attempt"] * (attempts - 1)]


def test_where_it_goes_on_the_best_attempt_counts() -> None:
    machine = Machine([0.5, 0.3, 0.4])
    assert machine.run() == 2 and machine.done.count("attempt") == ATTEMPTS


def test_what_lasts_is_not_begun_anew() -> None:
    assert Machine([0.5, 0.0], 1.1 * TOO_LONG_S).run() == 1


def test_races_and_samples_of_comparisons_are_begun_anew(make, tmp_path, monkeypatch) -> None:
    begun: list[str] = []

    def again(attempt: Callable[[], Any], anew: Callable[[], None]) -> Any:
        attempt()
        begun.append("anew")
        anew()
        return attempt()

    monkeypatch.setattr(measure, "undisturbed", again)
    measure.prepare(make.task.to_json())
    given = {"task_key": make.task.key, "threads": 1}
    given["artifact"] = measure.build_candidate(candidate_json(make.default()), str(tmp_path))["artifact"]
    assert (
        Measurement.from_json(measure.measure(**given, budget_s=0.01, best_s=None)["measurement"]).status is Status.OK
    )
    number = measure.load(**given)["number"]
    assert measure.sample(number) > 0 and measure.warm(number) > 0
    assert begun == ["anew"] * 3
    assert measure.recheck(number)["fault"] is None

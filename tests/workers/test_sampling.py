from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers import sampling
from tunewright.workers.sampling import interval, paced, repeats, timed


class Clockwork:
    """A program that takes the time it is told to, and counts its runs."""

    def __init__(self, run_s: float) -> None:
        self.run_s = run_s
        self.runs: list[int] = []

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        self.runs += [repeats] * samples
        return [self.run_s] * samples


positive = st.lists(st.floats(1e-9, 10), min_size=1, max_size=60)


@given(positive)
def test_the_interval_holds_the_median(taken: list[float]) -> None:
    median_s, low_s, high_s = interval(taken)
    assert min(taken) <= low_s <= median_s <= high_s <= max(taken)
    assert median_s == pytest.approx(np.median(taken))


def test_the_interval_covers_the_true_median() -> None:
    rng = np.random.default_rng(0)
    for count in (9, 10, 25, 60):
        draws: list[list[float]] = rng.exponential(1 / np.log(2), (2000, count)).tolist()  # their median is 1
        hits = [low_s <= 1 <= high_s for _, low_s, high_s in map(interval, draws)]
        assert np.mean(hits) >= 0.94


def test_a_single_sample_is_its_own_interval() -> None:
    assert interval([2.0]) == (2.0, 2.0, 2.0)
    assert interval([2.0]).width == 0


def test_samples_of_rounds_are_put_at_the_pace_of_the_middle_one() -> None:
    rng = np.random.default_rng(0)
    pace = rng.uniform(1, 3, 9)
    runs_s = {4: 1.0, 7: 1.1, 1: 2.5}
    taken = {n: list(run_s * pace) for n, run_s in runs_s.items()}
    taken[1] = taken[1][:5]  # it was left out of later rounds
    even = paced(taken)
    assert list(even) == list(taken) and list(map(len, even.values())) == [9, 9, 5]
    for n, run_s in runs_s.items():
        assert even[n] == pytest.approx([run_s * np.median(pace)] * len(even[n]), rel=1e-3)


def test_which_is_faster_shows_through_the_paces_of_rounds() -> None:
    """Of two whose times are a hundredth apart, on a machine that is up to three times slower now and then."""
    rng = np.random.default_rng(0)
    raw = even = 0
    for _ in range(200):
        pace = rng.uniform(1, 3, 9)
        taken = {n: list(run_s * pace * rng.normal(1, 0.003, 9)) for n, run_s in enumerate((1.0, 1.01, 1.5))}
        one, other, _ = (interval(samples_s) for samples_s in taken.values())
        raw += one.high_s < other.low_s
        one, other, _ = (interval(samples_s) for samples_s in paced(taken).values())
        even += one.high_s < other.low_s
    assert raw == 0 and even > 150


@pytest.mark.parametrize("taken", [{}, {3: [1.0, 2.0]}, {0: [1.0, 0.0], 1: [1.0, 2.0]}])
def test_samples_of_one_alone_or_of_a_coarse_clock_stay_what_they_are(taken: dict[int, list[float]]) -> None:
    assert paced(taken) == taken


def test_short_runs_are_repeated_within_a_sample() -> None:
    short = Clockwork(1e-6)
    assert repeats(short, once_s=1e-6) == 250
    assert short.runs == [250], "which warms up"
    slower_at_first = Clockwork(1e-6)
    assert repeats(slower_at_first, once_s=5e-5) == 250
    assert slower_at_first.runs == [5, 250]


def test_one_run_that_takes_long_enough_is_a_sample() -> None:
    long = Clockwork(0.1)
    assert repeats(long, once_s=0.1) == 1
    assert not long.runs, "the one before told enough"


class Coarse(Clockwork):
    """One whose clock goes in steps of `step_s`. It gives up where all of its runs would take half a minute."""

    def __init__(self, run_s: float, step_s: float) -> None:
        super().__init__(run_s)
        self.step_s = step_s
        self.passed_s = 0.0

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        self.runs += [repeats] * samples
        return [self._sample_s(repeats) for _ in range(samples)]

    def _sample_s(self, repeats: int) -> float:
        begin_s, self.passed_s = self.passed_s, self.passed_s + repeats * self.run_s
        assert self.passed_s < 30
        return self.step_s * (self.passed_s // self.step_s - begin_s // self.step_s) / repeats


@pytest.mark.parametrize("run_s", [1e-7, 1e-6, 1e-4, 3e-3])
@pytest.mark.parametrize("step_s", [1e-9, 1e-5, 1e-2])
def test_a_coarse_clock_does_not_make_it_run_for_ever(run_s: float, step_s: float) -> None:
    program = Coarse(run_s, step_s)
    [once_s] = program.time(1)
    assert 1 <= repeats(program, once_s) <= sampling.MOST_RUNS
    assert max(program.runs) <= sampling.MOST_RUNS


def test_a_clock_that_stands_still_is_told() -> None:
    program = Clockwork(0.0)
    with pytest.raises(RuntimeError, match="stands still"):
        repeats(program, once_s=0.0)
    assert sum(program.runs) < 2 * sampling.MOST_RUNS


def test_no_time_at_all_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="too coarse"):
        timed(Measurement(Status.OK), [0.0, 0.0, 1e-2])


def test_figures_of_a_failure_stay_empty() -> None:
    failure = Measurement(Status.WRONG_RESULT, error="y: 1 at [0], not 2")
    assert timed(failure, [1.0]) is failure
    figures = timed(Measurement(Status.OK), [3.0, 1.0, 2.0])
    assert (figures.low_s, figures.median_s, figures.high_s) == (1.0, 2.0, 3.0)
    assert figures.samples_s == (3.0, 1.0, 2.0)

from __future__ import annotations

import time
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers import sampling
from tunewright.workers.sampling import FEWEST, MINIMUM, STEP, interval, repeats, samples, timed


class Clockwork:
    """A program that takes the times it is told to, and counts its runs."""

    def __init__(self, run_s: float, noise: float = 0.0, seed: int = 0) -> None:
        self.run_s = run_s
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.calls: list[tuple[int, int]] = []

    def time(
        self, samples: int, repeats: int = 1, *, minimum: int = 3, limit_s: float = inf, deadline_s: float = inf
    ) -> list[float]:
        self.calls.append((samples, repeats))
        taken: list[float] = []
        while len(taken) < samples:
            taken.append(self.run_s * (1 + self.noise * float(self.rng.exponential())))
            late = len(taken) >= minimum and np.median(taken) > limit_s
            if late or time.monotonic() > deadline_s:
                break
        return taken


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


def test_a_steady_program_needs_the_fewest() -> None:
    assert len(samples(Clockwork(1e-3), budget_s=10)) == FEWEST


def test_a_noisy_program_takes_more() -> None:
    taken = samples(Clockwork(1e-3, noise=0.05), budget_s=10)
    assert len(taken) > FEWEST + STEP
    assert interval(taken).width <= sampling.PRECISION


def test_the_budget_ends_it() -> None:
    assert len(samples(Clockwork(1e-3, noise=10.0), budget_s=0.0)) == FEWEST


def test_a_program_that_is_too_slow_is_given_up() -> None:
    assert len(samples(Clockwork(1e-3), budget_s=10, limit_s=1e-4)) == MINIMUM
    assert len(samples(Clockwork(1e-3), budget_s=10, limit_s=1e-2)) == FEWEST


def test_short_runs_are_repeated_within_a_sample() -> None:
    short = Clockwork(1e-6)
    assert repeats(short) == 500
    assert [samples for samples, _ in short.calls] == [1, 1]
    assert short.calls[1][1] >= 1000  # warms up
    assert repeats(Clockwork(0.1)) == 1


class Coarse(Clockwork):
    """One whose clock goes in steps of `step_s`. It gives up where all of its runs would take half a minute."""

    def __init__(self, run_s: float, step_s: float) -> None:
        super().__init__(run_s)
        self.step_s = step_s
        self.passed_s = 0.0

    def time(
        self, samples: int, repeats: int = 1, *, minimum: int = 3, limit_s: float = inf, deadline_s: float = inf
    ) -> list[float]:
        self.calls.append((samples, repeats))
        return [self._sample_s(repeats) for _ in range(samples)]

    def _sample_s(self, repeats: int) -> float:
        begin_s, self.passed_s = self.passed_s, self.passed_s + repeats * self.run_s
        assert self.passed_s < 30
        return self.step_s * (self.passed_s // self.step_s - begin_s // self.step_s) / repeats


@pytest.mark.parametrize("run_s", [1e-7, 1e-6, 1e-4, 3e-3])
@pytest.mark.parametrize("step_s", [1e-9, 1e-5, 1e-2])
def test_a_coarse_clock_does_not_make_it_run_for_ever(run_s: float, step_s: float) -> None:
    program = Coarse(run_s, step_s)
    assert 1 <= repeats(program) <= sampling.MOST_RUNS
    assert max(count for _, count in program.calls) <= sampling.MOST_RUNS


def test_a_clock_that_stands_still_is_told() -> None:
    program = Clockwork(0.0)
    with pytest.raises(RuntimeError, match="stands still"):
        repeats(program)
    assert sum(count for _, count in program.calls) < 2 * sampling.MOST_RUNS


def test_no_time_at_all_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="too coarse"):
        timed(Measurement(Status.OK), [0.0, 0.0, 1e-2])


def test_figures_of_a_failure_stay_empty() -> None:
    failure = Measurement(Status.WRONG_RESULT, error="y: 1 at [0], not 2")
    assert timed(failure, [1.0]) is failure
    figures = timed(Measurement(Status.OK), [3.0, 1.0, 2.0])
    assert (figures.low_s, figures.median_s, figures.high_s) == (1.0, 2.0, 3.0)
    assert figures.samples_s == (3.0, 1.0, 2.0)

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.measure import sampling
from tunewright.workers.measure.sampling import interval, remove_drift, repeats, with_samples


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
    drift = rng.uniform(1, 3, 9)
    runs_s = {4: 1.0, 7: 1.1, 1: 2.5}
    samples_s = {n: list(run_s * drift) for n, run_s in runs_s.items()}
    samples_s[1] = samples_s[1][:5]  # it was left out of later rounds
    even = remove_drift(samples_s)
    assert list(even) == list(samples_s) and list(map(len, even.values())) == [9, 9, 5]
    for n, run_s in runs_s.items():
        assert even[n] == pytest.approx([run_s * np.median(drift)] * len(even[n]), rel=1e-3)


def test_which_is_faster_shows_through_the_paces_of_rounds() -> None:
    """Of two whose times are a hundredth apart, on a machine that is up to three times slower now and then."""
    rng = np.random.default_rng(0)
    raw = even = 0
    for _ in range(200):
        drift = rng.uniform(1, 3, 9)
        samples = {n: list(run_s * drift * rng.normal(1, 0.003, 9)) for n, run_s in enumerate((1.0, 1.01, 1.5))}
        fastest, second, _ = (interval(samples_s) for samples_s in samples.values())
        raw += fastest.high_s < second.low_s
        fastest, second, _ = (interval(samples_s) for samples_s in remove_drift(samples).values())
        even += fastest.high_s < second.low_s
    assert raw == 0 and even > 150


@pytest.mark.parametrize("schedules", [2, 3, 4])
def test_the_steadiest_schedule_is_not_known_without_doubt(schedules: int) -> None:
    """Of few schedules the steadiest one makes up the drift of most rounds, and its samples would all be the same."""
    rng = np.random.default_rng(schedules)
    drift = np.exp(0.2 * rng.normal(size=25))
    samples_s = {
        n: list((1 + n / 10) * drift * (1 + (0.02 if n == 0 else 0.2) * rng.exponential(size=25)))
        for n in range(schedules)
    }
    raw, even = interval(samples_s[0]), interval(remove_drift(samples_s)[0])
    assert even.width > 0.02 and even.low_s < even.median_s < even.high_s
    assert even.median_s == pytest.approx(raw.median_s, rel=0.2)


def test_a_schedule_that_was_alone_in_a_round_is_not_its_own_drift() -> None:
    samples_s = {0: [1.0, 2.0, 1.0, 5.0, 6.0, 7.0], 1: [3.0, 6.0, 3.0]}
    even = remove_drift(samples_s)
    assert even[1] == pytest.approx([3.0 * even[0][0]] * 3, rel=0.01)
    assert [later / even[0][3] for later in even[0][3:]] == pytest.approx([1.0, 1.2, 1.4])


@pytest.mark.parametrize("taken", [{}, {3: [1.0, 2.0]}, {0: [1.0, 0.0], 1: [1.0, 2.0]}])
def test_samples_of_one_alone_or_of_a_coarse_clock_stay_what_they_are(taken: dict[int, list[float]]) -> None:
    assert remove_drift(taken) == taken


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
    assert 1 <= repeats(program, once_s) <= sampling.MAX_RUNS
    assert max(program.runs) <= sampling.MAX_RUNS


def test_a_clock_that_stands_still_is_told() -> None:
    program = Clockwork(0.0)
    with pytest.raises(RuntimeError, match="stands still"):
        repeats(program, once_s=0.0)
    assert sum(program.runs) < 2 * sampling.MAX_RUNS


def test_no_time_at_all_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="too coarse"):
        with_samples(Measurement(Status.OK), [0.0, 0.0, 1e-2])


def test_figures_of_a_failure_stay_empty() -> None:
    failure = Measurement(Status.WRONG_RESULT, error="y: 1 at [0], not 2")
    assert with_samples(failure, [1.0]) is failure
    figures = with_samples(Measurement(Status.OK), [3.0, 1.0, 2.0])
    assert (figures.low_s, figures.median_s, figures.high_s) == (1.0, 2.0, 3.0)
    assert figures.samples_s == (3.0, 1.0, 2.0)

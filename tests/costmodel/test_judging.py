"""Judging models by tasks held out."""

from dataclasses import replace

import numpy as np
import pytest

from tunewright.costmodel.judging import Quality, is_held_out, judge, parted, spread_scale
from tunewright.costmodel.model import AnalyticModel, Trials


class Clairvoyant(AnalyticModel):
    """Knows the times, but for a factor, and deviations of 0.1."""

    def __init__(self, times_s, factor=1.0):
        self._times_s, self._factor = times_s, factor

    def score(self, task, target, space, rows):
        return -np.log2(self._factor * self._times_s[space.codes(rows)])

    def deviation(self, task, target, space, rows):
        return np.full(len(rows), 0.1)


@pytest.fixture
def known(conv, space_of, target):
    space = space_of(conv())
    rows = space.sample(40, np.random.default_rng(0))
    times_s = np.random.default_rng(1).uniform(1e-3, 2e-3, space.size)
    return times_s, Trials(conv(), target, space, rows, times_s[space.codes(rows)])


def test_one_that_knows_all_is_perfect(known):
    times_s, trials = known
    found = judge(Clairvoyant(times_s), [trials])
    assert found is not None
    assert found.time_error == pytest.approx(0.0, abs=1e-9)
    assert replace(found, time_error=0.0) == Quality(1, 40, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
    assert Quality.from_json(found.to_json()) == found


def test_a_factor_spoils_times_alone(known):
    times_s, trials = known
    found = judge(Clairvoyant(times_s, 1.25), [trials])
    assert found is not None
    assert (found.pairwise, found.peak_1, found.covered) == (1.0, 1.0, 1.0)
    assert found.time_error == pytest.approx(0.25)


def test_pairs_that_nobody_can_order_do_not_count(known):
    times_s, trials = known
    spans_s = np.stack([trials.times_s * 0.9, trials.times_s * 1.1], axis=1)
    shuffled = replace(trials, spans_s=spans_s)
    noisy = times_s * np.random.default_rng(2).uniform(0.95, 1.05, len(times_s))
    found = judge(Clairvoyant(noisy), [shuffled])
    assert found is not None
    assert found.pairwise == 1.0 > found.pairwise_all > 0.8


def test_deviations_are_scaled_to_the_errors(known):
    times_s, trials = known
    noisy = times_s * np.exp2(np.random.default_rng(2).normal(0, 0.3, len(times_s)))
    assert spread_scale(Clairvoyant(noisy), [trials]) == pytest.approx(2.0, rel=0.5)  # the median of squares is less
    found = judge(Clairvoyant(noisy), [trials])
    assert found is not None and found.covered < 0.8


def test_too_few_trials_say_nothing(known):
    times_s, trials = known
    assert judge(Clairvoyant(times_s), []) is None
    few = replace(trials, rows=trials.rows[:7], times_s=trials.times_s[:7])
    assert judge(Clairvoyant(times_s), [few]) is None


def test_tasks_are_held_out_whole(conv, space_of, target):
    every = [
        Trials.of(task, target, space_of(task), [])
        for task in (conv(size=n, channels=c) for n in (7, 14, 28) for c in range(8, 40, 2))
    ]
    learned, held_out = parted(every)
    assert {is_held_out(each.task.key) for each in held_out} == {True}
    assert {is_held_out(each.task.key) for each in learned} == {False}
    assert 0.08 < len(held_out) / len(every) < 0.35

"""Judging models by tasks held out."""

from dataclasses import replace

import numpy as np
import pytest

from tunewright.costmodel.layered_model import fit_layer
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.costmodel.validation import Quality, calibrate, is_held_out, split_held_out, validate
from tunewright.costmodel.xgb import XGBModel


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
    quality = validate(Clairvoyant(times_s), [trials])
    assert quality is not None
    assert quality.time_error == pytest.approx(0.0, abs=1e-9)
    assert replace(quality, time_error=0.0) == Quality(1, 40, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)


def test_a_factor_spoils_times_alone(known):
    times_s, trials = known
    quality = validate(Clairvoyant(times_s, 1.25), [trials])
    assert quality is not None
    assert (quality.pairwise, quality.peak_1, quality.covered) == (1.0, 1.0, 1.0)
    assert quality.time_error == pytest.approx(0.25)


def test_pairs_that_nobody_can_order_do_not_count(known):
    times_s, trials = known
    spans_s = np.stack([trials.times_s * 0.9, trials.times_s * 1.1], axis=1)
    shuffled = replace(trials, spans_s=spans_s)
    noisy = times_s * np.random.default_rng(2).uniform(0.95, 1.05, len(times_s))
    quality = validate(Clairvoyant(noisy), [shuffled])
    assert quality is not None
    assert quality.pairwise == 1.0 > quality.pairwise_all > 0.8


def test_what_the_tasks_can_not_tell_is_null(known):
    times_s, trials = known
    blurred = replace(trials, spans_s=np.tile([1e-9, 1.0], (len(trials.times_s), 1)))
    quality = validate(Clairvoyant(times_s), [blurred])
    assert quality is not None
    assert quality.to_json()["pairwise"] is None
    assert quality.to_json()["pairwise_all"] == 1.0


def test_scales_are_those_of_the_errors(conv, space_of, target):
    learned_from = [known_of(conv(size=size), space_of, target, trials=300) for size in (7, 14, 28)]
    apart = [known_of(conv(size=size, channels=64), space_of, target, seed=1, trials=300) for size in (7, 14, 28)]
    model = fit_layer(learned_from, None)
    assert model is not None
    fitted_model = calibrate(replace(model, scale=7.0), apart)
    assert (fitted_model.scale, fitted_model.spread_scale) == pytest.approx(
        (calibrate(model, apart).scale, fitted_model.spread_scale)
    )
    judged = validate(XGBModel(fitted_model), apart)
    assert judged is not None and judged.covered > 0.8
    assert calibrate(model, []) == model


def known_of(task, space_of, target, seed=0, trials=100):
    """Trials of a task in which few large tiles are fast."""
    space = space_of(task)
    rows = space.sample(trials, np.random.default_rng(seed))
    columns = space.columns(rows)
    return Trials(task, target, space, rows, 1e-3 * (1 + 3 / columns["tile"] + 1 / columns["vectors"]))


def test_too_few_trials_say_nothing(known):
    times_s, trials = known
    assert validate(Clairvoyant(times_s), []) is None
    few = replace(trials, rows=trials.rows[:7], times_s=trials.times_s[:7])
    assert validate(Clairvoyant(times_s), [few]) is None


def test_tasks_are_held_out_whole(conv, space_of, target):
    every = [
        Trials.of(task, target, space_of(task), [])
        for task in (conv(size=n, channels=c) for n in (7, 14, 28) for c in range(8, 40, 2))
    ]
    learned, held_out = split_held_out(every)
    assert {is_held_out(each.task.key) for each in held_out} == {True}
    assert {is_held_out(each.task.key) for each in learned} == {False}
    assert 0.08 < len(held_out) / len(every) < 0.35

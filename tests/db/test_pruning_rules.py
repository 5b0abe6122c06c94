"""What may be removed, without a database."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.db.pruning.policy import LEAST_BEST, MOST_BEST, Pruned, RetentionPolicy
from tunewright.db.pruning.rules import WorkingTrial, in_ranges, slower_trials, spared_evenly, spared_progress

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def trial(number, median_s, sketch="tiled", version=1, at=0):
    moment = MOMENT + timedelta(seconds=at)
    return WorkingTrial(number, 1, number, f"{number:064x}", sketch, version, median_s, moment)


def ids(trials):
    return [trial.id for trial in trials]


def test_the_slower_ones_of_each_version_of_a_sketch_and_time_between_confirmations_go():
    trials = [trial(number, 1.0 + number % 4) for number in range(8)]
    assert ids(slower_trials(trials, [], 2)) == [1, 2, 3, 5, 6, 7]
    assert ids(slower_trials(trials, [], 3)) == [2, 3, 6, 7]  # the third has an equal
    assert slower_trials(trials, [], 8) == []
    others = [trial(8, 9.0, version=2), trial(9, 9.0, "other"), trial(10, 9.0, at=2), trial(11, 9.0, at=1)]
    assert ids(slower_trials([*trials, *others], [MOMENT + timedelta(seconds=1)], 2)) == [1, 2, 3, 5, 6, 7, 11]


progress = st.lists(st.tuples(st.integers(1, 4000), st.booleans()), max_size=900, unique_by=lambda told: told[0]).map(
    sorted
)


def read(told, every):
    """What a page sees that reads numbers which a power divides: the first and the last moment, the last forecast."""
    numbers = [number for number, _ in told if number % every == 0]
    forecasts = [number for number, tells in told if tells and number % every == 0]
    return numbers[:1], numbers[-1:], forecasts[-1:]


@given(progress, st.sampled_from([50, 100, 200]))
def test_progress_is_thinned_and_ends_as_before(told, most):
    spared = spared_progress(told, most)
    assert len(spared) <= most and spared <= {number for number, _ in told}
    assert len(told) > most or len(spared) == len(told)
    left = [entry for entry in told if entry[0] in spared]
    for power in range(13):
        assert read(left, 1 << power) == read(told, 1 << power)
    assert spared_progress(left, most) == spared


@given(progress, st.data())
def test_what_is_thinned_in_part_is_thinned_to_no_less(told, data):
    spared = spared_progress(told, 50)
    gone = data.draw(st.sets(st.sampled_from([number for number, _ in told]))) - spared if told else set()
    assert spared_progress([entry for entry in told if entry[0] not in gone], 50) >= spared


def test_a_long_job_keeps_an_even_sample():
    told = [(number, number == 70_001) for number in range(1, 100_001)]
    spared = sorted(spared_progress(told, 200))
    assert 80 < len(spared) <= 200 and 70_001 in spared
    assert max(later - earlier for earlier, later in pairwise(spared)) <= 1024


@given(st.lists(st.integers(1, 10_000), unique=True, max_size=900).map(sorted), st.integers(2, 200))
def test_by_their_places_an_even_sample_stays(numbers, most):
    """Whatever their numbers: those of every second event are all odd."""
    spared = sorted(spared_evenly(numbers, most))
    assert len(spared) == min(most, len(numbers)) and set(spared) <= set(numbers)
    assert [spared[:1], spared[-1:]] == [numbers[:1], numbers[-1:]]
    gaps = {numbers.index(later) - numbers.index(number) for number, later in pairwise(spared)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_ranges_cover_all_numbers():
    assert in_ranges([1, 2, 5, 8, 9], 2) == [(1, 2), (5, 8), (9, 9)]
    assert in_ranges([], 2) == []


def test_policies_have_bounds():
    for values in (
        {"best": LEAST_BEST - 1},
        {"best": MOST_BEST + 1},
        {"events_days": -1.0},
        {"trials_days": float("nan")},
        {"models_days": 1e9},
    ):
        with pytest.raises(ValueError, match="must"):
            RetentionPolicy(**values)
    assert RetentionPolicy().best is None and RetentionPolicy().models_days is None


def test_counts_add_up():
    assert Pruned(events=1, models=2) + Pruned(models=3, model_bytes=4) == Pruned(events=1, models=5, model_bytes=4)
    assert not Pruned() and Pruned(tuners=1)

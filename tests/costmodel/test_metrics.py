import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.costmodel.metrics import pairwise_accuracy, peak, rank_correlation

TIMES = np.array([4.0, 1.0, 2.0, 8.0])
PERFECT = -TIMES


def test_worked_by_hand():
    scores = np.array([3.0, 2.0, 1.0, 0.0])  # thinks: 4 s, then 1 s, 2 s, 8 s
    # Pairs: (4,1) wrong, (4,2) wrong, (4,8) right, (1,2) right, (1,8) right, (2,8) right.
    assert pairwise_accuracy(scores, TIMES) == pytest.approx(4 / 6)
    assert peak(scores, TIMES, 1) == 0.25
    assert peak(scores, TIMES, 2) == 1.0
    # Ranks by score 4 3 2 1, by speed 2 4 3 1: differences 2 -1 -1 0, so 1 - 6 * 6 / (4 * 15).
    assert rank_correlation(scores, TIMES) == pytest.approx(0.4)


def test_perfect_and_reversed():
    assert pairwise_accuracy(PERFECT, TIMES) == 1
    assert pairwise_accuracy(-PERFECT, TIMES) == 0
    assert rank_correlation(PERFECT, TIMES) == pytest.approx(1)
    assert rank_correlation(-PERFECT, TIMES) == pytest.approx(-1)
    assert peak(PERFECT, TIMES, 1) == 1


def test_ties_count_half_and_equal_times_not_at_all():
    assert pairwise_accuracy(np.zeros(4), TIMES) == 0.5
    assert pairwise_accuracy(np.array([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0])) == 1
    assert np.isnan(pairwise_accuracy(np.arange(3.0), np.ones(3)))
    assert np.isnan(rank_correlation(np.zeros(4), TIMES))
    # Ranks 1.5 1.5 3 against 1.5 1.5 3
    assert rank_correlation(np.array([1.0, 1.0, 5.0]), np.array([3.0, 3.0, 2.0])) == pytest.approx(1)


def test_failures_are_slowest():
    times = np.array([np.inf, 2.0, np.inf, 1.0])
    scores = np.array([0.0, 2.0, 1.0, 3.0])
    assert pairwise_accuracy(scores, times) == 1
    assert peak(-scores, times, 1) == 0
    assert np.isnan(peak(scores, np.full(4, np.inf), 1))


def test_equal_scores_are_taken_in_order():
    assert peak(np.zeros(4), TIMES, 1) == 0.25
    assert peak(np.zeros(4), TIMES, 2) == 1


pairs = st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 50)), min_size=2, max_size=30)


@given(pairs, st.integers(1, 30))
def test_bounds_and_agreement(values, k):
    scores = np.array([s for s, _ in values], float)
    times = np.array([t for _, t in values], float)
    assert 0 < peak(scores, times, k) <= 1
    assert peak(scores, times, k) <= peak(scores, times, k + 1)
    accuracy = pairwise_accuracy(scores, times)
    if not np.isnan(accuracy):
        assert pairwise_accuracy(-scores, times) == pytest.approx(1 - accuracy)
    correlation = rank_correlation(scores, times)
    assert np.isnan(correlation) or -1.000001 <= correlation <= 1.000001


@given(pairs)
def test_rank_correlation_is_scipys(values):
    stats = pytest.importorskip("scipy.stats")
    scores = np.array([s for s, _ in values], float)
    times = np.array([t for _, t in values], float)
    correlation = rank_correlation(scores, times)
    if not np.isnan(correlation):
        assert correlation == pytest.approx(stats.spearmanr(scores, -times).statistic)

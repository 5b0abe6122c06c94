"""When a search is expected to end, as one may tell it to people."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from tunewright.db.job import SearchBudget
from tunewright.tuner.search.end_estimate import SETTLE_S, EndEstimate

BUDGET = SearchBudget(400)


def test_forecasts_that_lie_far_apart_make_no_jumps() -> None:
    """Every five seconds another round says that it ends a quarter sooner, or later, than at 800 s."""
    estimate = EndEstimate()
    told_s = [
        estimate.left_s((800.0 - at_s) * (1.25 if round_ % 2 else 0.75), at_s, BUDGET)
        for round_, at_s in enumerate(range(0, 700, 5))
    ]
    steps_s = [before_s - after_s for before_s, after_s in pairwise(told_s)]
    assert max(map(abs, steps_s)) < 30.0  # of itself it says 400 s more, then 400 s less
    assert told_s[-1] == pytest.approx(800.0 - 695.0, rel=0.25)


def test_what_holds_from_now_on_is_followed() -> None:
    estimate = EndEstimate()
    assert estimate.left_s(100.0, 0.0, BUDGET) == 100.0  # the first there is
    told_s = [estimate.left_s(1000.0 - at_s, at_s, BUDGET) for at_s in (1.0, SETTLE_S, 4 * SETTLE_S)]
    assert 98.0 < told_s[0] < 110.0
    assert told_s[1] > 450.0 and told_s[2] == pytest.approx(1000.0 - 4 * SETTLE_S, rel=0.1)


def test_the_nearer_the_end_the_sooner_it_is_followed() -> None:
    estimate = EndEstimate()
    estimate.left_s(300.0, 0.0, BUDGET)
    assert estimate.left_s(5.0, 10.0, BUDGET) < 50.0
    assert estimate.left_s(0.0, 11.0, BUDGET) == 0.0


def test_another_budget_and_what_is_not_known_begin_anew() -> None:
    estimate = EndEstimate()
    estimate.left_s(100.0, 0.0, BUDGET)
    assert estimate.left_s(900.0, 1.0, BUDGET.raised(400, None)) == 900.0
    assert estimate.left_s(inf, 2.0, BUDGET.raised(400, None)) == inf
    assert estimate.left_s(50.0, 3.0, BUDGET.raised(400, None)) == 50.0

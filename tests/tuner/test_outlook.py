"""What is expected of more trials: by hand, and on curves that are made up."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.tuner.search.scheduling.outlook import (
    GRID,
    LEFT,
    SOON,
    TRUST,
    WEIGHT,
    FallEvidence,
    Forecast,
    Promises,
    TaskOutlook,
    expected_falls,
    outlooks,
)
from tunewright.tuner.search.scheduling.scheduler import GUESS_S, LARGEST, OVERHEAD, SMALLEST, Pace


def falling(left: float, trials: int, start_s: float = 1.0) -> list[float]:
    """Best times of which `left` was left after the first trial, and less by the square root of the trials."""
    return [start_s * 2 ** (left * (n**-0.5 - 1)) for n in range(1, trials + 1)]


@pytest.mark.parametrize("left", [0.0, 0.1, 1.5])
@pytest.mark.parametrize("trials", [2, 7, 64, 1000])
def test_evidence_is_what_the_curve_was_made_of(left: float, trials: int) -> None:
    found = FallEvidence.of(falling(left, trials))
    assert found.left == pytest.approx(left * found.weight, abs=1e-9)
    assert found.weight == int(np.log2(trials))


def test_no_evidence() -> None:
    assert FallEvidence.of([]) == FallEvidence.of([1.0]) == FallEvidence.of([inf, inf, inf]) == FallEvidence()
    assert FallEvidence.of([inf, 1.0]) == FallEvidence()  # the first success is no fall
    assert FallEvidence().estimate(0.3) == 0.3


def test_evidence_is_weighed_against_what_was_expected() -> None:
    assert FallEvidence.of([1.0] * 256).estimate(0.3) == pytest.approx(0.3 * WEIGHT / (WEIGHT + 8))


@given(st.integers(1, 1000), st.floats(0, 2), st.floats(0, 2), st.floats(0, 1))
def test_an_outlook_is_within_its_limit_and_falls_ever_slower(
    trials: int, left: float, limit: float, promise: float
) -> None:
    outlook = TaskOutlook.of(trials, left, limit, promise)
    falls = outlook.fall(GRID)
    assert falls[0] == 0 and (np.diff(falls) >= 0).all() and falls[-1] <= limit + 1e-9
    assert (np.diff(np.diff(falls) / np.diff(GRID)) <= 1e-12).all()
    assert ((outlook.saving(GRID) >= 0) & (outlook.saving(GRID) < 1)).all()


def test_an_outlook_by_hand() -> None:
    assert TaskOutlook.of(4, 0.2, inf).fall(np.array([12.0]))[0] == pytest.approx(0.1 * (1 - 1 / 2))
    assert TaskOutlook.of(4, 0.0, inf, 0.4).fall(np.array([SOON, 1e9])) == pytest.approx([0.2, 0.4])
    assert str(TaskOutlook(4, 0.0, 1.0)) == "4 trials, 0.0% to gain soon, 50.0% at length"


def test_promises_are_believed_as_far_as_they_were_kept() -> None:
    broken, fulfilled_fall = Promises(), Promises()
    for n in range(1, 40, 8):
        broken.renew(0.3, [1.0] * n)
        fulfilled_fall.renew(0.3, [2 ** (-0.3 * ((k + 7) // 8)) for k in range(n)])
    of_broken, of_kept = expected_falls([broken])[0], expected_falls([fulfilled_fall])[0]
    assert of_broken < 0.03 < 0.3 * TRUST < 0.25 < of_kept <= 0.3
    among_broken = expected_falls([Promises(0.3), broken])[0]
    assert of_broken < among_broken < 0.2 * TRUST  # the same model made them
    fresh = Promises()
    fresh.renew(0.3, [1.0])
    assert expected_falls([fresh])[0] == pytest.approx(TRUST * 0.3)
    fresh.renew(0.3, [1.0])  # nothing was tried meanwhile: nothing was broken
    assert expected_falls([fresh])[0] == pytest.approx(TRUST * 0.3)
    for nothing in (None, -1.0):
        fresh.renew(nothing, [1.0])
        assert expected_falls([fresh])[0] == 0
    failing = Promises()
    failing.renew(0.3, [inf])
    failing.renew(0.3, [inf, 1.0])
    assert failing.due_fall == failing.fulfilled_fall == 0


def test_thirty_that_gained_little_lower_what_is_expected_of_the_next() -> None:
    known = [falling(0.04, 32)] * 30
    histories, families = [*known, [1.0], [1.0]], ["conv"] * 31 + ["softmax"]
    found = outlooks(histories, families, [inf] * 32, [0.0] * 32)
    assert found[30].later == pytest.approx(0.04, rel=0.1)
    assert found[30].later < 0.06 < LEFT
    alone = outlooks([[1.0]], ["conv"], [inf], [0.0])
    assert alone[0].later == LEFT


def test_one_that_gained_much_is_not_lost_among_those_that_did_not() -> None:
    histories = [*[[1.0] * 64] * 10, falling(1.5, 64)]
    found = outlooks(histories, ["conv"] * 11, [inf] * 11, [0.0] * 11)
    assert found[10].later > 10 * max(outlook.later for outlook in found[:10])


def test_forecasts_are_calibrated_on_curves_like_those_they_expect() -> None:
    """Tasks with different shares left: what is expected of all of them together comes true within a fifth."""
    rng = np.random.default_rng(0)
    lefts = rng.exponential(LEFT, 200)
    for trials in (8, 32):
        histories = [falling(left, trials) for left in lefts]
        found = outlooks(histories, ["a"] * 200, [inf] * 200, [0.0] * 200)
        expected = sum(float(outlook.fall(np.array([3.0 * trials]))[0]) for outlook in found)
        real = sum(left * (trials**-0.5 - (4 * trials) ** -0.5) for left in lefts)
        assert expected == pytest.approx(real, rel=0.2)


def forecast(*tasks: tuple[float, float, float], model_s: float = 1.0) -> Forecast:
    """Of tasks that gain so much in all, half of it after so many trials, each of which takes so long."""
    gains_s = np.array([gain_s * GRID / (GRID + half) for gain_s, half, _ in tasks]).reshape(-1, len(GRID))
    return Forecast.of(model_s, gains_s, np.array([trial_s for *_, trial_s in tasks]), range(len(tasks)))


def test_a_forecast_spends_time_where_it_brings_most() -> None:
    found = forecast((0.1, 4.0, 0.1), (0.2, 4.0, 0.1))
    assert found.gains_s[:2] == pytest.approx([0, 0.1])  # the first trials of the second one
    assert found.seconds[:3] == pytest.approx([0, 0.4, 0.8])
    assert found.gains_s[-1] == pytest.approx(0.3, rel=1e-3)
    assert (np.diff(found.seconds) > 0).all() and (np.diff(found.gains_s) >= 0).all()
    slow = forecast((0.1, 4.0, 0.1), (0.2, 4.0, 1.0))
    assert slow.gains_s[1] == pytest.approx(0.05)


def test_the_speedup_that_is_left() -> None:
    found = forecast((0.2, 4.0, 0.1))
    assert found.speedup(0.4) == pytest.approx(1 / 0.9 - 1)
    assert found.speedup(1e12) == pytest.approx(1 / 0.8 - 1, rel=1e-3)
    assert found.speedup(1e12, trials=4) == pytest.approx(1 / 0.9 - 1)
    assert found.speedup(1e12, trials=0) == found.speedup(0.0) == 0
    assert forecast((0.0, 4.0, 0.1)).speedup(60) == 0
    assert forecast().speedup(60) == 0


def test_until_when() -> None:
    found = forecast((0.2, 64.0, 0.1))
    assert found.lasts_s(100, None) == pytest.approx(10)
    assert found.lasts_s(1e12, None) == inf
    assert found.is_below(0.5) and found.lasts_s(100, 0.5) == 0
    assert not found.is_below(0.02)
    ends_s = found.lasts_s(1e12, 0.02)
    assert found.speedup(60, start_s=ends_s) < 0.02 < found.speedup(60, start_s=ends_s / 3)
    assert found.lasts_s(8, 0.02) == pytest.approx(0.8)


def test_the_pace_of_tasks() -> None:
    pace = Pace(2)
    assert pace.trial_s(0) == pace.mean_s == GUESS_S
    for _ in range(20):
        pace.note(0, 8, 8 * 0.01)
        pace.note(1, 8, 8 * 0.2)
    assert pace.trial_s(0) < 0.05 < 0.15 < pace.trial_s(1) < 0.2
    assert pace.trial_s(0) < pace.mean_s < pace.trial_s(1)
    pace.note(1, 0, 5.0)
    assert pace.trial_s(1) < 0.2


def test_rounds_are_as_large_as_what_they_cost_beside_trials() -> None:
    pace = Pace(1)
    assert pace.batch == SMALLEST
    for _ in range(100):
        pace.note(0, 8, 8 * 0.02)
        pace.note_round(0.1)
    overhead = 0.1 / (0.1 + pace.batch * 0.02)
    assert overhead == pytest.approx(OVERHEAD, rel=0.02)
    for _ in range(100):
        pace.note_round(10.0)
    assert pace.batch == LARGEST

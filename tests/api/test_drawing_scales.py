"""Scales: whatever the data are, ticks are few, round, in order, and told apart by their words."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.api.dashboard.drawing.scales import AxisSpec, Scale, Unit, labels, scale, spread, value_text

UNITS = st.sampled_from(Unit)
POSITIVE = st.floats(1e-9, 1e15)
ANY = st.floats(-1e12, 1e12)


def texts(low: float, high: float, unit: Unit, is_log: bool = False, most: int = 6) -> list[str]:
    return [tick.text for tick in Scale(low, high, unit, is_log).ticks(most)]


@given(st.lists(ANY, min_size=1), UNITS, st.integers(2, 10))
def test_linear_ticks_are_few_and_in_order(values: list[float], unit: Unit, most: int) -> None:
    made = scale(values, AxisSpec("x", unit))
    check_ticks(made, most)


@given(st.lists(POSITIVE, min_size=1), UNITS, st.integers(2, 10))
def test_log_ticks_are_few_and_in_order(values: list[float], unit: Unit, most: int) -> None:
    made = scale(values, AxisSpec("x", unit, is_log=True))
    check_ticks(made, most)


def check_ticks(made: Scale, most: int) -> None:
    ticks = made.ticks(most)
    assert 1 <= len(ticks) <= max(most, 2)
    assert all(made.low <= tick.value <= made.high for tick in ticks)
    assert all(a.value < b.value and a.place < b.place for a, b in pairwise(ticks))
    assert len({tick.text for tick in ticks}) == len(ticks)


@given(st.floats(1e-9, 1e12), st.floats(1.5, 1e9), st.integers(5, 10), st.booleans())
def test_a_scale_of_some_length_has_several_ticks(low: float, factor: float, most: int, is_log: bool) -> None:
    assert len(Scale(low, low * factor, Unit.TIME, is_log).ticks(most)) >= 2


@given(st.lists(POSITIVE, min_size=1), st.booleans(), st.floats(0, 0.2))
def test_places_keep_the_order_of_values_and_are_within_the_scale(
    values: list[float], is_log: bool, pad: float
) -> None:
    made = scale(values, AxisSpec("x", is_log=is_log), pad)
    assert made.low < made.high
    assert all(made.low <= value <= made.high for value in values)
    places = [made.place(value) for value in sorted(values)]
    assert all(0 <= place <= 1 for place in places)
    assert all(a <= b for a, b in pairwise(places))
    assert (made.place(made.low), made.place(made.high)) == (0, 1)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)), UNITS, st.booleans())
def test_any_numbers_have_a_scale(values: list[float], unit: Unit, is_log: bool) -> None:
    made = scale(values, AxisSpec("x", unit, is_log))
    assert isfinite(made.low)
    assert made.low < made.high


@given(st.lists(POSITIVE, min_size=1), st.floats(10, 100), st.booleans())
def test_labels_that_have_room_do_not_touch(values: list[float], room: float, is_log: bool) -> None:
    made = scale(values, AxisSpec("x", Unit.TIME, is_log))
    ticks = made.ticks_within(room, gap=1.0)
    if len(ticks) > 2:
        for a, b in pairwise(ticks):
            assert (b.place - a.place) * room >= (len(a.text) + len(b.text)) / 2


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (0, 1000, Unit.COUNT, ["0", "200", "400", "600", "800", "1,000"]),
        (0, 3, Unit.COUNT, ["0", "1", "2", "3"]),
        (0, 1_000_000, Unit.COUNT, ["0", "200k", "400k", "600k", "800k", "1M"]),
        (0, 5000, Unit.CLOCK, ["0", "15 min", "30 min", "45 min", "1 h", "75 min"]),
        (0, 100, Unit.CLOCK, ["0", "30 s", "1 min", "90 s"]),
        (0, 1, Unit.SHARE, ["0", "20%", "40%", "60%", "80%", "100%"]),
        (1, 2.4, Unit.TIMES, ["1x", "1.25x", "1.5x", "1.75x", "2x", "2.25x"]),
        (0, 0.0012, Unit.TIME, ["0", "200 µs", "400 µs", "600 µs", "800 µs", "1 ms", "1.2 ms"]),
        (-1, 1, Unit.PLAIN, ["-1", "-0.5", "0", "0.5", "1"]),
    ],
)
def test_linear_ticks_are_round(low: float, high: float, unit: Unit, expected: list[str]) -> None:
    assert texts(low, high, unit, most=7 if unit is Unit.TIME else 6) == expected


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (1e-6, 1e-2, Unit.TIME, ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]),
        (0.0009, 0.004, Unit.TIME, ["1 ms", "2 ms", "3 ms", "4 ms"]),
        (0.0021, 0.0049, Unit.TIME, ["2.5 ms", "3 ms", "3.5 ms", "4 ms", "4.5 ms"]),
        (5e9, 3e11, Unit.RATE, ["5 G", "10 G", "20 G", "50 G", "100 G", "200 G"]),
        (0.2, 400, Unit.PLAIN, ["1", "10", "100"]),
        (1, 1e12, Unit.PLAIN, ["1", "1,000", "1M", "1G", "1T"]),
        (1, 10_000, Unit.CLOCK, ["1 s", "10 s", "1 min", "10 min", "1 h"]),
    ],
)
def test_log_ticks_are_round(low: float, high: float, unit: Unit, expected: list[str]) -> None:
    assert texts(low, high, unit, is_log=True) == expected


def test_included_values_are_on_the_scale_and_end_it() -> None:
    made = scale([3.0, 8.0], AxisSpec("trials", Unit.COUNT, include=(0.0,)), pad=0.1)
    assert made.low == 0
    assert made.high > 8


def test_one_value_has_a_scale_around_it() -> None:
    made = scale([5.0], AxisSpec("x"))
    assert made.low < 5 < made.high
    made = scale([5.0], AxisSpec("x", is_log=True))
    assert made.low < 5 < made.high


def test_a_log_axis_has_no_place_for_zero() -> None:
    assert not AxisSpec("x", is_log=True).fits(0)
    assert not AxisSpec("x").fits(nan)
    assert not AxisSpec("x").fits(inf)
    assert AxisSpec("x").fits(0)


@given(st.lists(st.floats(0, 250), max_size=12))
def test_labels_moved_apart_keep_order_and_distance(places: list[float]) -> None:
    moved = spread(places, 13, 0, 250)
    ordered = sorted(moved)
    assert all(b - a >= 13 - 1e-6 for a, b in pairwise(ordered))
    assert all(-1e-6 <= place <= 250 + 1e-6 for place in moved)
    assert [n for _, n in sorted((place, n) for n, place in enumerate(places))] == sorted(
        range(len(places)), key=lambda n: moved[n]
    )


def test_values_in_words() -> None:
    assert value_text(0.00123, Unit.TIME) == "1.23 ms"
    assert value_text(90.0, Unit.CLOCK) == "1:30"
    assert value_text(0.125, Unit.SHARE) == "12.5%"
    assert value_text(1234.0, Unit.COUNT) == "1,234"
    assert value_text(2.444e11, Unit.RATE) == "244 G"
    assert labels([1.0, 1.0001], Unit.PLAIN) == ["1", "1.0001"]
    assert labels([1.025, 1.05, 1.075, 1.1], Unit.TIMES) == ["1.025x", "1.05x", "1.075x", "1.1x"]

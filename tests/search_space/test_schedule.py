import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.search_space.schedule import Schedule

schedules = st.builds(
    Schedule,
    st.text(min_size=1, max_size=8),
    st.integers(0, 99),
    st.dictionaries(st.text(max_size=6), st.integers(-(2**40), 2**40), max_size=6).map(lambda d: tuple(d.items())),
)


@given(schedules)
def test_json_and_back(schedule):
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_key_is_the_same_on_every_machine_and_ignores_the_order_of_knobs():
    schedule = Schedule("tiled", 1, (("tile_m", 4), ("tile_n", 16)))
    text = b'{"sketch":"tiled","values":{"tile_m":4,"tile_n":16},"version":1}'
    assert schedule.key == hashlib.sha256(text).hexdigest()
    assert schedule.key == Schedule("tiled", 1, (("tile_n", 16), ("tile_m", 4))).key


@pytest.mark.parametrize(
    "other",
    [
        Schedule("other", 1, (("tile_m", 4),)),
        Schedule("tiled", 2, (("tile_m", 4),)),
        Schedule("tiled", 1, (("tile_m", 8),)),
        Schedule("tiled", 1, (("tile_n", 4),)),
    ],
)
def test_what_differs_has_another_key(other):
    assert other.key != Schedule("tiled", 1, (("tile_m", 4),)).key


def test_reads_like_a_call():
    schedule = Schedule("tiled", 3, (("tile_m", 4), ("unroll", 0)))
    assert str(schedule) == "tiled.3(tile_m=4, unroll=0)"
    assert schedule["unroll"] == 0
    with pytest.raises(KeyError):
        schedule["tile_n"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"sketch": "tiled", "version": 1},
        {"sketch": "tiled", "version": "x", "values": {}},
        {"sketch": "tiled", "version": 1, "values": {"tile_m": None}},
        {"sketch": "tiled", "version": 1, "values": {"tile_m": float("inf")}},
        {"sketch": "tiled", "version": float("-inf"), "values": {}},
        {"sketch": "tiled", "version": 1, "values": None},
        {"sketch": "tiled", "version": 1, "values": [1]},
        [1],
    ],
)
def test_other_data_is_refused(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Schedule.from_json(data)

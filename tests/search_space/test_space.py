from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.graph.task import Axis, Stage
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.space import ENUMERABLE, Knob, Space, Tiling, flat_extents


def always(columns):
    return np.bool_(True)


def unused_tiling(columns):
    stage = Stage("y", (Axis("i", 8),), Load("x", (Var("i"),), DType.F32))
    return Tiling(stage, ({"i": np.array([8])},), "i", np.array([1]))


def make_space(radix, legal=always, preferred=None):
    knobs = tuple(Knob(f"k{i}", tuple(2**n for n in range(count))) for i, count in enumerate(radix))
    preferred = preferred or {knob.name: knob.choices[0] for knob in knobs}
    return Space("made_up", 1, knobs, legal, unused_tiling, preferred)


def small_product(columns):
    return columns["k0"] * columns["k1"] <= 8


radices = st.lists(st.integers(1, 6), min_size=0, max_size=5)
seeds = st.integers(0, 2**32 - 1)


def test_columns_hold_the_values_of_the_chosen_numbers():
    columns = make_space([3, 4]).columns(np.array([[0, 3], [2, 1]]))
    assert columns["k0"].tolist() == [1, 4]
    assert columns["k1"].tolist() == [8, 2]


@given(radices, seeds)
def test_a_row_and_its_schedule_are_the_same_point(radix, seed):
    space = make_space(radix)
    for row in space.sample(5, np.random.default_rng(seed)):
        assert space.row(space.schedule(row)).tolist() == row.tolist()


@given(radices)
def test_points_are_every_combination_once_in_the_order_of_codes(radix):
    space = make_space(radix)
    codes = space.codes(space.points)
    assert codes.tolist() == list(range(prod(radix)))
    assert len(space.distinct(space.points)) == space.size


@pytest.mark.parametrize("radix", [[4, 4], [3, 5, 1, 2], [1, 4], [7, 2, 3]])
def test_points_are_the_legal_ones(radix):
    space = make_space(radix, small_product)
    numbers = product(*(range(count) for count in reversed(radix)))  # the last moves first
    legal = [row for row in (each[::-1] for each in numbers) if 2 ** (row[0] + row[1]) <= 8]
    assert space.points.tolist() == [list(row) for row in legal]


@pytest.mark.parametrize(
    ("preferred", "default"),
    [
        ({"k0": 4, "k1": 2}, [2, 1]),  # legal
        ({"k0": 8, "k1": 2}, [3, 0]),  # the nearest that is
        ({"k0": 4, "k1": 1000}, [2, 1]),  # nor is it a choice
        ({"k0": 3, "k1": -1}, [1, 0]),
    ],
)
def test_the_default_is_the_legal_point_nearest_to_what_is_preferred(preferred, default):
    space = make_space([4, 4], small_product, preferred)
    assert space.row(space.default).tolist() == default
    assert not space.is_empty


def test_the_default_of_a_large_space_is_legal():
    preferred = {f"k{i}": 1 << 11 for i in range(8)}
    space = make_space([12] * 8, lambda columns: columns["k0"] * columns["k1"] <= 16, preferred)
    assert space.size > ENUMERABLE
    assert space.valid(space.row(space.default)[None]).all()
    assert space.default == make_space([12] * 8, space.legal, preferred).default


@pytest.mark.parametrize("radix", [[4, 4], [12] * 8, [4, 0]])
def test_a_space_with_no_legal_point_is_empty_and_has_no_default(radix):
    preferred = {f"k{i}": 1 for i in range(len(radix))}
    space = make_space(radix, lambda columns: np.zeros(len(columns["k0"]), np.bool_), preferred)
    assert space.is_empty
    with pytest.raises(Illegal, match=f"none of {space.size} combinations"):
        _ = space.default


def test_a_large_space_is_not_written_out():
    with pytest.raises(ValueError, match="too many"):
        _ = make_space([9] * 9).points


@settings(max_examples=50)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.integers(0, 200), seeds)
def test_samples_are_distinct_legal_points(radix, count, seed):
    space = make_space(radix, small_product)
    rows = space.sample(count, np.random.default_rng(seed))
    assert len(rows) <= count
    assert space.valid(rows).all()
    assert len(set(space.codes(rows).tolist())) == len(rows)
    if space.size <= ENUMERABLE:
        assert len(rows) == min(count, len(space.points))


def test_a_sample_of_a_large_space_is_full():
    space = make_space([12] * 8)
    assert space.size > ENUMERABLE
    assert len(space.sample(500, np.random.default_rng(0))) == 500


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_points_of_a_large_space_that_is_mostly_illegal(count):
    space = make_space([12] * 8, lambda columns: (columns["k0"] == 1) & (columns["k1"] == 1))
    for seed in range(10):
        assert len(space.sample(count, np.random.default_rng(seed))) == count


def test_a_space_with_no_legal_point_gives_none():
    for radix in ([4, 4], [12] * 8):
        space = make_space(radix, lambda columns: np.zeros(len(columns["k0"]), np.bool_))
        assert len(space.sample(10, np.random.default_rng(0))) == 0


@given(radices, seeds)
def test_mutation_changes_exactly_one_knob(radix, seed):
    space = make_space(radix)
    rng = np.random.default_rng(seed)
    rows = space.sample(20, rng)
    fresh = space.mutate(rows, rng)
    if space.size > 1:
        assert ((fresh != rows).sum(axis=1) == 1).all()
    else:
        assert len(fresh) == 0


def test_mutation_and_crossing_stay_legal():
    space = make_space([4, 4, 3], small_product)
    rng = np.random.default_rng(1)
    rows = space.sample(30, rng)
    assert space.valid(space.mutate(rows, rng)).all()
    fresh = space.cross(rows, rows[::-1], rng)
    assert len(fresh) and space.valid(fresh).all()


@given(st.lists(st.integers(2, 6), min_size=1, max_size=5), seeds)
def test_a_crossing_takes_each_knob_from_a_parent(radix, seed):
    space = make_space(radix)
    rng = np.random.default_rng(seed)
    left = space.sample(10, rng)
    right = left[::-1]
    fresh = space.cross(left, right, rng)
    assert ((fresh == left) | (fresh == right)).all()


def test_neighbours_are_one_choice_away():
    space = make_space([3, 3])
    assert sorted(space.neighbours(np.array([[0, 1]])).tolist()) == [[0, 0], [0, 2], [1, 1]]
    legal = make_space([4, 4], small_product).neighbours(np.array([[1, 2]]))  # 2 * 4 is at the limit
    assert sorted(legal.tolist()) == [[0, 2], [1, 1]]


def test_codes_of_a_huge_space_still_tell_points_apart():
    space = make_space([16] * 40)  # 2^160 combinations: a power of the radix would be 0 modulo 2^64
    rows = np.repeat(np.zeros((1, 40), np.int64), 40 * 15, axis=0)
    rows[np.arange(600), np.arange(600) // 15] = 1 + np.arange(600) % 15
    assert len(set(space.codes(rows).tolist())) == 600
    sampled = space.sample(5000, np.random.default_rng(0))
    assert len(set(space.codes(sampled).tolist())) == 5000


def test_a_space_without_knobs_has_one_point():
    space = make_space([])
    assert space.size == 1
    rows = space.sample(10, np.random.default_rng(0))
    assert rows.shape == (1, 0)
    assert space.codes(rows).tolist() == [0]
    assert space.row(space.default).shape == (0,)
    assert len(space.mutate(rows, np.random.default_rng(0))) == 0
    assert len(space.neighbours(rows)) == 0


def test_a_schedule_is_found_whatever_the_order_of_its_values():
    space = make_space([3, 4])
    schedule = Schedule("made_up", 1, (("k1", 8), ("k0", 2)))
    assert space.row(schedule).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (Schedule("other", 1, (("k0", 1), ("k1", 1))), "sketch"),
        (Schedule("made_up", 2, (("k0", 1), ("k1", 1))), "version 1"),
        (Schedule("made_up", 1, (("k0", 1),)), "knobs"),
        (Schedule("made_up", 1, (("k0", 1), ("k1", 3))), "k1=3 is none of"),
        (Schedule("made_up", 1, (("k0", 8), ("k1", 2))), "breaks a limit"),
    ],
)
def test_a_schedule_outside_the_space_is_illegal(schedule, reason):
    with pytest.raises(Illegal, match=reason):
        make_space([4, 4], small_product).row(schedule)


@given(st.data(), st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_schedules_together_are_placed_as_each_alone(data, radix):
    space = make_space(radix, small_product)
    value = st.sampled_from([1, 2, 3, 4, 8])
    names = st.permutations([knob.name for knob in space.knobs])
    values = st.builds(lambda order: tuple((name, data.draw(value)) for name in order), names)
    schedules = data.draw(
        st.lists(st.builds(Schedule, st.sampled_from(["made_up", "other"]), st.sampled_from([1, 2]), values))
    )
    rows, places = space.rows(schedules)
    alone = {}
    for place, schedule in enumerate(schedules):
        try:
            alone[place] = space.row(schedule).tolist()
        except Illegal:
            continue
    assert dict(zip(places.tolist(), rows.tolist(), strict=True)) == alone
    assert rows.shape == (len(alone), len(radix))


def test_a_large_space_with_few_legal_points_is_given_up_once_it_has_no_more():
    drawn = []

    def few(columns):
        drawn.append(len(columns["k0"]))
        return (columns["k1"] == 1) & (columns["k2"] == 1) & (columns["k3"] == 1)

    space = make_space([55, 50, 50, 2], few)
    assert space.size > ENUMERABLE
    rows = space.sample(10_000, np.random.default_rng(0))
    assert 1 <= len(rows) <= 55
    assert sum(drawn) < 1_000_000  # all rounds would draw half as many again


def test_distinct_rows_keep_their_order():
    space = make_space((3, 4))
    rows = space.sample(3, np.random.default_rng(0))
    assert space.distinct(rows[[2, 1, 2, 0, 1]]).tolist() == rows[[2, 1, 0]].tolist()


def test_levels_of_a_tiling_name_what_they_change():
    stage = Stage("y", (Axis("i", 8), Axis("j", 6)), Load("x", (Var("i"), Var("j")), DType.F32))
    columns = {"width": np.array([2, 4]), "height": np.array([3, 16])}
    tiling = Tiling.of(stage, "j", columns, ({"j": columns["width"]}, {"i": columns["height"], "": 5}))
    levels = [{axis: sizes.tolist() for axis, sizes in level.items()} for level in tiling.tiles]
    assert levels == [{"i": [1, 1], "j": [2, 4]}, {"i": [3, 8], "j": [2, 4]}, {"i": [8, 8], "j": [6, 6]}]
    assert tiling.chunks.tolist() == [3 * 3, 1 * 2]


def test_neighbours_in_a_flat_order_fill_the_last_axes_first():
    extents = flat_extents((Axis("i", 8), Axis("j", 6)), np.array([1, 4, 12, 100]))
    assert {axis: np.asarray(sizes).tolist() for axis, sizes in extents.items()} == {
        "j": [1, 4, 6, 6],
        "i": [1, 1, 2, 8],
    }

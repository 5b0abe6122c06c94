"""What is kept of points must change nothing but the work."""

import numpy as np
import pytest

from tunewright.costmodel import xgb
from tunewright.costmodel.features import features
from tunewright.costmodel.layered_model import fit_layer
from tunewright.costmodel.model import Trials
from tunewright.costmodel.point_tables import PointTable, PointTables
from tunewright.costmodel.xgb import XGBModel
from tunewright.search_space.sketches import spaces


def trials(task, target, space, count, seed=0):
    rng = np.random.default_rng(seed)
    rows = space.sample(count, rng)
    return Trials(task, target, space, rows, 1e-3 * (1.0 + space.columns(rows)["tile"]) * rng.uniform(1.0, 1.1, count))


def widened(values):
    return np.stack([values[:, 0], -values[:, 0]])


@pytest.fixture
def table(conv, space_of):
    space, worked_out = space_of(conv()), []

    def of(rows):
        worked_out.append(len(rows))
        return rows.astype(np.float32)

    table = PointTable(space, len(space.knobs), of, widened)
    return table, space, worked_out


def test_points_are_worked_out_once(table):
    table, space, worked_out = table
    rows = space.points[np.random.default_rng(0).permutation(len(space.points))]
    for start in range(0, 400, 100):  # with points that are known, and one of them twice
        some = np.concatenate([rows[: start + 100], rows[start : start + 1]])
        np.testing.assert_array_equal(table.values(table.slots(some)), some)
        np.testing.assert_array_equal(table.below(table.slots(some)), widened(some))
    assert worked_out == [100] * 4
    assert len(table) == 400


def test_ranks_are_worked_out_for_each_layer_on_top(table):
    table, space, _ = table
    ranked = []

    def above(values):
        ranked.append(len(values))
        return values[None, :, 1] + len(ranked)

    rows = space.points[:50]
    first = table.ranks(table.slots(rows), above)
    np.testing.assert_array_equal(first, widened(rows) + rows[:, 1] + 1)
    np.testing.assert_array_equal(table.ranks(table.slots(rows[::-1]), above), first[:, ::-1])
    assert table.ranks(table.slots(space.points[:60]), above).shape == (2, 60)
    table.forget_ranks()
    np.testing.assert_array_equal(table.ranks(table.slots(rows), above), first + 2)
    assert ranked == [50, 10, 50]


def test_tables_used_long_ago_are_dropped(conv, space_of):
    space = space_of(conv())

    def made():
        return PointTable(space, len(space.knobs), lambda rows: rows.astype(np.float32), widened)

    tables = PointTables(100)
    known = {}
    for name in "abac":
        known[name] = tables.table(name, made)
        known[name].slots(space.points[:45])
    assert tables.table("a", made) is known["a"]
    assert tables.table("c", made) is known["c"]
    assert tables.table("b", made) is not known["b"]


def test_the_table_that_is_wanted_is_the_last_to_be_dropped(conv, space_of):
    space = space_of(conv())

    def made():
        return PointTable(space, len(space.knobs), lambda rows: rows.astype(np.float32), widened)

    tables = PointTables(100)
    known = {name: tables.table(name, made) for name in "abc"}
    assert tables.table("a", made) is known["a"]  # though it is empty
    for name in "abc":
        known[name].slots(space.points[:45])
    assert tables.table("b", made) is known["b"]  # the longest unused, and there are too many points
    assert tables.table("a", made) is known["a"]
    assert tables.table("c", made) is not known["c"]
    known["a"].slots(space.points[:101])
    assert tables.table("a", made) is not known["a"]


@pytest.mark.parametrize("max_points", [0, 60])
def test_points_are_kept_from_the_first_fit_on(conv, space_of, target, monkeypatch, max_points):
    worked_out = []

    def counted(task, target, space, rows):
        worked_out.append(len(rows))
        return features(task, target, space, rows)

    monkeypatch.setattr(xgb, "features", counted)
    space = space_of(conv())
    known = fit_layer([trials(conv(), target, space, 60)], None)
    rows = space.sample(50, np.random.default_rng(1))
    model = XGBModel(known, kept_points=max_points)
    for fitted in (False, True):
        if fitted:
            model.fit([])
        model.score(conv(), target, space, rows)
        worked_out.clear()
        model.score(conv(), target, space, rows)
        assert sum(worked_out) == (0 if fitted and max_points else 50)


@pytest.mark.parametrize("max_points", [0, 60, xgb.MAX_POINTS])
@pytest.mark.parametrize("with_base", [False, True])
def test_scores_are_those_of_features_and_trees_alone(conv, space_of, target, max_points, with_base):
    task = conv()
    space = space_of(task)
    known = [trials(each, target, space_of(each), 60) for each in (conv(size=14), conv(channels=64))]
    before = fit_layer(known, None) if with_base else None
    assert (before is not None) == with_base
    model = XGBModel(before, kept_points=max_points)
    rows = space.sample(80, np.random.default_rng(1))
    first = spaces(task, target)[0]
    default = features(task, target, first, first.row(first.default)[None]).values
    for count in (0, 30, 60):
        model.fit([trials(task, target, space, count)])
        for some in (rows[:50], rows[20:]):  # at the second time most are known
            scores = model.score(task, target, space, some)
            if (learned := model._learned) is not None:
                ranks = learned.members(features(task, target, space, some).values) - learned.members(default)
                gains = np.asarray(learned.scale * ranks, np.float64)
                np.testing.assert_allclose(np.diff(scores), np.diff(gains.mean(axis=0)), rtol=1e-12)
                np.testing.assert_array_equal(
                    model.deviation(task, target, space, some),
                    gains.std(axis=0) * learned.spread_scale * (learned.layers[0].members > 1),
                )

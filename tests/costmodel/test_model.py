"""The conformance suite of cost models, and what the learned one must do."""

from dataclasses import replace

import numpy as np
import pytest

from tunewright.costmodel import xgb
from tunewright.costmodel.features import NAMES, features
from tunewright.costmodel.labels import TrainingData
from tunewright.costmodel.layered_model import fit_layer
from tunewright.costmodel.metrics import pairwise_accuracy, peak
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.costmodel.roofline import estimate_space_s
from tunewright.costmodel.xgb import XGBModel
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces


def made_up_time_s(task, space, rows):
    """Unlike the roofline: every choice has its own factor, and pairs of them theirs."""
    columns = space.columns(rows)
    scale_s = task.flops * 1e-12
    tile, vectors = columns["tile"], columns["vectors"]
    return scale_s * (
        (1 + 3 / tile + 0.5 / vectors)
        * (1 + 0.2 * np.abs(np.log2(columns["rows"]) - 2))
        * np.where((columns["order"] == 1) & (tile > 6), 0.8, 1.0)
        * np.where(tile * vectors > 27, 2.0, 1.0)
    )


def trials(task, target, space, count, seed=0, fail=0.0):
    rng = np.random.default_rng(seed)
    rows = space.sample(count, rng)
    times_s = made_up_time_s(task, space, rows)
    return Trials(task, target, space, rows, np.where(rng.random(len(rows)) < fail, np.inf, times_s))


class RandomModel(AnalyticModel):
    """Scores that mean nothing, by splitmix64: the same point has the same score whatever is scored beside it."""

    def score(self, task, target, space, rows):
        z = (space.codes(rows).view(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z >> np.uint64(11)).astype(np.float64) / 2.0**53


@pytest.fixture(params=[RandomModel, AnalyticModel, XGBModel])
def model(request):
    return request.param()


@pytest.fixture
def taught(model, conv, space_of, target):
    model.fit([trials(conv(), target, space_of(conv()), 300, fail=0.1)])
    return model


def test_scores_are_finite_one_a_point_and_stand_for_themselves(taught, conv, space_of, target):
    task = conv(size=14)
    space = space_of(task)
    rows = space.sample(50, np.random.default_rng(1))
    scores = taught.score(task, target, space, rows)
    assert scores.shape == (50,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(taught.score(task, target, space, rows[::-1]), scores[::-1])
    np.testing.assert_array_equal(taught.score(task, target, space, rows[:1]), scores[:1])
    assert taught.score(task, target, space, rows[:0]).shape == (0,)


def test_an_untaught_model_answers(model, conv, space_of, target):
    task = conv()
    space = space_of(task)
    assert not model.ready
    model.fit([])
    assert not model.ready
    assert np.isfinite(model.score(task, target, space, space.sample(9, np.random.default_rng(1)))).all()


def test_the_order_of_trials_does_not_matter(model, conv, space_of, target):
    first = trials(conv(), target, space_of(conv()), 100, fail=0.1)
    two = trials(conv(size=14), target, space_of(conv(size=14)), 100)
    space = space_of(conv())
    rows = space.sample(50, np.random.default_rng(1))
    model.fit([first, two])
    scores = model.score(conv(), target, space, rows)
    model.fit([two, replace(first, rows=first.rows[::-1], times_s=first.times_s[::-1])])
    np.testing.assert_array_equal(model.score(conv(), target, space, rows), scores)


def test_equal_seeds_give_equal_models(model, conv, space_of, target):
    space = space_of(conv())
    rows = space.sample(50, np.random.default_rng(1))
    known = [trials(conv(), target, space, 200)]
    again = type(model)()
    model.fit(known)
    again.fit(known)
    np.testing.assert_array_equal(model.score(conv(), target, space, rows), again.score(conv(), target, space, rows))


def test_trials_of_measurements(conv, space_of, target):
    task = conv()
    space = space_of(task)
    ok = Measurement(Status.OK, (2e-3,), 2e-3, 2e-3, 2e-3)
    failed = Measurement(Status.TIMEOUT, error="too slow")
    other = Schedule("other", 1, ())
    slow = space.schedule(space.points[5])
    trials = Trials.of(task, target, space, [(space.default, ok), (other, ok), (slow, failed)])
    assert trials.times_s.tolist() == [2e-3, np.inf]
    assert trials.rows.tolist() == [space.row(space.default).tolist(), space.points[5].tolist()]
    assert Trials.of(task, target, space, []).rows.shape == (0, len(space.knobs))


def test_a_time_without_an_interval_teaches_as_any_other(conv, space_of, target):
    task = conv()
    space = space_of(task)
    known = trials(task, target, space, 40)
    measured = [
        (space.schedule(row), Measurement(Status.OK, (time_s,), time_s))
        for row, time_s in zip(known.rows, known.times_s, strict=True)
    ]
    from_times = Trials.of(task, target, space, measured)
    np.testing.assert_array_equal(from_times.spans_s, np.stack([known.times_s, known.times_s], axis=1))
    half = Measurement(Status.OK, (2e-3,), 2e-3, high_s=3e-3)
    np.testing.assert_array_equal(Trials.of(task, target, space, [(space.default, half)]).spans_s, [[2e-3, 3e-3]])
    model, exact = XGBModel(), XGBModel()
    model.fit([from_times])
    exact.fit([known])
    assert model.ready
    np.testing.assert_allclose(
        model.score(task, target, space, known.rows), exact.score(task, target, space, known.rows), rtol=1e-6
    )


def test_labels_are_relative_to_the_best_of_a_task(conv, space_of, target):
    task, other = conv(), conv(size=14)
    space = space_of(task)
    rows = space.points[:3]
    sets = [
        Trials(task, target, space, rows, np.array([4.0, np.inf, 2.0])),
        Trials(task, target, space_of(task, "another"), rows[:1], np.array([1.0])),  # another space, the same task
        Trials(task, replace(target, threads=1), space, rows[:1], np.array([7.0])),  # nothing to compare it with
        Trials(other, target, space_of(other), rows[:2], np.array([np.inf, np.inf])),
    ]
    data = TrainingData.of(sets)
    assert data.is_informative and data.tasks == 2
    assert len(data.values) == len(data.speeds) == len(data.groups)
    speeds = {}
    start = 0
    for each in data.sets:
        speeds[each.task.key, each.space.sketch] = data.speeds[start : start + len(each.times_s)].tolist()
        start += len(each.times_s)
    assert speeds == {
        (task.key, "made_up"): [0.25, 0.0, 0.5],
        (task.key, "another"): [1.0],
        (other.key, "made_up"): [0.0, 0.0],
    }


def test_what_is_all_alike_teaches_nothing(conv, space_of, target):
    task = conv()
    space = space_of(task)
    rows = space.points[:3]
    for times_s, teaches in (([1.0, 1.0, 2.0], True), ([2.0] * 3, False), ([np.inf] * 3, False), ([1.0], False)):
        trials = Trials(task, target, space, rows[: len(times_s)], np.array(times_s))
        assert TrainingData.of([trials]).is_informative == teaches
    assert not TrainingData.of([]).is_informative
    assert TrainingData.of([]).values.shape == (0, len(NAMES))


def test_layers_and_jobs_learn_from_the_same_data(conv, space_of, target):
    known = [trials(task, target, space_of(task), 60, fail=0.1) for task in (conv(), conv(size=14))]
    data = TrainingData.of(known)
    model = XGBModel()
    assert TrainingData.of(known, model._features).values.tobytes() == data.values.tobytes()
    assert fit_layer(known, None) is not None
    equal_trials = [replace(each, times_s=np.ones(len(each.times_s))) for each in known]
    assert fit_layer(equal_trials, None) is None


def test_it_learns_what_no_formula_knows(conv, space_of, target):
    task = conv()
    space = space_of(task)
    model = XGBModel()
    model.fit([trials(task, target, space, 200)])
    assert model.ready
    rows = space.sample(400, np.random.default_rng(7))
    times_s = made_up_time_s(task, space, rows)
    scores = model.score(task, target, space, rows)
    untaught = XGBModel().score(task, target, space, rows)
    assert pairwise_accuracy(scores, times_s) > 0.9 > pairwise_accuracy(untaught, times_s)
    assert peak(scores, times_s, 5) > 0.93


def test_it_carries_over_to_another_shape(conv, space_of, target):
    model = XGBModel()
    model.fit([trials(t, target, space_of(t), 200) for t in (conv(), conv(size=14, channels=64))])
    task = conv(size=28, channels=64, filters=128)
    space = space_of(task)
    rows = space.sample(400, np.random.default_rng(7))
    times_s = made_up_time_s(task, space, rows)
    assert pairwise_accuracy(model.score(task, target, space, rows), times_s) > 0.8


def test_too_few_trials_or_all_alike_leave_the_estimate(conv, space_of, target):
    task = conv()
    space = space_of(task)
    rows = space.sample(30, np.random.default_rng(1))
    estimate = AnalyticModel().score(task, target, space, rows)
    for few in (trials(task, target, space, xgb.enough_comparisons(1)), trials(task, target, space, 100, fail=1.1)):
        model = XGBModel()
        model.fit([trials(task, target, space, 200)])
        model.fit([few])  # in place of what was learned before
        assert not model.ready
        np.testing.assert_array_equal(model.score(task, target, space, rows), estimate)


def test_the_estimate_is_the_feature_of_that_name(conv, space_of, target):
    for task in (conv(), conv(size=14, stride=2)):
        for space in (space_of(task), *spaces(task, target)):
            rows = space.sample(200, np.random.default_rng(1))
            known = features(task, target, space, rows).column("estimate_log_s")
            np.testing.assert_array_equal(AnalyticModel().score(task, target, space, rows), -known.astype(np.float64))
            np.testing.assert_allclose(np.log2(estimate_space_s(task, target, space, rows)), known, rtol=1e-6)
            assert estimate_space_s(task, target, space, rows[:0]).shape == (0,)


def test_a_few_trials_of_many_tasks_are_enough():
    assert [xgb.enough_comparisons(tasks) for tasks in (1, 10, 1000)] == [16, 34, xgb.MAX_COMPARISONS]


def test_what_features_add_is_how_far_scores_are_apart(conv, space_of, target):
    task = conv()
    space = space_of(task)
    rows = space.sample(30, np.random.default_rng(0))
    model = XGBModel()
    values, parts = model.contributions(task, target, space, rows)
    assert values.shape == parts.shape == (30, len(NAMES))
    assert not parts.any()
    model.fit([trials(task, target, space, 60)])
    _, parts = model.contributions(task, target, space, rows)
    scores = model.score(task, target, space, rows)
    np.testing.assert_allclose(parts.sum(axis=1) - parts[0].sum(), scores - scores[0], atol=1e-4)
    first = model.explain(task, target, space, rows[:1])[0][0]
    assert first.log2_speed == parts[0][np.argmax(np.abs(parts[0]))]

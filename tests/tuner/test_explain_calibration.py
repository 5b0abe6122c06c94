"""Calibration: predictions beside what was measured, by the base model and by snapshots of a store."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.costmodel import base as shipped
from tunewright.costmodel.metrics import pairwise_accuracy, rank_correlation
from tunewright.db.store import Store
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.explain.calibration import Calibration, calibrations
from tunewright.tuner.lookup import experience
from tunewright.tuner.lookup.experience import learn
from tunewright.tuner.models.model import Model, open_model

from . import fake_pool
from .conftest import small_model
from .test_lookup import NEAR, TARGET, TASK
from .test_lookup_predictor import HELD_OUT, add_trials
from .trial_lines import line, points


@pytest.fixture
def store(store: Store) -> Store:
    store.add_target(TARGET)
    return store


@pytest.fixture
def with_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package carries, which other tests here do without."""
    monkeypatch.setattr(experience, "base", shipped.base)


def test_nothing_was_learned(store: Store) -> None:
    known = [line(default_schedule(TASK, TARGET))]
    assert calibrations(store, TASK, TARGET, known) == calibrations(None, TASK, TARGET, known) == []


def test_the_newest_snapshot_is_held_against_what_was_measured(store: Store) -> None:
    add_trials(store, 60)
    made = learn(store, "cpu")
    assert made is not None
    known = store.trials.sample(NEAR.key, TARGET.key, 1000)
    [found] = calibrations(store, NEAR, TARGET, known)
    assert (found.model, found.has_learned_from_these) == (f"snapshot {made.id}", True)
    measured = {one.schedule.key: one.median_s for one in known}
    assert {pair.schedule_key: pair.measured_s for pair in found.points} == measured
    predicted_s, measured_s = (np.array(column) for column in zip(*(pair[1:] for pair in found.points), strict=True))
    assert found.rank_correlation == pytest.approx(rank_correlation(-predicted_s, measured_s))
    assert found.pairwise == pytest.approx(pairwise_accuracy(-predicted_s, measured_s))  # all intervals are points
    assert found.pairwise is not None and found.pairwise > 0.8  # it has learned from them
    assert found.peak_1 is not None and found.peak_5 is not None and 0 < found.peak_1 <= found.peak_5 <= 1


@pytest.mark.slow
def test_a_snapshot_has_not_learned_from_what_came_after_it(store: Store) -> None:
    add_trials(store, 60)
    made = learn(store, "cpu")
    assert made is not None
    add_trials(store, 40, seed=1, tasks=[TASK])
    known = store.trials.sample(TASK.key, TARGET.key, 1000)
    [found] = calibrations(store, TASK, TARGET, known)
    assert found.has_learned_from_these is False
    [mixed] = calibrations(store, TASK, TARGET, [*known, line(default_schedule(TASK, TARGET), 1e-3, number=1)])
    assert mixed.has_learned_from_these is True


@pytest.mark.usefixtures("with_base")
def test_the_base_model_has_never_learned_from_them(store: Store) -> None:
    add_trials(store, 60)
    known = store.trials.sample(HELD_OUT.key, TARGET.key, 1000)
    [alone] = calibrations(store, HELD_OUT, TARGET, known)
    assert (alone.model, alone.has_learned_from_these) == ("base model", False)
    assert len(alone.points) == len(known)
    assert learn(store, "cpu") is not None
    again, newest = calibrations(store, HELD_OUT, TARGET, known)
    assert again == alone
    assert newest.model.startswith("snapshot ") and newest.has_learned_from_these
    assert newest.points != alone.points
    assert calibrations(None, HELD_OUT, TARGET, known) == [alone]


@pytest.mark.usefixtures("with_base")
def test_failures_have_no_points_and_count_as_slow() -> None:
    chosen = points(TASK, TARGET, 20)[:20]
    [exact] = calibrations(None, TASK, TARGET, [line(schedule) for schedule in chosen])
    order = sorted(exact.points, key=lambda pair: pair.predicted_s)
    by_key = {schedule.key: schedule for schedule in chosen}
    worked = [line(by_key[pair.schedule_key], pair.predicted_s) for pair in order[:10]]
    failed = [line(by_key[pair.schedule_key], None) for pair in order[10:]]
    [right] = calibrations(None, TASK, TARGET, worked + failed)
    assert len(right.points) == 10
    assert (right.pairwise, right.peak_1, right.peak_5) == (1.0, 1.0, 1.0)
    [wrong] = calibrations(None, TASK, TARGET, [*(line(one.schedule, None) for one in worked), *map(_works, failed)])
    assert wrong.pairwise is not None and wrong.pairwise < 0.5
    assert wrong.peak_1 == 0.0


def _works(failed):
    return line(failed.schedule)


@pytest.mark.usefixtures("with_base")
def test_a_few_trials_say_nothing_and_others_are_left_out() -> None:
    few = [line(schedule) for schedule in points(TASK, TARGET, 7)[:7]]
    older = [line(Schedule("forgotten", 1, (("tile", n),))) for n in range(9)]
    [found] = calibrations(None, TASK, TARGET, few + older)
    assert len(found.points) == 7
    assert (found.rank_correlation, found.pairwise, found.peak_1, found.peak_5) == (None,) * 4
    assert calibrations(None, TASK, TARGET, [])[0] == Calibration("base model", (), None, None, None, None, False)


@pytest.mark.usefixtures("with_base")
def test_times_that_are_all_alike_are_in_no_order() -> None:
    alike = [line(schedule) for schedule in points(TASK, TARGET, 12)]
    [found] = calibrations(None, TASK, TARGET, alike)
    assert (found.rank_correlation, found.pairwise, found.peak_1) == (None, None, 1.0)


def test_the_calibration_of_a_job(store: Store) -> None:
    network: Model = open_model(small_model().SerializeToString())
    fake_pool.job(network, store, fake_pool.FakePool(fake_pool.by_key), trials=120)
    for task in fake_pool.tasks(network):
        known = store.trials.sample(task.key, fake_pool.TARGET.key, 1000)
        for found in calibrations(store, task, fake_pool.TARGET, known):
            assert found.has_learned_from_these  # the job's last deed was a snapshot
            assert len(found.points) == len(known)
            assert all(pair.predicted_s > 0 for pair in found.points)

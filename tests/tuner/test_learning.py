"""What a job learns, and what it leaves to those after it; what is said of one schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.costmodel.features import version_of
from tunewright.costmodel.model import AnalyticModel, Trials
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import Store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.lookup.experience import newest_snapshot
from tunewright.tuner.lookup.predictor import predict
from tunewright.tuner.search import learning
from tunewright.tuner.search.learning import Learning
from tunewright.tuner.search.task_state import TaskState

from .test_lookup import FAR, NEAR, TARGET, TASK


@pytest.fixture
def store(store: Store) -> Store:
    store.add_target(TARGET)
    return store


def outcome(schedule: Schedule) -> Measurement:
    """The larger the sum of its values, the slower."""
    time_s = 1e-3 * (1 + sum(value for _, value in schedule.values) % 50)
    return Measurement(Status.OK, (time_s,), time_s, time_s, time_s, 0.0)


def add_trials(store: Store, task, count: int) -> None:
    store.add_task(task)
    [space, *_] = spaces(task, TARGET)
    for row in space.sample(count, np.random.default_rng(0)):
        schedule = space.schedule(row)
        store.record(Record(task.key, TARGET.key, schedule, outcome(schedule)))


def state_of(task, learned: Learning) -> TaskState:
    return TaskState.of(task, 1, TARGET, [], learned.costs, strategy="random", seed=0)


def told(state: TaskState, learned: Learning, count: int) -> None:
    for schedule in state.ask(count):
        state.tell(schedule, outcome(schedule))
        learned.note(1)


def test_it_is_fitted_after_so_many_trials_and_again_after_more(store: Store, monkeypatch) -> None:
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    fits = []
    monkeypatch.setattr(learned.costs, "fit", lambda trials: fits.append(sum(len(each.times_s) for each in trials)))
    state = state_of(TASK, learned)
    learned.refit([state])
    for _ in range(3):
        told(state, learned, learning.REFIT // 2)
        learned.refit([state])
    assert fits == [0, learning.REFIT]


def test_what_other_tasks_taught_is_known_at_once(store: Store) -> None:
    add_trials(store, NEAR, 60)  # too few for a snapshot
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    assert newest_snapshot(store, "cpu") is None
    assert not learned.costs.ready
    learned.refit([state_of(TASK, learned)])
    assert learned.costs.ready


def test_trials_of_its_own_leave_a_job_those_of_others(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(learning, "OTHERS", 40)
    add_trials(store, NEAR, 45)
    add_trials(store, TASK, 45)  # the newest
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    learned.refit([state_of(TASK, learned)])
    assert learned.costs.ready


def test_what_other_tasks_taught_is_known_where_a_snapshot_can_not_be_read(store: Store) -> None:
    add_trials(store, NEAR, 60)
    store.snapshots.keep(NewSnapshot("cpu", version_of("cpu"), b"no model", 60, store.newest_trial(), {}))
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    learned.refit([state_of(TASK, learned)])
    assert learned.costs.ready


@pytest.mark.slow
def test_a_job_finds_what_others_left_and_leaves_what_it_learned(store: Store) -> None:
    add_trials(store, NEAR, 60)
    add_trials(store, FAR, 60)
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    first = newest_snapshot(store, "cpu")
    assert first is not None and learned.costs.ready
    learned.keep(None)
    assert newest_snapshot(store, "cpu") == first  # there is nothing new
    add_trials(store, TASK, 120)
    learned.keep(None)
    second = newest_snapshot(store, "cpu")
    assert second is not None and second.trials == 240


def test_what_is_said_of_a_schedule(store: Store) -> None:
    default = default_schedule(TASK, TARGET)
    assert predict(None, TASK, TARGET, default) is None
    assert predict(store, TASK, TARGET, default) is None
    add_trials(store, TASK, 60)
    said = predict(store, TASK, TARGET, default)
    assert said is not None and said.contributions
    assert said.time_s == pytest.approx(outcome(default).median_s, rel=0.5)
    speeds = [abs(one.log2_speed) for one in said.contributions]
    assert speeds == sorted(speeds, reverse=True)
    assert predict(store, TASK, TARGET, Schedule("unheard of", 1, ())) is None
    assert said.to_json().keys() == {"expected_ms", "deviation", "judged_on", "contributions"}


def test_the_analytic_model_can_not_tell_how_wrong_it_is() -> None:
    [space, *_] = spaces(TASK, TARGET)
    assert AnalyticModel().deviation(TASK, TARGET, space, space.row(space.default)[None]).tolist() == [0.0]


def test_each_fit_is_to_all_trials_so_far(store: Store, monkeypatch) -> None:
    learned = Learning(store, TARGET, {TASK.key}, seed=0)
    state = state_of(TASK, learned)
    fits: list[list[Trials]] = []
    monkeypatch.setattr(learned.costs, "fit", fits.append)
    for count in (learning.REFIT, 2 * learning.REFIT):
        told(state, learned, count)
        learned.refit([state])
    for space, trials in zip(state.spaces, fits[-1], strict=True):
        whole = Trials.of(TASK, TARGET, space, state.measured.values())
        assert trials.space is space
        assert trials.rows.tolist() == whole.rows.tolist()
        assert trials.times_s.tolist() == whole.times_s.tolist()
        assert trials.spans_s is not None and whole.spans_s is not None
        assert trials.spans_s.tolist() == whole.spans_s.tolist()
    assert sum(len(each.times_s) for each in fits[-1]) == 3 * learning.REFIT

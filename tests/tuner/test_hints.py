"""What is imported is tried early by jobs, which believe none of its times."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tunewright.db import exchange
from tunewright.db.exchange import EntryKind
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.lookup.ladder import lookup_measured
from tunewright.tuner.lookup.result import Basis
from tunewright.tuner.models.model import Model, open_model

from .conftest import small_model
from .fake_pool import FAILED, TARGET, FakePool, by_key, job, tasks, took


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def send(
    store: Store, task: Task, schedule: Schedule, measurement: Measurement, kind: EntryKind = EntryKind.TRIAL
) -> None:
    record = Record(task.key, TARGET.key, schedule, measurement)
    line = exchange.to_json(task.to_json(), TARGET.to_json(), record, datetime.now(UTC), kind)
    store.import_([json.dumps(line)])


def points(task: Task) -> list[Schedule]:
    [space, *_] = spaces(task, TARGET)
    default = default_schedule(task, TARGET)
    return [one for one in map(space.schedule, space.points) if one != default]


def test_hints_are_tried_after_the_default_and_no_time_of_theirs_is_believed(network: Model, store: Store) -> None:
    task = tasks(network)[0]
    praised = points(task)[:9]
    for number, schedule in enumerate(praised):
        send(store, task, schedule, took(1e-6 + number * 1e-8))
    send(store, task, praised[8], took(1e-6), EntryKind.CONFIRMATION)
    assert lookup_measured(store, [task], TARGET)[task.key].basis is Basis.IMPORTED
    report = job(network, store, FakePool(by_key), trials=40)
    tried = [record.schedule for record in store.records(task.key, TARGET.key)]
    assert tried[0] == default_schedule(task, TARGET)
    assert set(tried) >= {*praised[:5], praised[8]}
    [told] = [one for one in report.tasks if one.key == task.key]
    measured = [record.measurement.median_s or 0 for record in store.records(task.key, TARGET.key)]
    assert told.best_s is not None and told.best_s >= min(measured) >= 1e-4
    found = lookup_measured(store, [task], TARGET)[task.key]
    assert (found.basis, found.expected_s) == (Basis.MEASURED, told.best_s)


def test_a_failure_from_elsewhere_hides_nothing(network: Model, store: Store) -> None:
    for task in tasks(network):
        send(store, task, default_schedule(task, TARGET), FAILED)
    report = job(network, store, FakePool(by_key))
    assert all(one.default_s == 1e-3 for one in report.tasks)


def test_what_was_taken_back_is_not_tried_nor_chosen_again(network: Model, store: Store) -> None:
    first = job(network, store, FakePool(by_key), trials=24)
    lost = {one.key: Schedule.from_json(one.schedule) for one in first.tasks}
    for key, schedule in lost.items():
        store.voids.void(key, TARGET.key, schedule.key, "wrong results")
    pool = FakePool(by_key)
    second = job(network, store, pool, trials=24, seed=1)
    for one in second.tasks:
        assert Schedule.from_json(one.schedule) != lost[one.key]
        assert all(lost[one.key] not in compared for compared in pool.comparisons)
    assert [trial.record.schedule for trial in store.jobs.trials(second.job_id)]
    for task in tasks(network):
        assert lookup_measured(store, [task], TARGET)[task.key].schedule != lost[task.key]

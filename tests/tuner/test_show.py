"""What `show` tells of the times of a schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tunewright.db import exchange
from tunewright.db.exchange import EntryKind
from tunewright.db.store import open_store
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.cli.task_details import show_task
from tunewright.tuner.lookup.predictor import predict
from tunewright.tuner.models.model import Model, open_model

from .conftest import small_model
from .fake_pool import TARGET, FakePool, by_key, is_default, job, tasks, took
from .trial_lines import points


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tuning.db'}"


def side_by_side(candidate: Candidate) -> Measurement:
    """Twice as long as by trial, on a busy machine."""
    time_s = by_key(candidate).median_s or 0.0
    return replace(took(time_s if is_default(candidate) else 2 * time_s), provenance={NOISE: "others"})


def test_of_a_confirmed_schedule(network: Model, url: str) -> None:
    with open_store(url) as store:
        report = job(network, store, FakePool(by_key, side_by_side), trials=24)
    task = report.tasks[0]
    data = show_task(task.key, "best", (), None, url, {}, 1)["measured"]
    assert (data["confirmed"], data["noise"], data["imported"]) == (True, "others", False)
    assert data["median_ms"] == pytest.approx(1e3 * (task.best_s or 0))
    assert data["trial_ms"] == pytest.approx(data["median_ms"] / 2)  # what models learn from


def test_of_a_schedule_that_was_only_tried(network: Model, url: str) -> None:
    with open_store(url) as store:
        report = job(network, store, FakePool(by_key, side_by_side), trials=24)
    data = show_task(report.tasks[0].key, "default", (), None, url, {}, 1)["measured"]
    assert (data["confirmed"], data["noise"], data["trial_ms"]) == (False, "", data["median_ms"])


@pytest.mark.parametrize("kind", [EntryKind.TRIAL, EntryKind.CONFIRMATION])
def test_of_an_imported_schedule(network: Model, url: str, kind: EntryKind) -> None:
    task = tasks(network)[0]
    record = Record(task.key, TARGET.key, default_schedule(task, TARGET), took(1e-3))
    line = exchange.to_json(task.to_json(), TARGET.to_json(), record, datetime.now(UTC), kind)
    with open_store(url) as store:
        store.import_([json.dumps(line)])
    data = show_task(task.key, "best", (), None, url, {}, 1)["measured"]
    assert (data["confirmed"], data["imported"], data["trial_ms"]) == (False, True, None)


def test_imported_trials_teach_no_prediction_of_their_task(network: Model, url: str) -> None:
    """Else they would be beside what they are compared with; nor are they taken for own ones where others are own."""
    task = tasks(network)[0]
    default = default_schedule(task, TARGET)
    others = [schedule for schedule in points(task, TARGET, 40) if schedule != default]
    with open_store(url) as store:
        before = predict(store, task, TARGET, default)
        for schedule in (default, *others):
            record = Record(task.key, TARGET.key, schedule, took(7e-3))
            line = exchange.to_json(task.to_json(), TARGET.to_json(), record, datetime.now(UTC))
            store.import_([json.dumps(line)])
        assert predict(store, task, TARGET, default) == before
        for number, schedule in enumerate(others):
            store.record(Record(task.key, TARGET.key, schedule, took(1e-3 + 1e-5 * number)))
        assert predict(store, task, TARGET, default) != before
    data = show_task(task.key, "default", (), None, url, {}, 1)["measured"]
    assert (data["confirmed"], data["imported"], data["trial_ms"]) == (False, True, None)

"""What `show` tells of the times of a schedule."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from tunewright.codegen.host import machine
from tunewright.costmodel.model import AnalyticModel
from tunewright.db import exchange
from tunewright.db.exchange import EntryKind
from tunewright.db.store import open_store
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.cli import tune_report
from tunewright.tuner.cli.task_details import _measurement_text, show_task
from tunewright.tuner.known_times import KnownDefault
from tunewright.tuner.lookup.ladder import lookup_measured
from tunewright.tuner.lookup.predictor import predict
from tunewright.tuner.lookup.result import LookupResult, Match
from tunewright.tuner.lookup.source import PreparedModel
from tunewright.tuner.lookup.verdict import default_results, model_verdict
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.search.context import recall
from tunewright.tuner.search.report import JobOutcome as ReportOutcome
from tunewright.tuner.search.task_state import TaskState

from .conftest import small_model
from .fake_pool import TARGET, FakePool, by_key, is_default, job, tasks, took
from .timings import takes
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
        task = report.tasks[0]
        *_, slow, _ = store.trials.fastest(task.key, TARGET.key, 24)
    data = show_task(task.key, json.dumps(slow.schedule.to_json()), (), None, url, {}, 1)["measured"]
    assert (data["confirmed"], data["noise"], data["trial_ms"]) == (False, "", data["median_ms"])


def slower_side_by_side(candidate: Candidate) -> Measurement:
    """Other times than by trial, on a busy machine."""
    measured = by_key(candidate)
    return replace(took(1.25 * (measured.median_s or 0.0)), provenance=machine() | {NOISE: "others"})


def test_a_default_takes_the_same_time_wherever_it_is_told(network: Model, url: str) -> None:
    """By the comparison that it lost, also when its winner is taken back since: the job, the lookup, this."""
    with open_store(url) as store:
        pool = FakePool(by_key, slower_side_by_side)
        report = job(network, store, pool, trials=24, timing=takes(default=3e-3, tuned=3.3e-3))
        found = lookup_measured(store, tasks(network), TARGET)
        entry = report.tasks[0]
        best = found[entry.key]
        assert report.outcome is ReportOutcome.DEFAULTS_KEPT and best.schedule.key != entry.default_key
        for voided in (None, best.schedule):
            if voided is not None:
                store.voids.void(entry.key, TARGET.key, voided.key, "wrong on odd sizes")
            results = lookup_measured(store, tasks(network), TARGET)
            kept = default_results(results, TARGET, model_verdict(store, results, TARGET.key).kept or {})
            assert kept is not None
            told = kept[entry.key].to_json()
            shown = show_task(entry.key, "default", (), None, url, {}, 1)
            assert shown["expected_ms"] == pytest.approx(1e3 * (kept[entry.key].expected_s or 0.0))
            named = show_task(entry.key, json.dumps(shown["schedule"]), (), None, url, {}, 1)
            assert (named["match"], named["expected_ms"]) == ("given", shown["expected_ms"])
            data = shown["measured"]
            assert (told["expected_ms"], told["confirmed"], told["provenance"]) == (
                pytest.approx(1e3 * (entry.default_s or 0.0)),
                True,
                {NOISE: entry.noise},
            )
            assert (data["median_ms"], data["confirmed"], data["noise"]) == (told["expected_ms"], True, entry.noise)
            assert data["trial_ms"] != data["median_ms"]
            known = KnownDefault.of_task(store, entry.key, TARGET, entry.default_key)
            assert known is not None and known.time_s == entry.default_s and known.is_confirmed  # as pages have it
        store.voids.void(entry.key, TARGET.key, entry.default_key, "wrong on odd sizes")
    gone = show_task(entry.key, "default", (), None, url, {}, 1)
    assert (gone["measured"]["status"], gone["expected_ms"]) == ("voided", None)


def test_a_default_has_the_time_of_the_newest_comparison_also_where_an_older_one_stands(
    network: Model, url: str
) -> None:
    """Another winner, which is taken back, does not bring its older time back."""
    task = tasks(network)[0]
    default = default_schedule(task, TARGET)
    [older, newer] = [one for one in points(task, TARGET, 40) if one != default][:2]
    with open_store(url) as store:
        store.add_target(TARGET)
        store.add_task(task)
        records = [Record(task.key, TARGET.key, schedule, took(4e-3)) for schedule in (default, older, newer)]
        for record in records:
            store.record(record)
        for schedule, time_s, default_s in ((older, 1e-3, 3e-3), (newer, 5e-4, 2e-3)):
            measured = replace(took(time_s), incumbent_s=default_s, provenance=machine())
            store.confirm(Record(task.key, TARGET.key, schedule, measured))
        store.voids.void(task.key, TARGET.key, newer.key, "wrong on odd sizes")
        known = KnownDefault.of_task(store, task.key, TARGET, default.key)
        assert known is not None and (known.time_s, known.is_confirmed) == (2e-3, True)
        state = TaskState.of(task, 1, TARGET, records, AnalyticModel(), strategy="evolutionary", seed=0)
        recall(store, TARGET, [state])
        assert (state.times.default_s, state.times.best_s, state.times.is_confirmed) == (2e-3, 1e-3, True)
    data = show_task(task.key, "default", (), None, url, {}, 1)["measured"]
    assert (data["median_ms"], data["confirmed"]) == (2.0, True)


def test_the_tasks_have_the_times_of_the_defaults_that_are_kept(network: Model) -> None:
    """Where a default is also the best of its trials, that is one figure."""
    task = tasks(network)[0]
    default = default_schedule(task, TARGET)
    tried = LookupResult(task, Match.EXACT, default, took(2e-3))
    entry = {"key": task.key, "chosen": 1, "default_ms": 1.78, "default_interval_ms": [1.7, 1.9]}
    told = {task.key: entry | {"default_schedule": default.key, "noise": "others"}}
    kept = default_results({task.key: tried}, TARGET, told)
    assert kept is not None
    assert kept[task.key].expected_s == pytest.approx(1.78e-3) and kept[task.key].confirmed
    prepared = PreparedModel(network, TARGET, {}, kept, other={task.key: tried})
    assert prepared.best == kept
    newer = replace(tried, confirmed=True)  # by a job of another model
    again = default_results({task.key: newer}, TARGET, told)
    assert again is not None and again[task.key].measurement == newer.measurement
    other = replace(newer, schedule=replace(default, version=99))
    assert PreparedModel(network, TARGET, {}, kept, other={task.key: other}).best == {task.key: other}


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


def test_what_is_taken_back_while_a_job_goes_on_is_no_failure(network: Model, url: str) -> None:
    seen: list[Candidate] = []

    def measure(candidate: Candidate) -> Measurement:
        seen.append(candidate)
        if len(seen) == 20:
            first = seen[0]
            store.voids.void(first.task.key, TARGET.key, first.schedule.key, "wrong on odd days")
        return by_key(candidate)

    with open_store(url) as store:
        report = job(network, store, FakePool(measure), trials=24)
    assert report.voided == 1 and "voided" not in report.failed
    voided = show_task(seen[0].task.key, json.dumps(seen[0].schedule.to_json()), (), None, url, {}, 1)["measured"]
    assert _measurement_text(voided) == "measured, and taken back"
    output = io.StringIO()
    tune_report.render(Console(file=output, width=160), report.to_json())
    assert "1 trial was taken back" in output.getvalue() and "failed" not in output.getvalue()

"""The page of the fleet: who is at work, what waits, what is not covered."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import escape

from tunewright.codegen.target import Target
from tunewright.db import exchange
from tunewright.db.fleet import TunerDevice
from tunewright.db.job import JobSpec, JobState, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.search_space.measurement import Record

from .conftest import TARGET, make_target, make_task, measured, points, store_best
from .page import whole

MODEL = "ab" * 32


def submit(store: Store, *extents: int, target: Target = TARGET, label: str = "net.onnx") -> int:
    """Queue a job of tasks of these extents; its id."""
    store.add_target(target)
    for extent in extents:
        store.add_task(make_task(extent))
    tasks = tuple(SpecTask(make_task(extent).key, 1) for extent in extents)
    return store.jobs.submit(JobSpec(MODEL, target.key, tasks, {"label": label}), label, SearchBudget(10)).job.id


@pytest.fixture
def fleet(client):
    def look():
        answer = client.get("/v1/pages/fleet")
        assert answer.status_code == 200, answer.text
        return answer.json(), whole(client.get("/fleet")).source

    return look


def test_nobody_is_there(serve):
    with serve() as one:
        client = one.client()
        view, text = client.get("/v1/pages/fleet").json(), client.get("/fleet").text
    assert view["tuners"] == view["queues"] == view["coverage"] == view["gaps"] == []
    assert view["busy_share"] is None
    for command in ("tunewright work", "tunewright submit", "tunewright tune"):
        assert command in text


def test_who_is_at_work_and_for_how_much_of_the_time(one, fleet):
    job = submit(one.store, 8, label="<b>net</b>")
    lease = one.store.jobs.lease([TARGET.key], "host-1:4711")
    one.store.fleet.report("t1", [TunerDevice("host-1/0", TARGET.key)], job)
    view, text = fleet()
    (tuner,) = view["tuners"]
    assert (tuner["name"], tuner["job"], tuner["label"]) == ("host-1:4711", job, "<b>net</b>")
    assert tuner["devices"][0]["target"] == {"key": TARGET.key, "name": str(TARGET)}
    assert tuner["busy_since"] is not None and 0 < tuner["busy_share"] <= 1
    assert view["busy"] == 1 and view["busy_share"] == tuner["busy_share"]
    assert f'href="/jobs/{job}"' in text and str(escape("<b>net</b>")) in text and "<b>net" not in text
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={})
    one.store.fleet.report("t1", [TunerDevice("host-1/0", TARGET.key)])
    (idle,) = fleet()[0]["tuners"]
    assert idle["job"] is None and idle["busy_since"] is None and 0 < idle["busy_share"] < 1


def test_the_last_hour_counts(one, fleet):
    start = datetime.now(UTC) - timedelta(hours=3)
    clock = [start]
    one.store.database.clock = lambda: clock[0]
    one.store.fleet.enlist("t1", "host-1", 4711, "0.1.0", "local")
    job = submit(one.store, 8)
    lease = one.store.jobs.lease([TARGET.key], "host-1:4711", lease_s=4 * 3600)
    clock[0] = start + timedelta(hours=2, minutes=30)
    one.store.jobs.give_back(lease)
    clock[0] = start + timedelta(hours=3)
    one.store.fleet.report("t1", [])
    view, text = fleet()
    (tuner,) = view["tuners"]
    assert tuner["watched_s"] == 3600
    assert tuner["busy_share"] == pytest.approx(0.5)
    assert "50.0%" in text and "the last hour" in text
    assert job and view["queues"][0]["queued"] == 1


@pytest.mark.parametrize(
    ("begun_s", "expected"),
    [([133], "2:13 since it began"), ([4000], "the last hour"), ([4000, 133], "the last hour, or since each began")],
)
def test_the_utilisation_of_all_is_of_the_time_that_they_were_there(serve, begun_s, expected):
    now = datetime.now(UTC)
    clock = [now]
    with serve() as one:
        one.store.database.clock = lambda: clock[0]
        for number, seconds in enumerate(begun_s):
            clock[0] = now - timedelta(seconds=seconds)
            one.store.fleet.enlist(f"t{number}", "host-2", number, "0.1.0", "local")
        clock[0] = now
        for number in range(len(begun_s)):
            one.store.fleet.report(f"t{number}", [])
        assert f"with a job, of {expected}<" in one.client().get("/fleet").text


def test_commands_that_tune_by_themselves(one, fleet):
    job = submit(one.store, 8)
    one.store.jobs.lease([TARGET.key], "laptop:77")
    view, text = fleet()
    assert [(holder["name"], holder["job"]) for holder in view["holders"]] == [("laptop:77", job)]
    assert "laptop:77" in text


def test_quarantines(one, fleet):
    until = datetime.now(UTC) + timedelta(hours=1)
    over = datetime.now(UTC) - timedelta(hours=1)
    sick = TunerDevice("host-1/1", TARGET.key, until, "<i>too hot</i>")
    well = TunerDevice("host-1/2", TARGET.key, over, "was too hot")
    one.store.fleet.report("t1", [TunerDevice("host-1/0", TARGET.key), sick, well])
    view, text = fleet()
    assert view["devices"] == 3
    assert [(device["name"], device["reason"]) for device in view["quarantined"]] == [("host-1/1", "<i>too hot</i>")]
    assert str(escape("<i>too hot</i>")) in text and "was too hot" not in text
    assert f"{until:%Y-%m-%d %H:%M}" in text


def test_the_queue_of_each_target(one, fleet):
    small, foreign = make_target(2), Target("cpu", "aarch64", "apple-m1", "", 128, 32, 4, 1, 1, 1)
    submit(one.store, 8)
    submit(one.store, 9)
    submit(one.store, 8, target=small)
    lost = submit(one.store, 8, target=foreign)
    one.store.jobs.lease([foreign.key], "gone:1", lease_s=0.0)
    view, text = fleet()
    by_target = {line["target"]["key"]: line for line in view["queues"]}
    assert (by_target[TARGET.key]["queued"], by_target[TARGET.key]["tuners"]) == (2, 1)
    assert by_target[small.key]["tuners"] == 1  # a machine with more cores will do
    assert (by_target[foreign.key]["lost"], by_target[foreign.key]["tuners"]) == (1, 0)
    assert lost and "nobody" in text and "lost its process" in text


def test_what_is_not_covered(one, fleet):
    store_best(one.store, make_task(8))
    job = submit(one.store, 8, 9)
    view, text = fleet()
    assert [(gap["task"], gap["job"]) for gap in view["gaps"]] == [(make_task(9).key, job)]
    counts = {"tasks": 1, "imported": 0, "lacking": 1}
    assert view["coverage"] == [{"target": {"key": TARGET.key, "name": str(TARGET)}} | counts]
    assert make_task(9).key in text


def test_texts_of_strangers_are_cut(one, fleet):
    one.store.fleet.enlist("t2", "h" * 5000, 1, "v" * 5000, "local")
    one.store.fleet.report(
        "t2", [TunerDevice("d" * 5000, "ab" * 32, datetime.now(UTC) + timedelta(hours=1), "r" * 5000)]
    )
    _, text = fleet()
    assert len(text) < 30_000


def test_a_target_that_was_imported_is_not_offered(one, client, fleet):
    foreign = make_target(7)
    record = Record(make_task(8).key, foreign.key, points(make_task(8), foreign)[0], measured(1e-3))
    entry = exchange.to_json(make_task(8).to_json(), foreign.to_json(), record, datetime(2026, 1, 1, tzinfo=UTC))
    one.store.import_([json.dumps(entry)])
    view, _ = fleet()
    assert view["coverage"] == []
    offered = client.get("/v1/pages/jobs").json()["targets"]
    assert foreign.key not in [target["key"] for target in offered]
    assert f'<option value="{foreign.key}"' not in client.get("/").text

"""Lookups over HTTP: every rung, records with ETags, snapshots, jobs for misses."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tunewright.api.http.routes import lookup_cache, lookup_service, snapshots
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.best import Marks
from tunewright.db.job import JobState
from tunewright.search_space.measurement import Record
from tunewright.search_space.sketches import default_schedule

from ..waiting import wait_for
from .conftest import CRASHED, TARGET, exact_answer, make_task, measured, points, store_best


def ask(client, *tasks, target=TARGET, define=(), **query):
    body = {"target": target if isinstance(target, str) else target.to_json(), "tasks": [task.key for task in tasks]}
    if define:
        body["definitions"] = {task.key: task.to_json() for task in define}
    return client.post("/v1/lookups", json=body, params=query)


def items(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch):
    monkeypatch.setattr(lookup_cache, "LOOK_S", 0.0)


def test_exact(one, client):
    task = make_task(64)
    store_best(one.store, task, confirm=True)
    for target in (TARGET, TARGET.key):
        answer = ask(client, task, target=target)
        assert answer.json()["target"] == TARGET.key
        assert items(answer) == [exact_answer(task, confirmed=True, interval_ms=pytest.approx([0.9, 1.1]))]


def test_an_interval_without_width_is_none(one, client):
    task = make_task(64)
    narrow = replace(measured(), low_s=1e-3, high_s=1e-3)  # as older versions stored them
    one.store.add_task(task)
    one.store.add_target(TARGET)
    one.store.record(Record(task.key, TARGET.key, points(task)[0], narrow))
    assert items(ask(client, task)) == [exact_answer(task, interval_ms=None)]
    assert one.store.catalog.best([task.key], [TARGET.key])[task.key, TARGET.key].measurement.low_s is None


def test_a_change_is_seen(one, client):
    task = make_task(64)
    first, second, *_ = points(task)
    store_best(one.store, task, schedule=first, median_s=2e-3)
    assert items(ask(client, task))[0]["schedule"] == first.to_json()
    store_best(one.store, task, schedule=second, median_s=1e-3)
    assert items(ask(client, task))[0]["schedule"] == second.to_json()
    one.store.confirm(Record(task.key, TARGET.key, first, CRASHED))
    assert items(ask(client, task))[0]["match"] == "default"


def test_what_is_remembered_is_not_read_again(one, client, monkeypatch):
    tasks = [make_task(extent) for extent in (64, 65, 66)]
    for task in tasks:
        store_best(one.store, task)
    first = ask(client, *tasks)
    assert {item["match"] for item in items(first)} == {"exact"}
    monkeypatch.setattr(type(one.store.catalog), "best", None)
    assert ask(client, *tasks).content == first.content


def test_the_order_is_that_of_the_keys(one, client):
    tasks = [make_task(extent) for extent in range(10, 40)]
    for task in tasks[::2]:
        store_best(one.store, task)
    found = items(ask(client, *tasks, tasks[0]))
    assert [item["key"] for item in found] == [task.key for task in [*tasks, tasks[0]]]
    assert [item["match"] for item in found] == ["exact", "unknown"] * 15 + ["exact"]


def test_unknown_tasks_are_answered_when_they_are_defined(one, client):
    task = make_task(64)
    assert items(ask(client, task)) == [{"key": task.key, "match": "unknown"}]
    [item] = items(ask(client, task, define=[task]))
    assert (item["match"], item["basis"]) == ("default", "none")
    assert item["schedule"] == default_schedule(task, TARGET).to_json()
    assert one.store.task_keys() == []  # asking stores nothing


def test_sibling(one, client):
    task = make_task(64)
    near, far = replace(TARGET, threads=2), replace(TARGET, cpu="other", threads=4)
    store_best(one.store, task, far, default_schedule(task, TARGET), median_s=1e-4)
    record = store_best(one.store, task, near, points(task)[0], median_s=2e-3)
    store_best(one.store, task, replace(TARGET, vector_bits=256), points(task)[0])
    [item] = items(ask(client, task))
    assert (item["match"], item["basis"], item["confirmed"]) == ("sibling", "sibling", False)
    assert item["schedule"] == record.schedule.to_json()
    assert item["expected_ms"] == 2.0
    assert item["source"] == {"task": task.key, "target": near.key, "target_name": str(near)}


def test_nearest(one, client):
    task, near, far = make_task(64), make_task(128), make_task(4096)
    store_best(one.store, far, schedule=points(far)[0], median_s=5e-3)
    record = store_best(one.store, near, schedule=points(task)[0], median_s=2e-3)
    [item] = items(ask(client, task, define=[task]))
    assert (item["match"], item["basis"]) == ("nearest", "scaled")
    assert item["schedule"] == record.schedule.to_json()
    assert item["expected_ms"] == pytest.approx(1.0) and item["interval_ms"] is None
    assert item["source"] == {"task": near.key, "target": TARGET.key, "target_name": str(TARGET)}


def test_what_fails_there_is_not_offered(one, client):
    task = make_task(64)
    store_best(one.store, task, replace(TARGET, threads=2), points(task)[0])
    one.store.add_target(TARGET)
    one.store.record(Record(task.key, TARGET.key, points(task)[0], CRASHED))
    assert items(ask(client, task))[0]["match"] == "default"
    one.store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), CRASHED))
    [item] = items(ask(client, task))
    assert item["match"] == "untried"
    assert item["schedule"] not in (points(task)[0].to_json(), default_schedule(task, TARGET).to_json())


def test_a_schedule_of_another_version_is_not_exact(one, client):
    task = make_task(64)
    old = replace(points(task)[0], version=0)
    store_best(one.store, task, schedule=old, median_s=1e-6)
    assert items(ask(client, task))[0]["match"] == "default"
    record = store_best(one.store, task, schedule=points(task)[1], median_s=1e-3)
    [item] = items(ask(client, task))
    assert (item["match"], item["schedule"]) == ("exact", record.schedule.to_json())


def test_an_unknown_target_has_to_be_sent(one, client):
    task = make_task(64)
    store_best(one.store, task)
    answer = ask(client, task, target="ab" * 32)
    assert answer.status_code == 404 and answer.json()["type"] == "/problems/no-such-target"
    assert items(ask(client, task, target=replace(TARGET, threads=64)))[0]["match"] == "sibling"


def test_when_there_is_no_time_the_default_is_left_to_the_client(one, client, monkeypatch):
    monkeypatch.setattr(lookup_service, "LIMIT_S", -1.0)
    known, new = make_task(64), make_task(65)
    store_best(one.store, known)
    first, second = items(ask(client, known, new, define=[new]))
    assert first["match"] == "exact"
    assert (second["match"], second["schedule"]) == ("default", None)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"tasks": []}, "#/tasks"),
        ({"tasks": ["00" * 32] * 1025}, "#/tasks"),
        ({"tasks": ["xyz"]}, "#/tasks/0"),
        ({"tasks": ["AB" * 32]}, "#/tasks/0"),
        ({"target": "xyz"}, "#/target"),
        ({"target": {"kind": "cpu"}}, "#/target"),
        ({"target": TARGET.to_json() | {"threads": -1}}, "#/target"),
        ({"target": TARGET.to_json() | {"kind": "tpu"}}, "#/target"),
        ({"tasks": [make_task(64).to_json() | {"decisiv": True}]}, "#/tasks/0"),
        ({"tasks": [make_task(64).to_json() | {"decisive": "false"}]}, "#/tasks/0"),
        ({"more": 1}, "#/more"),
        ({"definitions": {"x": {}}}, "#/definitions"),
    ],
)
def test_faults_are_named(change, where, client):
    answer = client.post("/v1/lookups", json={"target": TARGET.key, "tasks": ["00" * 32]} | change)
    assert answer.status_code == 422, answer.text
    assert any(error["pointer"].startswith(where) for error in answer.json()["errors"]), answer.text


def hostile():
    task = make_task(64)
    yield "another task", task.key, make_task(65).to_json()
    yield "nothing", task.key, {}
    yield "no stages", task.key, task.to_json() | {"stages": None}
    yield "text", task.key, task.to_json() | {"inputs": "<script>alert(1)</script>"}
    nested: Any = 1
    for _ in range(150):
        nested = {"op": nested}
    yield "nested", task.key, task.to_json() | {"stages": [task.to_json()["stages"][0] | {"body": nested}]}
    large = make_task(1 << 50)
    yield "large", large.key, large.to_json()
    many = replace(task, inputs=task.inputs * 200)
    yield "many", many.key, many.to_json()


@pytest.mark.parametrize(("key", "data"), [case[1:] for case in hostile()], ids=[case[0] for case in hostile()])
def test_definitions_are_checked(key, data, client):
    answer = client.post("/v1/lookups", json={"target": TARGET.to_json(), "tasks": [key], "definitions": {key: data}})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == f"#/definitions/{key}"


def test_tasks_may_be_sent_under_any_names(one, client):
    """Both by the key that they have under the service's names: what others wrote is found where we measured it."""
    known, fresh = make_task(64).renamed(), make_task(65).renamed()
    store_best(one.store, known)
    texts = (json.dumps(task.to_json()) for task in (known, fresh))
    written = [json.loads(re.sub(r'"t(\d)', r'"some\1', text)) for text in texts]
    answer = client.post("/v1/lookups", json={"target": TARGET.to_json(), "tasks": [*written, known.key, written[0]]})
    shown = items(answer)
    assert [item["key"] for item in shown] == [known.key, fresh.key, known.key, known.key]
    assert [item["match"] for item in shown] == ["exact", "nearest", "exact", "exact"]
    new = {"some0": "t0", "some1": "t1"}
    assert answer.json()["names"] == [new, new, None, new]
    assert "names" not in ask(client, known).json()
    assert shown[0] == exact_answer(known, interval_ms=pytest.approx([0.9, 1.1]))


@pytest.mark.parametrize("depth", [300, 450, *range(900, 1000, 13)])
def test_tasks_that_are_nested_deeply_are_refused_at_any_depth(depth, client):
    data = make_task(64).to_json()
    [stage] = data["stages"]
    index = ["HERE", *stage["index"][1:]]
    body = {"target": TARGET.to_json(), "tasks": [data | {"stages": [stage | {"index": index}]}]}
    nested = '["op", "int64", "neg", ' * depth + json.dumps(stage["index"][0]) + "]" * depth
    text = json.dumps(body).replace('"HERE"', nested)
    answer = client.post("/v1/lookups", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and "nested too deeply" in answer.text


def test_the_deepest_task_is_answered(client):
    data = make_task(64).to_json()
    [stage] = data["stages"]
    nested = '["op", "float32", "neg", ' * 290 + json.dumps(stage["body"]) + "]" * 290
    body = {"target": TARGET.to_json(), "tasks": [data | {"stages": [stage | {"body": "HERE"}]}]}
    text = json.dumps(body).replace('"HERE"', nested)
    answer = client.post("/v1/lookups", content=text, headers={"Content-Type": "application/json"})
    assert [item["match"] for item in items(answer)] == ["default"]


@pytest.mark.parametrize("data", [case[2] for case in hostile()][1:], ids=[case[0] for case in hostile()][1:])
def test_tasks_that_are_sent_are_checked(data, client):
    answer = client.post("/v1/lookups", json={"target": TARGET.to_json(), "tasks": ["00" * 32, data]})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == "#/tasks/1"


class TestBackground:
    def test_misses_are_tuned(self, one, client):
        confirmed, measured_only, new, strange = (make_task(extent) for extent in (64, 65, 66, 67))
        store_best(one.store, confirmed, confirm=True)
        store_best(one.store, measured_only)
        answer = ask(client, confirmed, measured_only, new, strange, define=[new], tune="background")
        assert [item["match"] for item in items(answer)] == ["exact", "exact", "nearest", "unknown"]
        job = one.store.jobs.get(answer.json()["job"])
        assert (job.state, job.label, job.priority, job.spec.model_sha256) == (JobState.QUEUED, "lookup", -50, "")
        assert {task.task_key for task in job.spec.tasks} == {measured_only.key, new.key}
        assert job.budget.trials == 2 * lookup_service.TRIALS_A_TASK
        assert one.store.task(new.key) == new
        again = ask(client, confirmed, new, measured_only, define=[new], tune="background")
        assert again.json()["job"] == job.id
        shown = client.get(f"/v1/jobs/{job.id}")
        assert shown.status_code == 200 and shown.json()["model"] == ""

    def test_no_misses_no_job(self, one, client):
        task = make_task(64)
        store_best(one.store, task, confirm=True)
        assert ask(client, task, tune="background").json()["job"] is None
        assert one.store.jobs.list() == []

    @pytest.mark.usefixtures("within_a_minute")
    def test_counts_as_a_change(self, serve):
        task = make_task(64)
        with serve(Options(changes_per_minute=1)) as one:
            client = one.client()
            assert ask(client, task, define=[task], tune="background").status_code == 200
            assert ask(client, task, define=[task], tune="background").status_code == 429
            assert ask(client, task, define=[task]).status_code == 200

    def test_needs_a_scope(self, one):
        reader = one.client(one.key(KeyScope.RECORDS_READ))
        task = make_task(64)
        assert items(ask(reader, task))
        answer = ask(reader, task, define=[task], tune="background")
        assert answer.status_code == 403 and answer.json()["type"] == "/problems/missing-scope"
        assert ask(reader, task, tune="now").status_code == 422
        stranger = one.client(one.key(KeyScope.JOBS_READ))
        assert ask(stranger, task).status_code == 403
        assert ask(one.client(""), task).status_code == 401


class TestRecords:
    def test_etags(self, one, client):
        task = make_task(64)
        path = f"/v1/records/{task.key}"
        assert client.get(path, params={"target": TARGET.key}).status_code == 404
        store_best(one.store, task, schedule=points(task)[0], median_s=2e-3)
        first = client.get(path, params={"target": TARGET.key})
        assert first.json() == items(ask(client, task))[0]
        tag = first.headers["etag"]
        assert tag.startswith('"') and "max-age" in first.headers["cache-control"]
        for header in (tag, f'"x", {tag}', f"W/{tag}", "*"):
            again = client.get(path, params={"target": TARGET.key}, headers={"If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        store_best(one.store, task, schedule=points(task)[1], median_s=1e-3)
        fresh = client.get(path, params={"target": TARGET.key}, headers={"If-None-Match": tag})
        assert fresh.status_code == 200 and fresh.headers["etag"] != tag

    def test_faults(self, client):
        assert client.get("/v1/records/xyz", params={"target": TARGET.key}).status_code == 422
        assert client.get(f"/v1/records/{'00' * 32}").status_code == 422


class TestSnapshots:
    def test_all_records_of_a_target(self, one, client, monkeypatch):
        monkeypatch.setattr(snapshots, "PAGE", 3)
        tasks = [make_task(extent) for extent in range(10, 20)]
        for task in tasks:
            store_best(one.store, task, confirm=True)
        store_best(one.store, make_task(99), replace(TARGET, threads=2))
        answer = client.get(f"/v1/snapshots/{TARGET.key}", headers={"Accept-Encoding": "identity"})
        assert answer.headers["content-type"].startswith("application/jsonl")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert sorted(lines, key=lambda line: line["key"]) == lines
        assert {line["key"]: line for line in lines} == {item["key"]: item for item in items(ask(client, *tasks))}

    def test_packed_and_tagged(self, one, client):
        for extent in range(10, 20):
            store_best(one.store, make_task(extent))
        path = f"/v1/snapshots/{TARGET.key}"
        plain = client.get(path, headers={"Accept-Encoding": "gzip;q=0"})
        with client.stream("GET", path, headers={"Accept-Encoding": "br, gzip"}) as packed:
            assert packed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(b"".join(packed.iter_raw())) == plain.content
        tag = plain.headers["etag"]
        assert tag != packed.headers["etag"]
        known = {"If-None-Match": tag, "Accept-Encoding": "identity"}
        assert client.get(path, headers=known).status_code == 304
        store_best(one.store, make_task(50))
        assert client.get(path, headers=known).status_code == 200

    def test_unknown(self, client):
        assert client.get(f"/v1/snapshots/{'00' * 32}").status_code == 404
        assert client.get("/v1/snapshots/x").status_code == 422
        assert client.get(f"/v1/snapshots/{TARGET.key}").text == ""  # it is at work, and nothing is measured yet


class Growing:
    """A database in which numbers are given out before they can be seen."""

    def __init__(self):
        self.now_s = 100.0
        self.rows = []  # (id, pair), in the order in which they can be seen

    def marks(self):
        return Marks(max((number for number, _ in self.rows), default=0), 0, 0, 0)

    def changes(self, since):
        return {pair for number, pair in self.rows if number > since.trial_id}


def test_a_transaction_that_took_longer_is_noticed_too(monkeypatch):
    monkeypatch.setattr(lookup_cache, "LOOK_S", 0.5)
    known: Any = Growing()
    kept = lookup_cache.LookupCache(known, clock=lambda: known.now_s)
    item = lookup_cache.unknown_item("t")

    def look():
        known.now_s += 0.5
        kept.look()

    look()
    kept._items["d", "t"] = item
    known.rows.append((7, ("other", "d")))
    look()
    assert kept.recall("d", ["t"]) == {"t": item}
    known.rows.append((6, ("t", "d")))  # began before, and could not be seen until now
    look()
    look()
    assert kept.recall("d", ["t"]) == {}
    kept._items["d", "t"] = item
    for _ in range(40):  # it is not read anew for ever
        look()
    kept._items["d", "t"] = item
    look()
    assert kept.recall("d", ["t"]) == {"t": item}


def test_the_database_is_looked_at_now_and_then(one, client, monkeypatch):
    monkeypatch.setattr(lookup_cache, "LOOK_S", 0.4)
    task = make_task(64)
    store_best(one.store, task, schedule=points(task)[0], median_s=2e-3)
    ask(client, task)
    store_best(one.store, task, schedule=points(task)[1], median_s=1e-3)
    wait_for(lambda: items(ask(client, task))[0]["schedule"] == points(task)[1].to_json())

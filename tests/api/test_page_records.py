"""The page of records: search, the ladder tried by hand, and the export that `POST /v1/records` takes."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import urlsplit

import anyio
import pytest
from markupsafe import escape

from tunewright.api.dashboard import records as views
from tunewright.api.http.routes import lookup_service
from tunewright.api.http.routes import records as record_routes
from tunewright.api.http.schemas.records import HOURS, Age
from tunewright.api.http.service import EXPORTS
from tunewright.db.access import KeyScope
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.lookup.ladder import Ladder
from tunewright.tuner.lookup.result import Pick

from ..waiting import wait_for
from .conftest import CRASHED, TARGET, make_target, make_task, points, problem, store_best
from .page import Page, whole


@pytest.fixture
def find(client):
    def found(**query):
        answer = client.get("/v1/pages/records", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json(), whole(client.get("/records", params=query)).source.replace("\N{NO-BREAK SPACE}", " ")

    return found


def extents(view):
    """The sizes of the tasks of the records, in order."""
    return [int(record["shape"].partition(" ")[0]) for record in view["records"]]


def test_nothing(find):
    view, text = find()
    assert (view["records"], view["known"], view["tried"]) == ([], 0, None)
    assert "tunewright import" in text
    assert "No record meets" in find(op="Conv")[1]


def test_a_search(one, find):
    other = make_target(8)
    for extent, target in ((64, TARGET), (65, other), (128, TARGET)):
        store_best(one.store, make_task(extent), target, confirm=extent == 64)
    view, text = find()
    assert extents(view) == [128, 65, 64]
    assert view["known"] == 3
    assert view["records"][2] | {"created_at": None} == {
        "task": make_task(64).key,
        "op": "Relu",
        "shape": "64 -> 64",
        "target": {"key": TARGET.key, "name": str(TARGET)},
        "sketch": points(make_task(64))[0].sketch,
        "median_ms": 1.0,
        "interval_ms": pytest.approx([0.9, 1.1]),
        "is_usable": True,
        "is_confirmed": True,
        "is_imported": False,
        "noise": "times of one and the same schedule lie 20% apart",
        "created_at": None,
    }
    assert f"/tasks/{make_task(64).key}?target={TARGET.key}" in text
    assert Page(text).words.count("~1.00 ms°") == 2  # a trial's times may lie apart, too
    assert text.count('64 <span class="nowrap">-&gt;</span> 64<') == 1  # no line breaks the arrow
    assert extents(find(op="rEl")[0]) == [128, 65, 64]
    assert extents(find(shape="6")[0]) == [65, 64]
    assert extents(find(op="%")[0]) == extents(find(shape="_")[0]) == []
    assert extents(find(target=other.key)[0]) == [65]
    assert extents(find(target=TARGET.key, shape="12", op="relu", age="hour")[0]) == [128]


def test_what_another_version_found_is_marked(one, find):
    store_best(one.store, make_task(64), schedule=Schedule("magic", 5, (("n", 1),)))
    view, text = find()
    assert view["records"][0]["is_usable"] is False and "by another version: never used here" in text


def test_the_age(one, find, monkeypatch):
    store_best(one.store, make_task(64))
    assert extents(find(age="hour")[0]) == [64]
    monkeypatch.setitem(HOURS, Age.HOUR, -1)
    view, text = find(age="hour")
    assert view["records"] == [] and '<option value="hour" selected>' in text
    assert extents(find(age="")[0]) == [64]


def test_pages_of_a_search(one, client, find):
    for extent in range(60, 112):
        store_best(one.store, make_task(extent))
    view, text = find(op="Relu")
    assert len(view["records"]) == views.ROWS
    [link] = [tag["href"] for tag in Page(text).of("a", rel="next")]
    assert "op=Relu" in link
    older = client.get("/v1/pages" + link).json()
    assert extents(view) + extents(older) == list(range(111, 59, -1))
    assert older["next"] is None
    [turn] = [tag["href"] for tag in Page(text).of("a") if "sort=oldest" in tag.get("href", "")]
    assert "op=Relu" in turn and 'aria-sort="descending"' in text
    first = client.get("/v1/pages" + turn).json()
    [newer] = Page(client.get(turn).text).of("a", rel="next")
    second = client.get("/v1/pages" + newer["href"]).json()
    assert extents(first) + extents(second) == list(range(60, 112))
    for cursor in ("?", "bm8", "MjAyNi0wMS0wMSBhIGI"):
        problem(client.get("/records", params={"cursor": cursor}, headers={"Accept": "*/*"}), "invalid-request", 422)


def matches(view):
    return [rung["match"] for rung in view["tried"]["rungs"] if rung["is_answer"]]


def test_each_rung_by_hand(one, client, find):
    def tried(task):
        view, text = find(task=task.key, on=TARGET.key)
        item = client.post("/v1/lookups", json={"target": TARGET.key, "tasks": [task.key]}).json()["items"][0]
        assert view["tried"]["item"] | {"provenance": None} == item | {"provenance": None}
        return view["tried"], text

    task = make_task(64)
    one.store.add_task(task)
    answer, text = tried(task)
    assert answer["item"]["match"] == "default" and answer["rungs"][-1]["is_answer"]
    assert "nothing is known" in text

    near = make_task(66)
    store_best(one.store, near)
    answer, text = tried(task)
    assert answer["item"]["match"] == "nearest" and answer["item"]["basis"] == "scaled"
    assert "~1.00 ms° (900 µs to 1.10 ms)" in Page(text).words
    timed = {"interval_ms": pytest.approx([0.9, 1.1]), "is_confirmed": False, "is_imported": False}
    assert answer["source"] | {"median_ms": 1.0} == timed | {
        "task": near.key,
        "op": "Relu",
        "shape": "66 -> 66",
        "target": {"key": TARGET.key, "name": str(TARGET)},
        "noise": "times of one and the same schedule lie 20% apart",
        "median_ms": 1.0,
    }
    assert [rung["is_reached"] for rung in answer["rungs"]] == [True, True, True, False, False]
    assert f"/tasks/{near.key}?target={TARGET.key}" in text and "not asked" in text

    store_best(one.store, task, make_target(8))
    answer, text = tried(task)
    assert answer["item"]["match"] == "sibling"
    assert answer["source"]["target"]["name"] == str(make_target(8))

    store_best(one.store, task, median_s=2e-3, confirm=True)
    answer, text = tried(task)
    assert answer["item"]["match"] == "exact" and answer["source"] is None
    assert answer["rungs"][0] == {"match": "exact", "is_reached": True, "is_answer": True}
    assert "2.00 ms" in text and "1.80 ms to 2.20 ms" in text


class Picking:
    """Picks one schedule."""

    def __init__(self, schedule):
        self.schedule = schedule

    def pick(self, task, target, failed):
        return Pick(self.schedule, 5e-4)

    def better(self, task, target, failed, rival):
        return None


def test_the_pick_of_a_cost_model(one, find):
    task = make_task(64)
    one.store.add_task(task)
    one.store.add_target(TARGET)
    one.app.state.lookup_service._ladder = Ladder(one.store, Picking(points(task)[1]))
    view, text = find(task=task.key, on=TARGET.key)
    item = view["tried"]["item"]
    assert (item["match"], item["basis"], item["expected_ms"]) == ("predicted", "predicted", 0.5)
    assert item["schedule"] == points(task)[1].to_json()
    assert "500 µs" in text and 'href="/cost-model"' in text and "nobody measured it" in text


def test_no_time_to_search(one, find, monkeypatch):
    monkeypatch.setattr(lookup_service, "LIMIT_S", -1.0)
    task = make_task(64)
    one.store.add_task(task)
    one.store.add_target(TARGET)
    view, text = find(task=task.key, on=TARGET.key)
    assert view["tried"]["item"]["schedule"] is None
    assert [rung["is_reached"] for rung in view["tried"]["rungs"]] == [True, False, False, False, True]
    assert "there was no time" in text


def test_a_default_that_fails(one, find):
    task = make_task(64)
    one.store.add_task(task)
    one.store.add_target(TARGET)
    one.store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), CRASHED))
    view, text = find(task=task.key, on=TARGET.key)
    assert view["tried"]["item"]["match"] == "untried"
    assert view["tried"]["rungs"][-1]["is_answer"]
    assert "the default is known to fail" in text


def test_what_nobody_knows(one, client, find):
    view, text = find(task="ab" * 32, on=TARGET.key)
    assert view["tried"]["item"]["match"] == "unknown"
    assert not any(rung["is_answer"] for rung in view["tried"]["rungs"])
    assert "definition" in text
    assert find(task="ab" * 32)[0]["tried"] is None
    problem(client.get("/v1/pages/records", params={"task": "ab" * 32, "on": "cd" * 32}), "no-such-target", 404)
    problem(client.get("/v1/pages/records", params={"task": "x", "on": TARGET.key}), "invalid-request", 422)


def test_texts_of_strangers_are_texts_and_cut(one, find):
    task = replace(make_task(64), op="<script>x</script>" + "y" * 5000)
    store_best(one.store, task)
    _, text = find(task=task.key, on=TARGET.key, op="<b>")
    assert "<script>x" not in text and "<b>" not in text
    _, text = find(task=task.key, on=TARGET.key)
    assert str(escape("<script>x</script>")) in text
    assert len(text) < 30_000


def test_the_page_needs_the_scope_of_records(one):
    client = one.client(one.key(KeyScope.JOBS_READ))
    problem(client.get("/records"), "missing-scope", 403)
    problem(client.get("/v1/records"), "missing-scope", 403)
    assert one.client(one.key(KeyScope.RECORDS_READ)).get("/records").status_code == 200


# Export


@pytest.fixture
def filled(one):
    """A service with three trials of two tasks on two targets, and a confirmation."""
    first, second, *_ = points(make_task(64))
    store_best(one.store, make_task(64), schedule=first, confirm=True)
    store_best(one.store, make_task(64), schedule=second)
    store_best(one.store, make_task(128), make_target(8))
    one.store.record(Record(make_task(128).key, TARGET.key, points(make_task(128))[0], CRASHED))
    return one


def exported(client, **query):
    answer = client.get("/v1/records", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert "records.jsonl" in answer.headers["content-disposition"]
    lines = [json.loads(line) for line in answer.text.splitlines() if line]
    assert lines[-1] == {"exported": len(lines) - 1}
    return lines[:-1]


def test_an_export_is_what_the_command_writes(filled, client, monkeypatch, tmp_path):
    for looked_at in (500, 1):
        monkeypatch.setattr(record_routes, "LOOKED_AT", looked_at)
        lines = exported(client)
        assert lines == list(filled.store.export())
        assert len(lines) == 5
    text = client.get("/v1/records").content
    with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        imported = other.import_(text.decode().splitlines()[:-1])
        assert (imported.added, imported.known) == (5, 0)
        assert sorted(map(str, other.export())) == sorted(map(str, lines))
    assert client.post("/v1/records", content=text).json() == {"added": 0, "known": 5}


def test_what_is_exported_meets_the_conditions(filled, client, monkeypatch):
    other = make_target(8)
    assert len(exported(client, op="reLu", age="hour")) == 5
    assert exported(client, op="conv") == exported(client, shape="%") == exported(client, target="ab" * 32) == []
    assert {line["task_key"] for line in exported(client, shape="128")} == {make_task(128).key}
    assert [line["target_key"] for line in exported(client, target=other.key)] == [other.key]
    monkeypatch.setitem(HOURS, Age.HOUR, -1)
    assert exported(client, age="hour") == []
    problem(client.get("/v1/records", params={"age": "eternity"}), "invalid-request", 422)


def test_an_export_is_alive_while_nothing_is_found(filled, client, monkeypatch):
    monkeypatch.setattr(record_routes, "LOOKED_AT", 1)
    assert client.get("/v1/records", params={"op": "conv"}).text == " " * 5 + '{"exported": 0}\n'


def test_an_export_comes_packed(filled, client):
    plain = client.get("/v1/records", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with client.stream("GET", "/v1/records", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(answer.iter_raw())) == plain.content


def test_only_some_export_at_once(filled, client):
    def refuse(holder):
        raise anyio.WouldBlock

    assert {len(exported(client)) for _ in range(EXPORTS + 1)} == {5}  # each gives its place back
    filled.service.export_slots = SimpleNamespace(acquire_on_behalf_of_nowait=refuse)
    problem(client.get("/v1/records"), "busy", 503)


def test_who_goes_away_gives_the_place_back(filled, client, monkeypatch):
    entries = list(filled.store.export())
    monkeypatch.setattr(filled.store, "export", lambda: itertools.cycle(entries))  # without an end
    with client.stream("GET", "/v1/records") as answer:
        next(answer.iter_bytes())
        assert filled.service.export_slots.borrowed_tokens == 1
    wait_for(lambda: filled.service.export_slots.borrowed_tokens == 0)


def test_the_page_leads_to_the_export_of_what_it_shows(filled, client):
    text = client.get("/records", params={"op": "relu", "target": TARGET.key, "age": "week"}).text
    [link] = [tag["href"] for tag in Page(text).of("a", download="records.jsonl")]
    assert urlsplit(link).path == "/v1/records"
    assert len(exported(client, **dict(part.split("=") for part in urlsplit(link).query.split("&")))) == 4


def test_a_moment_of_an_older_version_is_not_shown(one, find, monkeypatch):
    store_best(one.store, make_task(64))
    monkeypatch.setattr(views, "KNOWN_SINCE", datetime.now(UTC) + timedelta(days=1))
    assert find()[0]["records"][0]["created_at"] is None

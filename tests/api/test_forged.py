"""Records that somebody made up change no lookup, no client and no session; what is taken back is offered no more."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from onnx import TensorProto, helper

from tunewright.api.client import tiers
from tunewright.api.client.tiers import Lookups
from tunewright.api.client.wire import Exchange
from tunewright.api.http.routes import lookup_cache
from tunewright.db.access import KeyScope
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.lookup.ladder import Ladder, lookup_measured
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.targets import local_target

from .conftest import CRASHED, TARGET, exact_answer, make_task, measured, points, problem, store_best
from .examples import record_line

TUNED, UNTUNED = make_task(1 << 16), make_task(1 << 15)
BEST, SECOND, THIRD, *_ = points(TUNED)


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch):
    monkeypatch.setattr(lookup_cache, "LOOK_S", 0.0)


@pytest.fixture
def tuned(one):
    """A service that has timed two schedules of a task, and compared them; it knows another task by name."""
    for schedule, median_s in ((BEST, 1e-4), (SECOND, 2e-4)):
        store_best(one.store, TUNED, schedule=schedule, median_s=median_s)
    one.store.confirm(Record(TUNED.key, TARGET.key, BEST, measured(1e-4)))
    one.store.add_task(UNTUNED)
    return one


def line(task, schedule, measurement=None, target=TARGET, **changes):
    """A record as an export has it."""
    return record_line(task, target, schedule, measurement or measured(2e-5)) | changes


def forged(task):
    """What each says that is not so, the record, and what is said of it where it is refused."""
    good = points(task)[0]
    (name, value), *others = good.values
    sibling = replace(TARGET, threads=8)
    other = value + 77
    yield "illegal value", line(task, replace(good, values=((name, other), *others))), f"{name}={other} is none"
    yield "no such knob", line(task, replace(good, values=(("tile_x", 1),))), "are tile_x, those of the space"
    yield "other sketch's", line(task, replace(good, sketch="winograd4", version=5)), "winograd4 has no legal point"
    yield "unknown sketch", line(task, replace(good, sketch="magic")), None
    yield "half a letter", line(task, replace(good, sketch="\ud800")), r"schedule.sketch is '\ud800', not a name"
    yield "no letter", line(task, replace(good, values=(("\x1b[2J", 1),))), r"schedule.values is '\x1b[2J', not a name"
    yield (
        "endless text",
        line(task, good, provenance={"llvm": "x" * (1 << 20)}),
        "provenance.llvm has 1048576 characters",
    )
    yield "older version", line(task, replace(good, version=1)), None
    yield "later version", line(task, replace(good, version=99)), None
    yield "sibling", line(task, good, target=sibling), None
    yield "sibling confirmed", line(task, good, target=sibling, kind="confirmation"), None
    yield "1 ns", line(task, good, measured(1e-9)), "median_s is 1e-09 s, which can't be"
    yield "denormal", line(task, good, measured(1e-3), warm_s=5e-324), "warm_s is 4.94e-324 s, which can't be"
    yield "infinite", line(task, good, measured(1e-3), high_s=1e300), "high_s is 1e+300 s; a time is at most"
    yield "label", line(replace(task, op="Relu\n\x1b[2J"), good), r"its op is 'Relu\n\x1b[2J'; a label names ops"
    yield "longest label", line(replace(task, op="+".join(300 * ["Relu"])), good), "its op is 'Relu+Relu+"
    yield "error of 1", line(task, good, max_rel_err=1), "the status is ok, but max_rel_err is 1;"
    yield "infinite error", line(task, good, max_rel_err="inf"), "the status is ok, but max_rel_err is inf;"
    yield "kind of target", line(task, good, target=replace(TARGET, kind="tpu")), "kind is 'tpu', not one of cpu, cuda"
    yield "negative", line(task, good, measured(1e-3), warm_s=-1e-3), "warm_s is -0.001"


def praised(task):
    """Such as could be, of a task that was timed here."""
    yield "faster trial", line(task, THIRD)
    yield "faster confirmation", line(task, THIRD, kind="confirmation")
    yield "slower best", line(task, BEST, measured(1e-2))
    yield "failed best", line(task, BEST, CRASHED)
    yield "failed confirmation", line(task, BEST, CRASHED, kind="confirmation")
    yield "failed default", line(task, default_schedule(task, TARGET), CRASHED)
    yield "voided best", line(task, BEST, schema=3, voided_at="2026-01-01T00:00:00+00:00", void_reason="so there")


def told(one, folder):
    """All that is answered: by routes, by a client without memory, by the ladder."""
    client = one.client()
    body = {"target": TARGET.key, "tasks": [TUNED.key]}
    tasks = [TUNED, UNTUNED]
    return (
        client.post("/v1/lookups", json=body).json(),
        client.get(f"/v1/records/{TUNED.key}", params={"target": TARGET.key}).json(),
        client.get(f"/v1/snapshots/{TARGET.key}").text,
        Lookups(one.url, one.token, folder).lookup([TUNED], TARGET)[TUNED.key].to_json(),
        [found.to_json() for found in lookup_measured(one.store, tasks, TARGET).values()],
        [found.to_json() for found in Ladder(one.store).find(tasks, replace(TARGET, threads=16)).values()],
    )


def cases():
    for name, data, refused in forged(TUNED):
        yield pytest.param(data, refused, id=f"{name} of what was tuned")
    for name, data, refused in forged(UNTUNED):
        yield pytest.param(data, refused, id=f"{name} of what was not")
    for name, data in praised(TUNED):
        yield pytest.param(data, None, id=name)


@pytest.mark.parametrize(("data", "refused"), list(cases()))
def test_a_forged_record_changes_no_answer(tuned, tmp_path, data, refused):
    before = told(tuned, tmp_path / "before")
    assert before[0]["items"][0]["schedule"] == BEST.to_json()
    sender = tuned.client(tuned.key(KeyScope.RECORDS_WRITE))
    answer = sender.post("/v1/records", content=json.dumps(data))
    if refused is None:
        assert answer.json() == {"added": 1, "known": 0}
    else:
        assert refused in problem(answer, "bad-records", 422)["detail"]
        assert answer.json()["detail"].startswith("line 1: ")
    assert told(tuned, tmp_path / "after") == before


def test_all_of_them_together_change_none(tuned, tmp_path):
    before = told(tuned, tmp_path / "before")
    client = tuned.client()
    for task in (TUNED, UNTUNED):
        for _, data, _ in forged(task):
            client.post("/v1/records", content=json.dumps(data))
    lines = [json.dumps(data) for _, data in praised(TUNED)]
    assert client.post("/v1/records", content="\n".join(lines)).json()["added"] == len(lines)
    assert told(tuned, tmp_path / "after") == before
    exported = [json.loads(each) for each in client.get("/v1/records").text.splitlines() if each][:-1]
    assert len(exported) == 3 + 2 * 5 + len(lines)


def test_what_is_imported_is_used_where_nothing_was_timed_here(tuned, client):
    """And says so; it is tuned in the background, and gives way to what is timed here."""
    data = line(UNTUNED, points(UNTUNED)[0], kind="confirmation")
    client.post("/v1/records", content=json.dumps(data))
    body = {"target": TARGET.key, "tasks": [UNTUNED.key]}
    answer = client.post("/v1/lookups", json=body, params={"tune": "background"}).json()
    [item] = answer["items"]
    assert (item["match"], item["basis"], item["confirmed"]) == ("exact", "imported", False)
    assert item["schedule"] == data["schedule"] and answer["job"] is not None
    assert lookup_measured(tuned.store, [UNTUNED], TARGET)[UNTUNED.key].to_json() == item
    store_best(tuned.store, UNTUNED, schedule=points(UNTUNED)[1], median_s=1.0)
    [item] = client.post("/v1/lookups", json=body).json()["items"]
    assert (item["basis"], item["schedule"]) == ("measured", points(UNTUNED)[1].to_json())


def model_of(extent):
    """relu(x), twice."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [extent]) for name in ("x", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [tensors[0]], [tensors[1]])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_a_job_calls_its_tasks_as_its_model_does(tuned, client, kit):
    kit.enlist(tuned.store, TARGET)
    task = kit.task(8)
    named = line(replace(task, op="Sigmoid"), points(task)[0])
    assert client.post("/v1/records", content=json.dumps(named)).json()["added"] == 1
    assert tuned.store.task(task.key).op == "Sigmoid"
    job = client.post("/v1/jobs", json={"model": kit.send(client, 8)}).json()
    assert [(one["key"], one["op"]) for one in job["tasks"]] == [(task.key, task.op)]
    assert tuned.store.task(task.key) == task


def test_a_session_finds_what_it_found(tmp_path):
    url, here, model = f"sqlite:///{tmp_path}/t.db", local_target("cpu", 2), model_of(1 << 16)
    with open_store(url) as store:
        [(task, _)] = ScheduleSource(url).prepare(model, threads=2).model.tasks.values()
        best, other, *_ = points(task, here)
        store_best(store, task, here, best, 1e-4)
        before = ScheduleSource(url).prepare(model, threads=2)
        assert before.results[task.key].schedule == best
        for _, data, refused in forged(task):
            data |= {"target_key": here.key, "target": here.to_json()}
            if refused is None:
                store.import_([json.dumps(data)])
        store.import_([json.dumps(line(task, other, target=here))])
        after = ScheduleSource(url).prepare(model, threads=2)
    assert after.results == before.results
    assert after.fastest_model.tasks == before.fastest_model.tasks


class TestVoid:
    def ask(self, client, verb, schedule=None, status=200, **more):
        body = {"target": TARGET.key, "schedule": schedule and schedule.key} | more
        if verb == "void":
            body |= {"reason": "wrong on odd days"}
        answer = client.post(f"/v1/records/{TUNED.key}:{verb}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def offered(self, client):
        """The schedule that lookup, record and snapshot answer with."""
        body = {"target": TARGET.key, "tasks": [TUNED.key]}
        [item] = client.post("/v1/lookups", json=body).json()["items"]
        record = client.get(f"/v1/records/{TUNED.key}", params={"target": TARGET.key}).json()
        [kept] = map(json.loads, client.get(f"/v1/snapshots/{TARGET.key}").text.splitlines())
        assert item == record == kept
        return item["schedule"]

    def test_is_offered_no_more_and_stays_in_the_export(self, tuned, client, tmp_path):
        tag = client.get(f"/v1/snapshots/{TARGET.key}").headers["etag"]
        assert self.ask(client, "void")["records"] == 2  # a trial and a confirmation of the best
        assert self.offered(client) == SECOND.to_json()
        assert client.get(f"/v1/snapshots/{TARGET.key}").headers["etag"] != tag
        assert lookup_measured(tuned.store, [TUNED], TARGET)[TUNED.key].schedule == SECOND
        assert BEST.key in tuned.store.catalog.failures([TUNED.key], TARGET.key)[TUNED.key]
        records = tuned.store.records(TUNED.key, TARGET.key)
        assert [one.measurement.status for one in records] == ["voided", "ok"]
        text = client.get("/v1/records").text
        lines = [json.loads(each) for each in text.splitlines() if each][:-1]
        voided = [each for each in lines if each["voided_at"]]
        assert len(lines) == 3 and {each["kind"] for each in voided} == {"trial", "confirmation"}
        assert {(each["schema"], each["status"], each["void_reason"]) for each in voided} == {
            (3, "ok", "wrong on odd days")
        }
        assert all(each["schedule"] == BEST.to_json() and each["median_s"] == 1e-4 for each in voided)
        with open_store(f"sqlite:///{tmp_path}/other.db") as other:
            other.import_(text.splitlines()[:-1])
            assert lookup_measured(other, [TUNED], TARGET)[TUNED.key].schedule == SECOND
            again = list(other.export())
        assert sorted(map(str, again)) == sorted(map(str, lines))

    def test_is_offered_by_clients_until_they_ask_anew(self, tuned, client, tmp_path, monkeypatch):
        """For an hour at most, as `void` says."""
        kept = Lookups(tuned.url, tuned.token, tmp_path)
        assert kept.lookup([TUNED], TARGET)[TUNED.key].schedule == BEST
        self.ask(client, "void")
        assert kept.lookup([TUNED], TARGET)[TUNED.key].schedule == BEST
        assert max(tiers.CONFIRMED_FRESH_S, tiers.FRESH_S) == 3600
        monkeypatch.setattr(tiers, "CONFIRMED_FRESH_S", -1.0)
        assert Lookups(tuned.url, tuned.token, tmp_path).lookup([TUNED], TARGET)[TUNED.key].schedule == SECOND

    def test_is_not_brought_back_by_sending_it_again(self, tuned, client):
        self.ask(client, "void")
        assert client.post("/v1/records", content=json.dumps(line(TUNED, BEST))).json()["added"] == 1
        tuned.store.confirm(Record(TUNED.key, TARGET.key, BEST, measured(1e-5)))  # by a job that was at it
        assert self.offered(client) == SECOND.to_json()
        self.ask(client, "void", SECOND)
        assert lookup_measured(tuned.store, [TUNED], TARGET)[TUNED.key].match != "exact"

    def test_can_be_lifted(self, tuned, client):
        before = list(tuned.store.export())
        self.ask(client, "void")
        assert self.ask(client, "void", BEST)["records"] == 2  # again, which changes nothing
        assert self.ask(client, "unvoid", BEST)["records"] == 2
        assert self.offered(client) == BEST.to_json()
        assert list(tuned.store.export()) == before
        self.ask(client, "unvoid", BEST, status=404)

    def test_is_shown_as_such(self, tuned, client):
        self.ask(client, "void")
        page = f"/tasks/{TUNED.key}"
        for address, tab in (
            (f"/v1/pages{page}", None),
            (page, "trials"),
            (f"/v1/pages{page}/schedules/{BEST.key}", None),
            (f"{page}/schedules/{BEST.key}", None),
        ):
            query = {"target": TARGET.key} | ({"tab": tab} if tab else {})
            answer = client.get(address, params=query, headers={"Accept": "text/html, */*"})
            assert answer.status_code == 200, (address, answer.text[:300])
            assert "voided" in answer.text and "wrong on odd days" in answer.text, address

    def test_needs_its_scope_and_something_to_take_back(self, tuned, client):
        sender = tuned.client(tuned.key(KeyScope.RECORDS_WRITE, KeyScope.RECORDS_READ))
        self.ask(sender, "void", status=403)
        self.ask(sender, "unvoid", BEST, status=403)
        self.ask(client, "void", THIRD, status=404)
        self.ask(client, "void", target="ab" * 32, status=404)
        answer = client.post(f"/v1/records/{TUNED.key}:void", json={"target": TARGET.key, "reason": ""})
        assert problem(answer, "invalid-request", 422)

    @pytest.mark.parametrize(
        "reason", ["a\x07b", "two\nlines", "red \x1b[31m", "gnp.\u202eexe", "a\u2028b", " ", "x" * 501]
    )
    def test_a_reason_is_one_line_of_printable_characters(self, tuned, client, reason):
        """As an export has it, and as an import takes it."""
        answer = client.post(f"/v1/records/{TUNED.key}:void", json={"target": TARGET.key, "reason": reason})
        [fault] = problem(answer, "invalid-request", 422)["errors"]
        assert fault["pointer"] == "#/reason"
        assert reason.isprintable() or fault["detail"].endswith("not one line of printable characters"), fault
        with pytest.raises(ValueError, match="reason "):
            tuned.store.voids.void(TUNED.key, TARGET.key, BEST.key, reason)


def test_a_snapshot_of_another_version_displaces_nothing_that_is_kept(tuned, tmp_path, monkeypatch):
    kept = Lookups(tuned.url, tuned.token, tmp_path)
    assert kept.download(TARGET) == 1
    other = exact_answer(TUNED) | {"schedule": replace(BEST, version=99).to_json()}
    strange = [other, other | {"schedule": None}, other | {"schedule": {"sketch": [], "version": {}}}]
    monkeypatch.setattr(Exchange, "snapshot", lambda self, key: iter(strange))
    assert kept.download(TARGET) == 0
    monkeypatch.setattr(Exchange, "lookups", lambda self, tasks, target, is_model=False: ({TUNED.key: other}, None))
    monkeypatch.setattr(tiers, "FRESH_S", -1.0)
    monkeypatch.setattr(tiers, "CONFIRMED_FRESH_S", -1.0)
    again = Lookups(tuned.url, tuned.token, tmp_path)
    assert again.lookup([TUNED], TARGET)[TUNED.key].schedule == BEST
    assert "can't be used" in again.notes[0]

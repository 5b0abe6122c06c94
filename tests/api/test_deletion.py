"""What is deleted over HTTP, and what the service forgets by itself."""

import logging
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select, update

from tunewright.api.client import Client, ServiceError
from tunewright.api.http import pruner
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.db.errors import Damaged, StoreError
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.db.logs.tables import LogEntryRow
from tunewright.db.pruning import trials
from tunewright.db.pruning.policy import MOST_PROGRESS, RetentionPolicy
from tunewright.db.pruning.prune import Pruning
from tunewright.db.tables import UploadRow
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule

from ..waiting import wait_for
from .conftest import measured
from .test_events import read

AT_ONCE = RetentionPolicy(0.0, 0.0, 0.0, 8, 0.0)
"""Keeps nothing for long."""


@pytest.fixture
def finish(kit):
    """A function that has a job be finished, with trials and so much progress; its number."""

    def make(store, seed=0, trials=0, progress=0, model=""):
        store.add_target(kit.target())
        store.add_task(kit.task(8))
        spec = JobSpec(model, kit.target().key, (SpecTask(kit.task(8).key, 1),), {"seed": seed})
        store.jobs.submit(spec, "net.onnx", SearchBudget(10))
        lease = store.jobs.lease([kit.target().key], "h")
        for number in range(trials):
            schedule = Schedule("tiled", 1, (("trial", number),))
            store.record(Record(kit.task(8).key, kit.target().key, schedule, measured(1e-3 + number * 1e-6)), lease)
        for number in range(0, progress, 100):
            told = [
                {"trials": number + i, "speedup": 1 + i / 100, "spent_s": number + i, "again_gain": 0.1}
                for i in range(100)
            ]
            store.jobs.renew(lease, events=[NewEvent(EventKind.PROGRESS, data) for data in told])
        store.jobs.finish(lease, JobState.SUCCEEDED, result={"tuned_ms": 1.0})
        return lease.job_id

    return make


def test_a_job_is_deleted(one, client, kit, finish):
    job_id = finish(one.store, trials=2)
    assert (answer := client.delete(f"/v1/jobs/{job_id}")).status_code == 204 and answer.content == b""
    for path in ("", "/trials", "/events"):
        kit.problem(client.get(f"/v1/jobs/{job_id}{path}"), "no-such-job", 404)
    kit.problem(client.delete(f"/v1/jobs/{job_id}"), "no-such-job", 404)
    assert client.get(f"/jobs/{job_id}", headers={"Accept": "text/html"}).status_code == 404
    assert client.get("/v1/jobs").json()["items"] == []
    assert one.store.counts()["trials"] == 2


def test_an_unfinished_job_is_to_be_cancelled_first(client, kit):
    job_id = client.post("/v1/jobs", json={"model": kit.send(client, 8)}).json()["id"]
    said = kit.problem(client.delete(f"/v1/jobs/{job_id}"), "job-unfinished", 409)
    assert said["detail"] == f"job {job_id} is queued: cancel it first"
    client.post(f"/v1/jobs/{job_id}:cancel")
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_a_model_is_deleted_when_no_job_needs_it(client, kit):
    model = kit.send(client, 8)
    job_id = client.post("/v1/jobs", json={"model": model}).json()["id"]
    said = kit.problem(client.delete(f"/v1/models/{model}"), "model-needed", 409)
    assert said["detail"] == f"job {job_id} needs the model: cancel it first"
    client.post(f"/v1/jobs/{job_id}:cancel")
    assert client.delete(f"/v1/models/{model}").status_code == 204
    kit.problem(client.get(f"/v1/models/{model}"), "no-such-model", 404)
    kit.problem(client.delete(f"/v1/models/{model}"), "no-such-model", 404)
    kit.problem(client.post("/v1/jobs", json={"model": model}), "no-such-model", 404)
    assert client.get(f"/v1/jobs/{job_id}").json()["model"] == model
    assert client.get(f"/jobs/{job_id}").status_code == 200


def test_a_model_that_is_sent_again_is_not_pruned_soon(one, client, kit):
    model, policy = kit.send(client, 8), RetentionPolicy(models_days=1.0)
    with one.store.database.write() as session:
        session.execute(update(UploadRow).values(used_at=datetime(2020, 1, 2, tzinfo=UTC)))
    assert one.store.pruning.prune(policy, dry_run=True).models == 1
    assert kit.send(client, 8) == model
    assert one.store.pruning.prune(policy).models == 0


def test_deleting_needs_the_right_to_steer(one, kit, finish):
    reader = one.client(one.key(KeyScope.JOBS_READ))
    job_id = finish(one.store)
    for path in (f"/v1/jobs/{job_id}", f"/v1/models/{'0' * 64}"):
        kit.problem(reader.delete(path), "missing-scope", 403)


def test_a_model_that_goes_while_a_job_is_submitted(one, client, kit, monkeypatch):
    model, add_tasks = kit.send(client, 8), one.store.add_tasks
    monkeypatch.setattr(
        one.store, "add_tasks", lambda *a, **o: (one.store.uploads.delete(model), add_tasks(*a, **o))[1]
    )
    kit.problem(client.post("/v1/jobs", json={"model": model}), "no-such-model", 404)
    assert one.store.jobs.list() == []


def test_a_stream_of_a_job_that_is_deleted_ends(one, client, finish, monkeypatch):
    job_id = finish(one.store, progress=200)
    monkeypatch.setattr("tunewright.api.http.routes.events.AT_ONCE", 10)
    jobs, events = one.store.jobs, one.store.jobs.events

    def answer(number, after, *rest):
        if after >= 50:
            jobs.delete(number)
        return events(number, after, *rest)

    monkeypatch.setattr(jobs, "events", answer)
    assert len(read(client, job_id)) == 50


def rows(one):
    with one.store.database.read() as session:
        return session.scalar(select(func.count()).select_from(LogEntryRow))


def test_the_rows_of_a_deleted_namespace_go(one, client):
    for key in "abc":
        client.put(f"/v1/logs/triton/{key}", json={"value": "v"})
    assert rows(one) == 3
    assert client.delete("/v1/logs/triton").json() == {"entries": 3}
    wait_for(lambda: not rows(one))


def test_a_service_prunes_once_an_hour(serve, finish, monkeypatch, caplog):
    monkeypatch.setattr(pruner, "FIRST_S", 0.0)
    monkeypatch.setattr(trials, "LEARNED_TRIALS", 5)
    caplog.set_level(logging.INFO, logger="tunewright.api")
    with serve() as one:
        job_id = finish(one.store, trials=30, progress=600)
        url = str(one.store.database.engine.url)
        page = one.client().get(f"/v1/pages/jobs/{job_id}").json()
    with serve(Options(retention=AT_ONCE), url) as one:
        client = one.client()

        def counted():
            lines = client.get("/metrics").text.splitlines()
            return {
                line.split('"')[1]: float(line.split()[-1])
                for line in lines
                if line.startswith("tunewright_pruned_total")
            }

        counts = wait_for(lambda: (found := counted()) and found.get("trials") and found)
        assert counts["events"] >= 400 and counts["trials"] >= 15
        [line] = [line for line in caplog.records if line.message == "pruned"]
        assert (line.events, line.trials) == (counts["events"], counts["trials"])
        assert len(one.store.jobs.events(job_id, limit=None, kinds=[EventKind.PROGRESS])) <= MOST_PROGRESS
        after = client.get(f"/v1/pages/jobs/{job_id}").json()
        before, steps = page.pop("model"), after.pop("model")["steps"]
        assert after == page
        assert 100 < len(steps) < len(before["steps"])
        assert (steps[0], steps[-1]) == (before["steps"][0], before["steps"][-1])
        events = read(client, job_id)
        assert events[-1][1] == "succeeded"
        assert read(client, job_id, headers={"Last-Event-ID": str(events[20][0] - 1)}) == events[20:]


@pytest.mark.parametrize("fault", [ZeroDivisionError("a bug"), Damaged("db", "a row is damaged")])
def test_what_breaks_off_is_tried_again(serve, monkeypatch, caplog, fault):
    """And it keeps nothing else from being removed."""
    monkeypatch.setattr(pruner, "FIRST_S", 0.0)
    monkeypatch.setattr(pruner, "EVERY_S", 0.02)
    calls = []

    def broken(*_, **__):
        calls.append(1)
        raise fault

    monkeypatch.setattr(Pruning, "prune", broken)
    with serve(Options(retention=AT_ONCE)) as one:
        client = one.client()
        wait_for(lambda: len(calls) > 1)
        client.put("/v1/logs/triton/a", json={"value": "v"})
        client.delete("/v1/logs/triton")
        wait_for(lambda: not rows(one))
    [logged, *_] = [line for line in caplog.records if line.message == "not pruned"]
    assert (logged.exc_info is None) == isinstance(fault, StoreError)


def test_without_a_policy_nothing_is_pruned(one, finish):
    job_id = finish(one.store, progress=600)
    one.app.state.service.pruner.prune()
    assert len(one.store.jobs.events(job_id, limit=None)) == 603


def test_jobs_are_deleted_by_the_command(one, run, finish):
    first, second = finish(one.store), finish(one.store, 1)
    refused = run("jobs", "delete", first)
    assert refused.code != 0 and f"Delete job {first}? There is nobody to ask: --yes says so" in refused.err
    said = run("jobs", "delete", first, 77, second, first, "--yes", "--json")
    assert (said.code, said.data["deleted"]) == (1, [first, second])
    assert "there is no job 77" in said.err
    third = finish(one.store, 2)
    assert run("jobs", "delete", third, "--yes").out == "1 job deleted\n"


@pytest.mark.parametrize("says", [True, False])
def test_a_person_is_asked(run, one, finish, monkeypatch, says):
    asked: list[str] = []

    def ask(question, *, err):
        asked.append(question)
        return says

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", ask)
    job_id = finish(one.store)
    one.client().put("/v1/logs/triton/k", json={"value": "v"})
    assert (run("jobs", "delete", job_id).code == 0) is says
    assert (run("log", "delete", "triton").code == 0) is says
    assert asked == [f"Delete job {job_id}?", "Delete all of triton?"]
    assert (one.store.jobs.list() == []) is says


def test_the_client_deletes(one, client, kit, finish):
    model, job_id = kit.send(client, 8), finish(one.store)
    with Client(one.url, one.token) as speaker:
        speaker.delete(job_id)
        speaker.delete_model(model)
        for again in (lambda: speaker.delete(job_id), lambda: speaker.delete_model(model)):
            with pytest.raises(ServiceError) as error:
                again()
            assert error.value.status == 404

"""Timing stale tasks again, over HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunewright.api.http.routes import retimings
from tunewright.api.http.service import Options
from tunewright.db.job import JobSpec, JobState, SearchBudget, SpecTask
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.known_times import present_versions
from tunewright.tuner.search.report import Payoff, Report, Retimed, TaskReport, Upgrade
from tunewright.tuner.search.retiming_plan import TASKS

from .page import whole

OLD = {"llvmlite": "0.1", "llvm": "3.4"}


def store_best(store, kit, extent, threads=4, **versions):
    """A best of a task, by the present versions but for these."""
    task, target = kit.task(extent), kit.target(threads)
    store.add_tasks([task])
    store.add_target(target)
    provenance = {**present_versions("cpu"), **versions}
    measurement = Measurement(Status.OK, (1e-3,) * 5, 1e-3, 9e-4, 1.1e-3, provenance=provenance)
    store.record(Record(task.key, target.key, default_schedule(task, target), measurement))
    return task.key


def tuned(one, client, kit, *extents):
    """A model whose job has succeeded, with the extents of its tasks."""
    model = kit.send(client, *extents, label=f"{extents}.onnx")
    job = client.post("/v1/jobs", json={"model": model, "vendor": False}).json()
    lease = one.store.jobs.lease([job["target"]], "h")
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={})
    return model, [one.store.task(task["key"]).outputs[0].shape[0] for task in job["tasks"]]


def test_a_model_is_timed_again(one, client, kit):
    model = kit.send(client, 8)
    answer = client.post("/v1/jobs", json={"model": model, "retime": 5})
    job = answer.json()
    assert answer.status_code == 202 and job["settings"]["retime"] == 5
    assert (job["trials"], job["minutes"], job["until"]) == (None, None, None)
    assert one.store.jobs.get(job["id"]).budget == SearchBudget(None)
    plain = client.post("/v1/jobs", json={"model": model}).json()
    assert plain["id"] != job["id"] and "retime" not in plain["settings"]


@pytest.mark.parametrize("bound", ["trials", "minutes", "until"])
def test_a_job_that_searches_nothing_takes_no_bound(client, kit, bound):
    model = kit.send(client, 8)
    value = 0.5 if bound == "until" else 1
    found = kit.problem(
        client.post("/v1/jobs", json={"model": model, "retime": 5, bound: value}), "invalid-request", 422
    )
    assert f"body #/{bound}" in found["detail"]


@pytest.mark.parametrize("count", [0, 25, 2.5, "5", True])
def test_how_many_has_bounds(client, kit, count):
    model = kit.send(client, 8)
    kit.problem(client.post("/v1/jobs", json={"model": model, "retime": count}), "invalid-request", 422)
    kit.problem(client.post("/v1/retimings", json={"retime": count}), "invalid-request", 422)


def test_everything_stale_gets_a_job(one, client, kit):
    """That of a model where it was sent, and of tasks else; what is not stale gets none."""
    model, [of_model] = tuned(one, client, kit, 8)
    other, [of_other] = tuned(one, client, kit, 16)
    stale = [store_best(one.store, kit, extent, **OLD) for extent in (of_model, 100, 102)]
    store_best(one.store, kit, of_other)
    store_best(one.store, kit, 104)
    answer = client.post("/v1/retimings", json={"priority": -3})
    assert answer.status_code == 202
    found = answer.json()
    assert (found["stale"], found["left"]) == (3, 0)
    with_model, without = found["jobs"]
    assert (with_model["model"], with_model["label"], with_model["is_new"]) == (model, "(8,).onnx", True)
    assert with_model["settings"]["retime"] == without["settings"]["retime"] == 5
    assert without["model"] == "" and {task["key"] for task in without["tasks"]} == set(stale[1:])
    assert {job["priority"] for job in found["jobs"]} == {-3} and other not in {job["model"] for job in found["jobs"]}
    again = client.post("/v1/retimings", json={}).json()
    assert again == {"jobs": [], "stale": 3, "left": 0}
    assert one.store.jobs.get(without["id"]).owner == one.token.split("_")[1]


def test_the_newest_job_of_a_model_is_what_is_done_again(one, client, kit):
    model, [extent] = tuned(one, client, kit, 8)
    key = store_best(one.store, kit, extent, **OLD)
    newer = one.store.jobs.submit(
        JobSpec(model, kit.target().key, (SpecTask(key, 3),), {"seed": 0, "dims": {"batch": 2}, "vendor": True}),
        "newer",
        SearchBudget(1),
    )
    one.store.jobs.finish(one.store.jobs.lease([kit.target().key], "h"), JobState.SUCCEEDED, result={})
    [job] = client.post("/v1/retimings", json={"retime": 2}).json()["jobs"]
    assert (job["label"], job["id"]) == ("newer", newer.job.id + 1)
    assert job["settings"] == {"seed": 0, "dims": {"batch": 2}, "vendor": True, "retime": 2}


def test_targets_that_no_device_can_time_are_left_alone(one, client, kit):
    """Unless they are named; fewer threads than a device has will do."""
    store_best(one.store, kit, 8, threads=1, **OLD)
    store_best(one.store, kit, 9, threads=64, **OLD)
    found = client.post("/v1/retimings", json={}).json()
    assert [job["target"] for job in found["jobs"]] == [kit.target(1).key] and found["stale"] == 2
    [job] = client.post("/v1/retimings", json={"target": kit.target(64).key}).json()["jobs"]
    assert job["target"] == kit.target(64).key
    kit.problem(client.post("/v1/retimings", json={"target": "ab" * 32}), "no-such-target", 404)


def test_many_tasks_are_of_several_jobs_and_a_request_makes_only_so_many(one, client, kit, monkeypatch):
    monkeypatch.setattr(retimings, "MOST_JOBS", 2)
    for extent in range(2 * TASKS + 5):
        store_best(one.store, kit, 1000 + extent, **OLD)
    first = client.post("/v1/retimings", json={}).json()
    assert [len(job["tasks"]) for job in first["jobs"]] == [TASKS, TASKS] and first["left"] == 5
    second = client.post("/v1/retimings", json={}).json()
    assert [len(job["tasks"]) for job in second["jobs"]] == [5] and second["left"] == 0


def test_a_key_with_as_many_jobs_as_it_may_have_gets_no_more(serve, kit):
    with serve(Options(most_unfinished=1)) as one:
        kit.enlist(one.store, kit.target())
        client = one.client()
        for extent in range(TASKS + 1):
            store_best(one.store, kit, 1000 + extent, **OLD)
        found = client.post("/v1/retimings", json={}).json()
        assert len(found["jobs"]) == 1 and found["left"] == 1
        kit.problem(client.post("/v1/retimings", json={}), "quota-exceeded", 429)


def test_a_page_tells_what_an_upgrade_did(one, client, kit):
    keys = [store_best(one.store, kit, extent, **OLD) for extent in (8, 9)]
    [job] = client.post("/v1/retimings", json={}).json()["jobs"]
    page = whole(client.get(f"/jobs/{job['id']}")).source
    settings = whole(client.get(f"/jobs/{job['id']}?tab=settings")).source
    assert "nothing is searched: the best 5 of each stale task are timed again" in settings
    assert "More expected" not in page and "What more time would bring" not in page
    one.store.jobs.finish(
        one.store.jobs.lease([kit.target().key], "h"), JobState.SUCCEEDED, result=report(job["id"], keys, kit).to_json()
    )
    view = client.get(f"/v1/pages/jobs/{job['id']}").json()
    assert view["upgrade"][0] == (
        "tuning still pays for 1 of 2 tasks that were stale; no longer for 1, where the default is as fast now"
    )
    assert view["upgrade"][-1] == "timing them again took 0:12, 2.0% of the 10:00 that their tuning had taken"
    lines = {line["key"]: line["retimed"] for line in view["tasks"]}
    assert lines[keys[0]] == {"default_ms": 3.0, "best_ms": 1.0, "versions": OLD, "payoff": "pays"}
    page = whole(client.get(f"/jobs/{job['id']}")).source
    tasks = whole(client.get(f"/jobs/{job['id']}?tab=tasks")).source
    assert "Tuning still pays for 1 of 2 tasks" in page and "the default is as fast now</td>" in tasks
    assert 'title="llvmlite 0.1, llvm 3.4">1.00\N{NO-BREAK SPACE}ms before' in tasks


def report(job_id, keys, kit):
    retimed = Retimed(OLD, 3e-3, 1e-3, Payoff.PAYS)
    tasks = [
        TaskReport(key, "Relu", 1, 1, 1, 0, 2e-3, 1.5e-3, None, {"sketch": "tiled", "version": 1, "values": {}})
        for key in keys
    ]
    upgrade = Upgrade(
        5, {"llvm": "22"}, 12.0, 600.0, 2, {"pays": 1, "default": 1}, 6e-3, 2e-3, default_s=4e-3, best_s=3e-3
    )
    return Report(
        job_id,
        "net",
        str(kit.target()),
        0,
        12.0,
        (replace(tasks[0], retimed=retimed), replace(tasks[1], retimed=replace(retimed, payoff=Payoff.DEFAULT))),
        None,
        None,
        None,
        {},
        {},
        upgrade=upgrade,
    )

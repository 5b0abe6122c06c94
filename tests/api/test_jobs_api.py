"""Jobs over HTTP: submitting, listing, steering."""

from typing import Any

import pytest

from tunewright.api.http.service import Options
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db.access import LOCAL, KeyScope, new_token
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import import ModelError
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .page import whole


def submit(client, model, headers=None, **asked):
    return client.post("/v1/jobs", json={"model": model} | asked, headers=headers or {})


def test_a_job_is_submitted(one, client, kit):
    model = kit.send(client, 8, 16, label="net.onnx")
    answer = submit(client, model, trials=40, minutes=1.5, until=0.02, seed=3, priority=2, dims={"batch": 2}, threads=2)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) > 0
    assert (job["state"], job["model"], job["label"]) == ("queued", model, "net.onnx")
    assert (job["trials"], job["minutes"], job["until"], job["priority"]) == (40, 1.5, 0.02, 2)
    assert job["settings"] == {"seed": 3, "strategy": "evolutionary", "dims": {"batch": 2}}
    assert job["tasks"] == [
        {"key": kit.task(16).key, "op": "Relu", "occurrences": 1},
        {"key": kit.task(32).key, "op": "Relu", "occurrences": 2},
    ]
    assert job["target"] == kit.target(2).key
    assert client.get(answer.headers["location"]).json() | {"is_new": True} == job
    stored = one.store.jobs.get(job["id"])
    assert stored.owner == one.token.split("_")[1]
    assert not stored.attached
    assert stored.budget == SearchBudget(40, 90.0, 0.02)
    assert one.store.task(kit.task(32).key) == kit.task(32)


def test_a_vendor_is_asked_for(client, kit):
    """A job that asks for none is the one that it was before there was any."""
    model = kit.send(client, 8)
    asked, plain = (submit(client, model, **how).json() for how in ({"vendor": True}, {"vendor": False}))
    assert asked["settings"]["vendor"] is True and asked["vendor"] == ""
    assert "vendor" not in plain["settings"] and plain["id"] != asked["id"]
    assert not submit(client, model).json()["is_new"]


def test_a_precision_is_asked_for(one, client, kit):
    """A job as given is the one that it was before there was a choice."""
    model = kit.send(client, 8)
    ids = [submit(client, model, precision=precision).json()["id"] for precision in Precision]
    assert len(set(ids)) == 3
    for number, precision in zip(ids, Precision, strict=True):
        job, page = (client.get(f"/v1/{place}/{number}").json() for place in ("jobs", "pages/jobs"))
        assert (
            job["precision"] == page["settings"]["precision"] == precision == one.store.jobs.get(number).spec.precision
        )
        assert f"<dt>Precision</dt><dd>{precision}</dd>" in client.get(f"/jobs/{number}?tab=settings").text
    plain = submit(client, model).json()
    assert (plain["id"], plain["is_new"], "precision" in plain["settings"]) == (ids[0], False, False)


def test_a_precision_is_part_of_an_idempotent_request(client, kit):
    model, name = kit.send(client, 8), {"Idempotency-Key": "nightly"}
    first = submit(client, model, name, precision="bf16").json()
    assert submit(client, model, name, precision="bf16").json()["id"] == first["id"]
    kit.problem(submit(client, model, name), "idempotency-key-reused", 422)


def test_a_precision_of_a_later_version_is_shown_as_it_is(one, client, kit):
    one.store.add_tasks([kit.task(8)])
    settings = {"seed": 0, "strategy": "random", "precision": "<fp8>"}
    spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),), settings)
    number = one.store.jobs.submit(spec, "later", SearchBudget(1)).job.id
    assert client.get(f"/v1/jobs/{number}").json()["precision"] == "<fp8>"
    assert "<dd>&lt;fp8&gt;</dd>" in client.get(f"/jobs/{number}?tab=settings").text


def test_a_vendor_computes_models_as_they_are_given(client, kit):
    answer = submit(client, kit.send(client, 8), vendor=True, precision="bf16")
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "#/vendor"
    assert "computes a model as given: leave it out, or precision bf16" in answer.json()["detail"]


def test_values_of_inputs_are_kept_beside_sizes(one, client, kit):
    """As the processes that read the model take them."""
    answer = submit(client, kit.send(client, 8), dims={"batch": 2}, bind={"sr": 16000, "loud": 0})
    job = client.get(answer.headers["Location"]).json()
    assert job["settings"]["dims"] == {"batch": 2, "sr=": 16000, "loud=": 0}


@pytest.mark.parametrize(
    ("asked", "budget"),
    [
        ({}, SearchBudget(200)),
        ({"minutes": 2}, SearchBudget(None, 120.0)),
        ({"until": 0.02}, SearchBudget(None, until=0.02)),
        ({"trials": 9}, SearchBudget(9)),
    ],
)
def test_a_bound_that_is_not_given_does_not_bind(one, client, kit, asked, budget):
    job = submit(client, kit.send(client, 8), **asked).json()
    assert one.store.jobs.get(job["id"]).budget == budget
    assert (job["trials"], job["minutes"], job["until"]) == (budget.trials, asked.get("minutes"), asked.get("until"))
    line = client.get("/v1/pages/jobs").json()["jobs"][0]
    assert (line["most_trials"], line["most_s"]) == (budget.trials, budget.to_json()["seconds"])
    for address in ("/", f"/jobs/{job['id']}"):
        text = client.get(address, headers={"Accept": "text/html"}).text
        assert (f"0 of {budget.trials}" if budget.trials else "0 trials") in text
        assert "None" not in text and "inf" not in text.split("<main")[1].replace("infer", "")


def test_the_same_spec_is_the_same_job(client, kit):
    model = kit.send(client, 8)
    first = submit(client, model, trials=10, priority=1).json()
    second = submit(client, model, {"Idempotency-Key": "x"}, trials=20, priority=2).json()
    assert (first["is_new"], second) == (True, first | {"is_new": False})
    assert submit(client, model, {"Idempotency-Key": "x"}, trials=20, priority=2).json() == second
    first = submit(client, model)
    assert submit(client, model, seed=1).json()["id"] != first.json()["id"]


def test_idempotency_keys(one, client, kit):
    model = kit.send(client, 8)
    name = {"Idempotency-Key": "nightly"}
    first = submit(client, model, name).json()
    assert submit(client, model, name).json() == first
    client.post(f"/v1/jobs/{first['id']}:cancel")
    assert submit(client, model, name).json()["id"] == first["id"]
    kit.problem(submit(client, model, name, trials=7), "idempotency-key-reused", 422)
    assert submit(one.client(one.key()), model, name).json()["id"] != first["id"]  # names are each key's own
    kit.problem(submit(client, model, {"Idempotency-Key": "x" * 256}), "invalid-request", 422)


def test_a_retry_is_answered_where_nothing_could_be_submitted_now(one, client, kit, monkeypatch):
    def unreadable(*_):
        raise ModelError("it can't be read")

    model, name = kit.send(client, 8), {"Idempotency-Key": "nightly"}
    first = submit(client, model, name)
    one.store.fleet.leave("t1")
    monkeypatch.setattr(kit.reader, "tasks", unreadable)
    kit.problem(submit(client, model, target=kit.target().key), "bad-model", 422)
    again = submit(client, model, name)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["retry-after"] == first.headers["retry-after"]
    for other in ({"trials": 7}, {"target": kit.target().key}):
        kit.problem(submit(client, model, name, **other), "idempotency-key-reused", 422)
    kit.problem(submit(one.client(one.key()), model, name), "bad-model", 422)  # names are each key's own


def test_which_target(one, client, kit):
    model = kit.send(client, 8)
    assert submit(client, model).json()["target"] == kit.target(4).key
    kit.enlist(one.store, Target.of_gpu(KNOWN["sm_90a"]), tuner_id="t3")
    assert submit(client, model, seed=2).json()["target"] == kit.target(4).key
    kit.enlist(one.store, kit.target(8), tuner_id="t2")
    assert "2 are at work" in kit.problem(submit(client, model, seed=1), "several-targets", 409)["detail"]
    assert submit(client, model, target=kit.target(8).key).json()["target"] == kit.target(8).key
    unknown = kit.problem(submit(client, model, target="0" * 64), "no-such-target", 404)
    assert f"known are: {Target.of_gpu(KNOWN['sm_90a'])} (" in unknown["detail"]
    assert f"{kit.target(4)} ({kit.target(4).key[:12]})" in unknown["detail"]
    fault = kit.problem(submit(client, model, target=kit.target(4).key, threads=5), "invalid-request", 422)["errors"][0]
    assert (fault["in"], fault["pointer"]) == ("body", "#/threads")
    one.store.fleet.leave("t1")
    one.store.fleet.leave("t2")
    assert submit(client, model, seed=3).json()["target"] == Target.of_gpu(KNOWN["sm_90a"]).key
    one.store.fleet.leave("t3")
    assert submit(client, model, seed=4).json()["target"] == ""


def test_a_job_waits_for_a_device(one, client, kit):
    model = kit.send(client, 8, label="net.onnx")
    one.store.fleet.leave("t1")
    job = submit(client, model, threads=2).json()
    assert (job["state"], job["target"], job["settings"]["threads"]) == ("queued", "", 2)
    assert job["waits_for"] == "a device with 2 threads or more"
    assert submit(client, model, threads=2).json() == job | {"is_new": False}
    assert client.get("/v1/jobs").json()["items"] == [{name: job[name] for name in job if name != "is_new"}]
    for address in ("/", f"/jobs/{job['id']}", "/fleet"):
        assert "no device yet" in client.get(address, headers={"Accept": "text/html"}).text, address
    assert "waiting for a device" in client.get("/", headers={"Accept": "text/html"}).text
    [queue] = client.get("/v1/pages/fleet").json()["queues"]
    assert (queue["target"]["key"], queue["queued"]) == ("", 1)
    kit.enlist(one.store, kit.target(4))
    assert one.store.jobs.lease([], "tuner", devices=[kit.target(4)]).job_id == job["id"]
    placed = client.get(f"/v1/jobs/{job['id']}").json()
    assert placed["waits_for"] == ""
    assert (placed["target"], placed["state"]) == (kit.target(2).key, "running")
    assert "threads" not in placed["settings"]
    assert submit(client, model, threads=2).json()["id"] == job["id"]
    assert str(kit.target(2)) in client.get(f"/jobs/{job['id']}", headers={"Accept": "text/html"}).text


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"trials": 0}, "#/trials"),
        ({"trials": 10**9}, "#/trials"),
        ({"trials": 1.5}, "#/trials"),
        ({"minutes": 0}, "#/minutes"),
        ({"minutes": -1}, "#/minutes"),
        ({"until": 0}, "#/until"),
        ({"until": 1}, "#/until"),
        ({"threads": 0}, "#/threads"),
        ({"seed": -1}, "#/seed"),
        ({"seed": 2**32}, "#/seed"),
        ({"priority": 101}, "#/priority"),
        ({"strategy": "luck"}, "#/strategy"),
        ({"precision": "fp16"}, "#/precision"),
        ({"precision": None}, "#/precision"),
        ({"dims": {"n": 0}}, "#/dims/n"),
        ({"dims": {"a/b~c": "x"}}, "#/dims/a~1b~0c"),
        ({"dims": {f"d{n}": 1 for n in range(65)}}, "#/dims"),
        ({"dims": [1]}, "#/dims"),
        ({"bind": {"sr": 2**32}}, "#/bind/sr"),
        ({"target": "cpu"}, "#/target"),
        ({"model": "../../x"}, "#/model"),
        ({"unknown": 1}, "#/unknown"),
    ],
)
def test_faults_of_a_request_are_named(client, asked, pointer):
    answer = client.post("/v1/jobs", json={"model": "0" * 64} | asked)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"model": "\\ud800"}']
)
def test_bodies_that_are_no_request(client, body):
    answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_models_that_can_not_be_tuned(client, kit):
    kit.problem(submit(client, "0" * 64), "no-such-model", 404)
    kit.problem(submit(client, kit.send(client)), "nothing-to-tune", 422)
    kit.problem(submit(client, kit.send(client, 8), dims={"unknown": 1}), "bad-model", 422)


def test_a_key_has_a_quota(serve, kit):
    with serve(Options(most_unfinished=2)) as one:
        kit.enlist(one.store, kit.target())
        client = one.client()
        model = kit.send(client, 8)
        ids = [submit(client, model, seed=seed).json()["id"] for seed in (1, 2)]
        assert "retry-after" in submit(client, model, seed=3).headers
        kit.problem(submit(client, model, seed=3), "quota-exceeded", 429)
        assert submit(client, model, seed=1).json()["id"] == ids[0]
        assert submit(one.client(one.key()), model, seed=3).status_code == 202
        client.post(f"/v1/jobs/{ids[0]}:cancel")
        assert submit(client, model, seed=4).status_code == 202


def test_jobs_are_listed(one, client, kit):
    models = [kit.send(client, extent) for extent in (8, 9)]
    kit.enlist(one.store, kit.target(8), tuner_id="t2")
    ids = [
        submit(client, model, target=target.key, seed=seed).json()["id"]
        for model in models
        for target in (kit.target(4), kit.target(8))
        for seed in (1, 2)
    ]
    client.post(f"/v1/jobs/{ids[0]}:pause")
    client.post(f"/v1/jobs/{ids[1]}:cancel")

    def found(**query):
        return [item["id"] for item in client.get("/v1/jobs", params=query).json()["items"]]

    assert found() == ids[::-1]
    assert found(model=models[0]) == ids[3::-1]
    assert found(target=kit.target(4).key, model=models[1]) == [ids[5], ids[4]]
    assert found(state="paused") == [ids[0]]
    assert found(state=["paused", "cancelled"]) == [ids[1], ids[0]]
    pages, cursor = [], None
    while True:
        page = client.get("/v1/jobs", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        pages.append([item["id"] for item in page["items"]])
        if (cursor := page["next"]) is None:
            break
        submit(client, models[0], target=kit.target(4).key, seed=10 + len(pages))  # new ones do not shift the pages
    assert [number for page in pages for number in page] == ids[::-1]
    for query in ({"state": "tired"}, {"limit": 0}, {"limit": 201}, {"cursor": "?"}, {"model": "' OR 1=1 --"}):
        kit.problem(client.get("/v1/jobs", params=query), "invalid-request", 422)


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.CANCELLED])
def test_nothing_goes_on_in_a_finished_job(one, client, kit, end):
    job_id = submit(client, kit.send(client, 8)).json()["id"]
    lease = one.store.jobs.lease([kit.target().key], "h")
    told = {
        "speedup": 1.5,
        "stage": "running",
        "trials": 0,
        "spent_s": 3.5,
        "left_s": 27.5,
        "remaining_gain": 0.01,
        "again_gain": 0.02,
    }
    one.store.jobs.renew(lease, progress=told | {"spent_s": 1.0}, spent_s=3.5)  # as of the process at work alone
    assert client.get(f"/v1/jobs/{job_id}").json()["progress"] == told
    result = {"tasks": [], "tasks_default_ms": 6.0, "tasks_tuned_ms": 6.0} if end is JobState.SUCCEEDED else None
    one.store.jobs.finish(lease, end, result=result)
    over: dict[str, object] = {"stage": "done", "left_s": None, "remaining_gain": None}
    if result:  # which tells what its tasks come to, whatever they did before
        over |= {
            "speedup": 1.0,
            "default_ms": 6.0,
            "tuned_ms": 6.0,
            "noise": "",
            "is_tried": False,
            "is_default_tried": False,
        }
    assert client.get(f"/v1/jobs/{job_id}").json()["progress"] == told | over
    assert client.get("/v1/jobs").json()["items"][0]["progress"]["stage"] == "done"


def test_jobs_are_steered(one, client, kit):
    job_id = submit(client, kit.send(client, 8)).json()["id"]
    url = f"/v1/jobs/{job_id}"
    assert client.post(f"{url}:pause").json()["state"] == "paused"
    assert client.post(f"{url}:resume").json()["state"] == "queued"
    assert client.patch(url, json={"priority": 7}).json()["priority"] == 7
    kit.problem(client.patch(url, json={"priority": 7, "state": "succeeded"}), "invalid-request", 422)
    lease = one.store.jobs.lease([kit.target().key], "h")
    assert client.post(f"{url}:pause").json()["wish"] == "pause"
    assert client.post(f"{url}:resume").json()["wish"] is None
    assert client.post(f"{url}:cancel").json()["wish"] == "cancel"
    one.store.jobs.finish(lease, JobState.CANCELLED)
    assert client.post(f"{url}:cancel").json()["state"] == "cancelled"
    for verb in ("pause", "resume"):
        kit.problem(client.post(f"{url}:{verb}"), "job-finished", 409)
    kit.problem(client.patch(url, json={"priority": 1}), "job-finished", 409)


def test_names_of_a_job_are_changed(one, client, kit):
    key = one.token.split("_")[1]
    job = submit(client, kit.send(client, 8), tags=["nightly", "a"], notes="<b>").json()
    url = f"/v1/jobs/{job['id']}"
    assert (job["tags"], job["notes"], job["owner"]) == (["a", "nightly"], "<b>", {"id": key, "name": "all"})
    assert one.token.split("_", 2)[2] not in client.get(url).text
    asked = {"label": "new", "add_tags": ["b"], "remove_tags": ["a"], "notes": "why"}
    for _ in range(2):
        changed = client.patch(url, json=asked).json()
        assert (changed["label"], changed["tags"], changed["notes"]) == ("new", ["b", "nightly"], "why")
    events = one.store.jobs.events(job["id"], kinds=[EventKind.CHANGED])
    assert [event.data for event in events] == [{"label": "new", "tags": ["b", "nightly"], "notes": "why"}]
    client.post(f"{url}:cancel")
    assert client.patch(url, json={"tags": []}).json()["tags"] == []
    assert client.patch(url, json={}).json()["label"] == "new"
    kit.problem(client.patch(url, json={"priority": 1, "label": "x"}), "job-finished", 409)
    assert client.get(url).json()["label"] == "new"
    many = [f"t{number}" for number in range(16)]
    assert client.patch(url, json={"tags": many}).status_code == 200
    problem = kit.problem(client.patch(url, json={"add_tags": ["more"]}), "invalid-request", 422)
    assert problem["detail"] == "body #/add_tags: a job has at most 16 tags, not 17: remove some"
    for wrong in ({"tags": ["A"]}, {"tags": ["a" * 65]}, {"tags": [*many, "t"]}, {"notes": "n" * 4097}, {"tags": "a"}):
        kit.problem(client.patch(url, json=wrong), "invalid-request", 422)
        kit.problem(submit(client, job["model"], **wrong), "invalid-request", 422)
    detail = client.patch(url, json={"tags": ["no tag"]}).json()["detail"]
    assert detail == "body #/tags/0: must be small letters, digits and . _ : -, and begin with a letter or digit"


def test_a_local_command_owns_nothing_and_a_local_key_tells_no_folder(one, client, kit):
    one.store.add_tasks([kit.task(8)])
    token = new_token()
    one.store.keys.create(f"{LOCAL}/home/someone", {KeyScope.JOBS_READ}, token=token)
    for number, owner in enumerate(["", token.split("_")[1], "gone00000000"]):
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),), {"seed": number})
        one.store.jobs.submit(spec, "", SearchBudget(1), owner=owner)
    owners = [job["owner"] for job in client.get("/v1/jobs").json()["items"]]
    assert owners == [{"id": "gone00000000", "name": ""}, {"id": token.split("_")[1], "name": "local key"}, None]


def test_jobs_are_found_by_what_people_say_of_them(one, client, kit):
    other = one.client(one.key())
    model = kit.send(client, 8)
    asked: list[dict[str, Any]] = [
        {"tags": ["a", "b"]},
        {"tags": ["a"], "notes": "50_% <off>"},
        {"label": "ResNet"},
        {"tags": ["b"]},
    ]
    answers = [client.post("/v1/jobs", json={"model": model, "seed": seed} | how) for seed, how in enumerate(asked)]
    ids = [answer.json()["id"] for answer in answers]
    ids.append(submit(other, model, seed=9, tags=["a"]).json()["id"])

    def found(client=client, **query):
        return [ids.index(item["id"]) for item in client.get("/v1/jobs", params=query).json()["items"]]

    assert found(tag="a") == [4, 1, 0] and found(tag=["a", "b"]) == [0]
    assert found(owner="me") == [3, 2, 1, 0] and found(other, owner="me") == [4]
    assert found(other, owner=one.token.split("_")[1], tag="a") == [1, 0]
    assert found(search="resNET") == [2] and found(search="_%") == [1] and found(search="<OFF>") == [1]
    assert found(search="zzz") == found(owner="x" * 12) == []
    pages, cursor = [], None
    while True:
        query = {"tag": "a", "limit": 1} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/jobs", params=query).json()
        pages += [ids.index(item["id"]) for item in page["items"]]
        submit(client, model, seed=20 + len(pages), tags=["a"])  # new ones do not shift the pages
        if (cursor := page["next"]) is None:
            break
    assert pages == [4, 1, 0]
    for wrong in ("tag=A", 17 * "tag=a&", "owner=you", "search=", f"search={'s' * 201}"):
        kit.problem(client.get(f"/v1/jobs?{wrong.removesuffix('&')}"), "invalid-request", 422)


def test_a_job_is_extended(one, client, kit):
    model = kit.send(client, 8)
    job = submit(client, model, trials=40, minutes=5, tags=["a"]).json()
    url = f"/v1/jobs/{job['id']}"
    answer = client.post(f"{url}:extend", json={"minutes": 10, "trials": 2})
    assert (answer.status_code, answer.headers["location"]) == (200, url)
    assert (answer.json()["minutes"], answer.json()["trials"], answer.json()["is_new"]) == (15, 42, False)
    once = {"Idempotency-Key": "again"}
    for _ in range(2):
        assert client.post(f"{url}:extend", json={"minutes": 0.5}, headers=once).json()["minutes"] == 15.5
    kit.problem(client.post(f"{url}:extend", json={"minutes": 1}, headers=once), "idempotency-key-reused", 422)
    client.post(f"{url}:cancel")
    other = one.client(one.key())
    answer = other.post(f"{url}:extend", json={"minutes": 10})
    new = answer.json()
    assert new["id"] != job["id"] and answer.headers["location"] == f"/v1/jobs/{new['id']}"
    assert (new["is_new"], new["trials"], new["minutes"], new["tags"]) == (True, None, 10, ["a"])
    assert new["owner"]["id"] != job["owner"]["id"] and new["tasks"] == job["tasks"]
    assert client.get(url).json()["state"] == "cancelled"
    assert client.post(f"{url}:extend", json={"minutes": 1}).json()["id"] == new["id"]
    problem = kit.problem(client.post(f"{url}:extend", json={"trials": 1}), "invalid-request", 422)
    said = f"job {new['id']} has no limit of trials to raise; it has: 11 minutes"
    assert problem["errors"] == [{"in": "body", "pointer": "#/trials", "detail": said}]
    kit.problem(client.post("/v1/jobs/77:extend", json={"trials": 1}), "no-such-job", 404)
    for wrong in ({}, {"minutes": 0}, {"trials": 0}, {"trials": 1_000_001}, {"minutes": None}, {"until": 0.1}):
        kit.problem(client.post(f"{url}:extend", json=wrong), "invalid-request", 422)
    reader = one.client(one.key(KeyScope.JOBS_READ))
    kit.problem(reader.post(f"{url}:extend", json={"minutes": 1}), "missing-scope", 403)


def test_an_extension_counts_as_a_job(serve, kit):
    with serve(Options(most_unfinished=1)) as one:
        kit.enlist(one.store, kit.target())
        client = one.client()
        model = kit.send(client, 8)
        first = submit(client, model).json()["id"]
        client.post(f"/v1/jobs/{first}:cancel")
        submit(client, model, seed=1)
        kit.problem(client.post(f"/v1/jobs/{first}:extend", json={"trials": 1}), "quota-exceeded", 429)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/77", "/v1/jobs/77/trials", "/v1/jobs/77/events", "/v1/jobs/9007199254740991"]
)
def test_unknown_jobs(client, kit, path):
    kit.problem(client.get(path), "no-such-job", 404)


@pytest.mark.parametrize("path", ["/v1/jobs/0", "/v1/jobs/99999999999999999999", "/v1/jobs/" + "9" * 900])
def test_numbers_of_no_job(client, kit, path):
    kit.problem(client.get(path), "invalid-request", 422)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/x",
        "/v1/jobs/-1",
        "/v1/jobs/1:explode",
        "/v1/jobs/1/",
        "/v1/jobs/%00",
        "/v2/jobs",
        "/v1/jobs/" + "9" * 5000,
    ],
)
def test_paths_that_lead_nowhere(client, kit, path):
    kit.problem(client.post(path) if ":" in path else client.get(path), "not-found", 404)


def test_methods_that_a_path_does_not_have(client, kit):
    assert client.delete("/v1/jobs").headers["allow"] == "GET, POST"
    kit.problem(client.delete("/v1/jobs"), "method-not-allowed", 405)
    assert client.post("/v1/jobs/1").headers["allow"] == "GET, PATCH, DELETE"
    assert client.get("/v1/jobs/1:cancel").headers["allow"] == "POST"


def test_trials_are_listed(one, client, kit):
    job_id = submit(client, kit.send(client, 8)).json()["id"]
    lease = one.store.jobs.lease([kit.target().key], "h")
    for number in range(5):
        measurement = (
            Measurement(Status.CRASH, error="\x1b]0;<b>signal 11</b>")
            if number == 3
            else Measurement(
                Status.OK,
                (1e-3,) * 5,
                1e-3,
                0.9e-3,
                1.1e-3,
                float("inf") if number else 0.0,
                provenance={"machine": "m"},
                incumbent_s=2e-3 if number else None,
                warm_s=0.5e-3 if number else None,
            )
        )
        record = Record(kit.task(8).key, kit.target().key, Schedule("tiled", 1, (("m", number),)), measurement)
        assert one.store.record(record, lease, [NewEvent(EventKind.PROGRESS, {"trials": number})])
    first = client.get(f"/v1/jobs/{job_id}/trials", params={"limit": 2}).json()
    rest = client.get(f"/v1/jobs/{job_id}/trials", params={"cursor": first["next"]}).json()
    trials = first["items"] + rest["items"]
    assert [trial["ordinal"] for trial in trials] == [0, 1, 2, 3, 4]
    assert rest["next"] is None
    assert (trials[0]["median_ms"], trials[0]["interval_ms"], trials[0]["max_rel_err"]) == (1.0, [0.9, 1.1], 0.0)
    assert trials[1]["max_rel_err"] is None
    assert [(trial["incumbent_ms"], trial["warm_ms"]) for trial in trials[:2]] == [(None, None), (2.0, 0.5)]
    assert (trials[3]["status"], trials[3]["median_ms"]) == ("crash", None)
    assert trials[3]["error"] == "\x1b]0;<b>signal 11</b>"
    assert trials[4]["schedule"] == Schedule("tiled", 1, (("m", 4),)).to_json()


def test_problems_do_not_say_the_same_twice(client, kit):
    job = submit(client, kit.send(client, 8)).json()["id"]
    client.post(f"/v1/jobs/{job}:cancel")
    for answer in (client.post(f"/v1/jobs/{job}:pause"), client.get("/v1/jobs/99"), client.get("/v1/nothing")):
        said = answer.json()
        assert not set(said["title"].split()[-2:]) <= set(said["detail"].split())


@pytest.mark.parametrize(("kind", "said"), [(None, "it is missing"), ("text/plain", "it is 'text/plain'")])
def test_json_by_another_name(client, kit, kind, said):
    headers = {"Content-Type": kind} if kind else {}
    answer = client.post("/v1/jobs", content=b'{"model": "x"}', headers=headers)
    problem = kit.problem(answer, "invalid-request", 422)
    assert problem["detail"] == f"header Content-Type: {said}; a JSON body needs application/json"
    assert problem["errors"][0]["in"] == "header"
    named = client.post("/v1/jobs", content=b'{"model": "x"}', headers={"Content-Type": "application/json"})
    assert kit.problem(named, "invalid-request", 422)["errors"][0]["pointer"] == "#/model"
    listed = client.post("/v1/jobs", json=["model"])
    assert kit.problem(listed, "invalid-request", 422)["errors"][0]["in"] == "body"


def test_each_job_has_the_label_of_who_submitted_it(client, kit):
    model = kit.send(client, 8, label="first.onnx")
    assert kit.send(client, 8, label="second.onnx") == model

    def submitted(**asked):
        answer = client.post("/v1/jobs", json={"model": model, **asked})
        assert answer.status_code == 202, answer.text
        return answer.json()

    first, second = submitted(), submitted(label="second.onnx", seed=1)
    assert (first["label"], second["label"]) == ("first.onnx", "second.onnx")
    again = submitted(label="third.onnx", seed=1)  # what another asked for under a name goes on under that
    assert (again["id"], again["is_new"], again["label"]) == (second["id"], False, "second.onnx")
    assert submitted(label="", seed=2)["label"] == ""
    assert submitted(label=" \t\u2003", seed=3)["label"] == ""  # as which it is named by its model's digest
    assert client.post("/v1/jobs", json={"model": model, "label": "a" * 201}).status_code == 422
    assert "second.onnx" in client.get("/").text


def test_a_whole_number_may_be_written_as_a_float(one, client, kit):
    """As it is one for JSON schemas."""
    model = kit.send(client, 8)
    answer = client.post("/v1/jobs", json={"model": model, "trials": 7.0, "priority": -3.0, "seed": 2e3})
    assert answer.status_code == 202
    assert (answer.json()["trials"], answer.json()["priority"]) == (7, -3)


def test_a_job_that_no_device_suits_tells_what_it_waits_for(one, client, kit):
    """One with as many threads may come, so it is not ended: an autoscaler adds machines."""
    model = kit.send(client, 8)
    one.store.fleet.leave("t1")
    assert submit(client, model).json()["waits_for"] == "a device"
    job = submit(client, model, threads=4000, priority=1).json()
    kit.enlist(one.store, kit.target(4))
    assert one.store.jobs.lease([], "tuner", devices=[kit.target(4)]).job_id != job["id"]
    assert client.get(f"/v1/jobs/{job['id']}").json()["waits_for"] == "a device with 4000 threads or more"
    page = whole(client.get(f"/jobs/{job['id']}", headers={"Accept": "text/html"})).words
    assert "It waits for a device with 4000 threads or more" in page
    assert "Those at work have 4 threads at most." in page

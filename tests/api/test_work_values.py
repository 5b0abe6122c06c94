"""Values that no tuner process sends: each is refused as a problem, and no page or route fails for what was stored."""

import copy
import itertools
import json
from typing import Any

import pytest

from tunewright.api.client.work.call_form import DEEPEST, MOST_ITEMS, to_json
from tunewright.api.client.work.operations import FORM, operations
from tunewright.db.access import KeyScope
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule

from .conftest import TARGET, make_task, measured, running

TASK = make_task()

NESTED: list[Any] = []
for _ in range(DEEPEST + 1):
    NESTED = [NESTED]

HOSTILE: list[Any] = [
    *(None, True, -1, 2**31, 2**53, 2**70, 1.5, -1.0, 1e15, "", "x" * 100_000, "nan", "inf", "-inf"),
    *("\0", "\ud800", {}, [], {"a": 1}, [[]], NESTED, ["x"] * (MOST_ITEMS + 1), "2026-01-01T00:00:00"),
]


JSON = {"Content-Type": "application/json"}


@pytest.fixture
def service(url):
    with running(url) as found:
        yield found


@pytest.fixture
def values(service):
    """Arguments by their names, such as tuner processes send."""
    store = service.store
    store.add_task(TASK)
    store.add_target(TARGET)
    spec = JobSpec("", TARGET.key, (SpecTask(TASK.key, 1),), {"seed": 0})
    job = store.jobs.submit(spec, "job", SearchBudget(3)).job
    lease = store.jobs.lease([TARGET.key], "h")
    device = {"name": "m", "target_key": TARGET.key, "quarantined_until": None, "reason": ""}
    snapshot = {"target_kind": "cpu", "features_version": "1", "content": "AA==", "trials": 1, "newest_trial_id": 1}
    return {
        "task_key": TASK.key,
        "task_keys": [TASK.key],
        "target_key": TARGET.key,
        "target_keys": [TARGET.key],
        "prefix": "",
        "kind": "cpu",
        "target_kind": "cpu",
        "after": 0,
        "through": None,
        "limit": 3,
        "job_id": job.id,
        "lease": to_json(lease),
        "lease_s": 30.0,
        "spent_s": 1.0,
        "holder": "h",
        "progress": {"trials": 1},
        "result": {"trials": 1},
        "events": [{"kind": "stage", "data": {"stage": "x"}}],
        "record": to_json(Record(TASK.key, TARGET.key, Schedule("tiled", 1, (("a", 1),)), measured())),
        "target": TARGET.to_json(),
        "devices": [device],
        "statuses": ["ok"],
        "states": ["queued"],
        "kinds": ["stage"],
        "tuner_id": "t",
        "host": "h",
        "pid": 1,
        "version": "1",
        "pool": "local",
        "draining": False,
        "owner": "",
        "state": "succeeded",
        "error": "",
        "budget": None,
        "sha256": "ab" * 32,
        "position": 0,
        "model_sha256": "ab",
        "families": ["ab"],
        "sketches": [["tiled", 1]],
        "versions": {"llvm": "1"},
        "features_version": "1",
        "parent_sha256": None,
        "snapshot": snapshot | {"metrics": {}},
    }


def places(value, path=()):
    """The paths to all that is in a value."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from places(entry, (*path, name))


def changed(arguments, path, value):
    arguments = copy.deepcopy(arguments)
    part = arguments
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return arguments


@pytest.mark.slow
def test_nothing_is_a_fault_of_the_service(service, values):
    client, pages = service.client(service.key(KeyScope.WORK)), service.client()
    order = [name for name in operations() if name != "jobs.finish"]  # the rest needs the lease
    for name in [*order, "jobs.finish"]:
        operation = operations()[name]
        sound = {argument: values[argument] for argument in operation.form.kinds if argument in values}
        assert sound.keys() >= operation.form.needed, name
        writes = (f"{number:016x}" for number in itertools.count(2**60))
        for path in list(places(sound))[1:]:
            if name == "jobs.lease" and path[0] != "devices":
                continue  # it would take what there is
            for value in HOSTILE:
                body = {"form": FORM, "arguments": changed(sound, path, value), "write": next(writes)}
                answer = client.post(f"/v1/work/{name}", content=json.dumps(body), headers=JSON)
                assert answer.status_code < 500, (name, path, str(value)[:40], answer.text)
        for page in ("/", "/fleet", "/v1/jobs", "/v1/workers", "/v1/targets", f"/jobs/{values['job_id']}"):
            answer = pages.get(page)
            assert answer.status_code < 500, (name, page, answer.text)


def test_a_lease_is_for_the_tasks_of_its_job_alone(service, values):
    other = make_task(16)
    service.store.add_task(other)
    client = service.client(service.key(KeyScope.WORK))
    for name in ("store.record", "store.confirm"):
        record = values["record"] | {"task_key": other.key}
        arguments = {"record": record, "lease": values["lease"]}
        body = {"form": FORM, "arguments": arguments, "write": "1" * 16}
        assert client.post(f"/v1/work/{name}", json=body).status_code == 422
    assert service.store.best(other.key, TARGET.key) is None

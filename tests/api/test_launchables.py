"""Kernels of GPUs, handed out for others to launch."""

from __future__ import annotations

import base64

import pytest

from tunewright.api.client import Client, ServiceError
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Record
from tunewright.search_space.sketches import default_schedule

from .examples import LAUNCHABLE, LINKABLE, OUTLINE, good, product

GPU = Target.of_gpu(KNOWN["sm_90a"])


@pytest.fixture
def task(one):
    """One that was measured on a GPU."""
    found = product()
    one.store.add_task(found)
    one.store.add_target(GPU)
    one.store.record(Record(found.key, GPU.key, default_schedule(found, GPU), good(1e-3)))
    return found


def path(task, target):
    return f"/v1/records/{task.key}/launchable?target={target.key}"


def linkable_path(task, target):
    return f"/v1/records/{task.key}/linkable?target={target.key}"


def test_a_kernel_to_launch(shown_client, task):
    answer = shown_client.get(path(task, GPU))
    assert answer.status_code == 200
    data = answer.json()
    assert (data["task"], data["target"]) == (task.key, GPU.key)
    assert data["schedule"] == default_schedule(task, GPU).key
    assert base64.b64decode(data["cubin"]) == LAUNCHABLE.cubin
    plain, fetching = data["launches"]
    assert plain == {
        "symbol": "k_p0",
        "grid": [3, 2, 1],
        "block": [128, 1, 1],
        "smem_bytes": 4096,
        "tensor_maps": [],
    }
    assert fetching["tensor_maps"] == [
        {"tensor": "x", "dtype": "float32", "extents": [4, 5], "strides": [8, 1], "box": [64, 32], "steps": [1, 1]}
    ]
    assert [argument["role"] for argument in data["arguments"]] == ["input", "output"]


@pytest.mark.slow
def test_the_client_waits_for_it(one, shown_client, shower, task, monkeypatch):
    """It asks again where the server is still at it."""
    monkeypatch.setattr("tunewright.api.http.descriptions.TEXT_PATIENCE_S", 0.01)
    shower.may.clear()
    with Client(one.url, one.token, waits=lambda error: shower.may.set()) as client:
        assert client.launchable(task.key, GPU.key) == LAUNCHABLE
        with pytest.raises(ServiceError, match="no such"):
            client.launchable("../jobs", GPU.key)


def test_what_is_built_still(shown_client, shower, task, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.descriptions.TEXT_PATIENCE_S", 0.01)
    shower.may.clear()
    answer = shown_client.get(path(task, GPU))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    shower.may.set()


def test_what_can_not_be_built(shown_client, shower, task):
    shower.why = "NVRTC, for sm_90a: error"
    answer = shown_client.get(path(task, GPU))
    assert (answer.status_code, answer.json()["detail"]) == (409, shower.why)


@pytest.fixture
def own(one, kit):
    """A task that was measured on a processor, and that."""
    found, target = product(), kit.target()
    one.store.add_task(found)
    one.store.add_target(target)
    one.store.record(Record(found.key, target.key, default_schedule(found, target), good(1e-3)))
    return found, target


def test_functions_to_link(one, shown_client, own):
    task, target = own
    answer = shown_client.get(linkable_path(task, target))
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert (data["task"], data["target"], data["cpu"]) == (task.key, target.key, LINKABLE.cpu)
    assert [base64.b64decode(code) for code in data["objects"]] == list(LINKABLE.objects)
    assert data["functions"] == [{"symbol": "k_p0", "iterations": 12}, {"symbol": "k_p1", "iterations": 1}]
    with Client(one.url, one.token) as client:
        assert client.linkable(task.key, target.key) == LINKABLE


def test_the_loops_of_a_record(one, shown_client, own):
    task, target = own
    answer = shown_client.get(f"/v1/records/{task.key}/outline?target={target.key}")
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert {name: data.pop(name) for name in ("task", "target", "schedule")} == {
        "task": task.key,
        "target": target.key,
        "schedule": default_schedule(task, target).key,
    }
    assert data == OUTLINE.to_json()
    with Client(one.url, one.token) as client:
        assert client.outline(task.key, target.key) == OUTLINE


def test_each_kind_of_machine_has_its_own_code(shown_client, one, task, own):
    processors_task, processor = own
    for url, word in ((path(processors_task, processor), "is a processor"), (linkable_path(task, GPU), "is a GPU")):
        answer = shown_client.get(url)
        assert answer.status_code == 409 and answer.json()["type"].endswith("/not-launchable")
        assert word in answer.json()["detail"]


def test_only_of_what_is_known(shown_client, task):
    other = product(rows=99)
    assert shown_client.get(path(other, GPU)).status_code == 404
    sibling = Target.of_gpu(KNOWN["sm_80"])
    assert shown_client.get(path(task, sibling)).status_code == 404

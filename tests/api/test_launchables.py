"""Kernels of GPUs, handed out for others to launch."""

from __future__ import annotations

import base64

import pytest

from tunewright.api.client import Client, ServiceError
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Record
from tunewright.search_space.sketches import default_schedule

from .examples import LAUNCHABLE, good, product

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


def test_only_of_gpus(shown_client, one, task, kit):
    answer = shown_client.get(path(task, kit.target()))
    assert answer.status_code == 409 and answer.json()["type"].endswith("/not-launchable")
    assert "is a processor" in answer.json()["detail"]


def test_only_of_what_is_known(shown_client, task):
    other = product(rows=99)
    assert shown_client.get(path(other, GPU)).status_code == 404
    sibling = Target.of_gpu(KNOWN["sm_80"])
    assert shown_client.get(path(task, sibling)).status_code == 404

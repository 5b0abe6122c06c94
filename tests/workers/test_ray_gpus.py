"""GPUs of the nodes of a Ray cluster: devices of their own, each held by its keeper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.workers.pool import Limits, PoolError, can_time
from tunewright.workers.ray.cluster import RayCluster

from ..waiting import wait_for
from . import simulated
from .test_ray_cluster import OTHER, SecondNode

pytestmark = pytest.mark.ray

GPU = Target.of_gpu(KNOWN["sm_90a"])

HERE = Path(__file__).parent


@pytest.fixture
def cluster(ray_cluster: RayCluster, limits: Limits, tmp_path: Path) -> Iterator[RayCluster]:
    """The cluster of the session, as somebody sees it whose kernels of GPUs are run by the interpreter."""
    with RayCluster(tmp_path, replace(limits, run_s=20.0), ["simulated_child"]) as gpu_cluster:
        yield gpu_cluster


@pytest.fixture
def node(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondNode]:
    """A node that says that it has a GPU."""
    import ray

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE / "gpu_node"), os.environ["PYTHONPATH"])))
    second = SecondNode(ray.get_runtime_context().gcs_address, "--num-gpus", "1")
    try:
        wait_for(lambda: second.is_dead or GPU in cluster.targets())
        assert not second.is_dead
        yield second
    finally:
        second.kill()
        wait_for(lambda: GPU not in cluster.targets())


@pytest.mark.slow
def test_a_gpu_of_a_node_is_a_device_of_its_own(
    cluster: RayCluster, node: SecondNode, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(sketches, "SKETCHES", simulated.WITH_SIMULATED)
    faults = {"wrong": Status.WRONG_RESULT, "crash": Status.CRASH}
    expected = {Candidate(task, GPU, Schedule(f"simulated.{fault}", 1, ())): status for fault, status in faults.items()}
    expected[Candidate(task, GPU, default_schedule(task, GPU))] = Status.OK
    with cluster.pool(GPU) as pool:
        assert [state.name.rpartition(":")[2] for state in pool.devices()] == ["gpu0"]
        assert OTHER in pool.devices()[0].name
        statuses = {candidate: measurement.status for candidate, measurement in pool.measure(list(expected))}
        assert statuses == expected
        assert not ray.available_resources().get("GPU"), "the keeper holds it"
    with pytest.raises(PoolError, match="no node of the Ray cluster is a"):
        cluster.pool(Target.of_gpu(KNOWN["sm_80"]))


def test_a_device_has_a_gpu_if_all_figures_are_the_same() -> None:
    assert can_time(GPU, GPU)
    gpu = GPU.gpu
    assert gpu is not None
    assert not can_time(GPU, Target.of_gpu(replace(gpu, sms=gpu.sms - 1)))
    assert not can_time(detect(), GPU) and not can_time(GPU, detect(1))

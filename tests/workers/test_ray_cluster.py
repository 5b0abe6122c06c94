"""Several nodes, several processes: who comes, who goes, and what that costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunewright.search_space.measurement import Status
from tunewright.workers.device.device import own_identity
from tunewright.workers.pool import Machines, Pool, PoolError
from tunewright.workers.ray.cluster import RayCluster
from tunewright.workers.ray.nodes import NAMESPACE
from tunewright.workers.wire import candidate_json

from ..waiting import wait_for
from .test_pool import quarantined

pytestmark = pytest.mark.ray

OTHER = "other"
"""The device of the second node, which runs on core 0 of this machine and passes for a machine of its own."""

OWNER = """
import json, sys
from pathlib import Path
from tunewright.workers.ray.cluster import open_ray_pool
from tunewright.workers.wire import read_candidate
candidate = read_candidate(json.loads(sys.argv[3]))
with open_ray_pool(candidate.target, Path(sys.argv[2]), address=sys.argv[1]) as pool:
    print(*(measurement.status for _, measurement in pool.measure([candidate])), flush=True)
    sys.stdin.read()
"""


def names(cluster: RayCluster) -> set[str]:
    cluster.nodes.refresh()
    return {state.name.rpartition(":")[2] for state in cluster.devices()}


class SecondNode:
    """A node that joins this process's cluster, with its token."""

    def __init__(self, address: str, *more: str) -> None:
        options = [*more, "--num-cpus", "1", "--object-store-memory", str(80 << 20), "--disable-usage-stats", "--block"]
        self._starter = subprocess.Popen(
            [
                *("taskset", "-c", "0", sys.executable, "-P", "-m", "ray.scripts.scripts", "start"),
                *("--address", address, *options),
            ],
            env=os.environ | {"TUNEWRIGHT_DEVICE": OTHER},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """As a machine that loses power."""
        pid = self._starter.pid
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for child in children:
            os.kill(child, signal.SIGKILL)
        self._starter.kill()
        self._starter.wait()

    @property
    def is_dead(self) -> bool:
        return self._starter.poll() is not None

    def wait_until_there(self, cluster: RayCluster) -> None:
        """Until its device is one of the cluster's, or fail as soon as it has ended."""
        wait_for(lambda: self.is_dead or OTHER in names(cluster))
        assert not self.is_dead, f"the second node ended with {self._starter.returncode}"


@contextmanager
def second_node(cluster: RayCluster) -> Iterator[SecondNode]:
    import ray

    node = SecondNode(ray.get_runtime_context().gcs_address)
    try:
        yield node
    finally:
        if not node.is_dead:
            node.kill()
        wait_for(lambda: OTHER not in names(cluster))


@pytest.fixture
def node(ray_cluster: RayCluster) -> Iterator[SecondNode]:
    with second_node(ray_cluster) as second:
        second.wait_until_there(ray_cluster)
        yield second


@pytest.mark.slow
def test_a_cluster_has_the_targets_of_its_nodes(ray_cluster: RayCluster, node: SecondNode, make) -> None:
    opened: Machines = ray_cluster
    cores = sorted(target.threads for target in opened.targets())
    assert cores == sorted({1, len(os.sched_getaffinity(0))})
    with opened.pool(replace(make.target, threads=1)) as pool:
        assert {state.target.threads for state in pool.devices()} == set(cores)
    if len(cores) > 1:
        with opened.pool(replace(make.target, threads=2)) as pool:
            assert [state.target.threads for state in pool.devices()] == cores[1:]
    with pytest.raises(PoolError, match="no node of the Ray cluster is a"):
        opened.pool(replace(make.target, threads=1000))


@pytest.mark.slow
def test_a_broken_device_leaves_its_work_to_others(ray_cluster: RayCluster, node: SecondNode, make, broken) -> None:
    elsewhere = make.of_other_task("LeftToOthers")
    with ray_cluster.pool(make.target) as pool, broken(OTHER):
        wait_for(lambda: len(ray_cluster.nodes.keepers(make.target)) == 2)
        for _ in range(10):  # which of them gets the first is a matter of chance
            measurements = dict(pool.measure([elsewhere.default(), elsewhere.planted("same")]))
            assert all(make.sound(m) for m in measurements.values())
            if quarantined(pool):
                break
        assert [name.rpartition(":")[2] for name in quarantined(pool)] == [OTHER]
        assert ray_cluster.targets() == [s.target for s in pool.devices() if s.quarantined_until is None]


def make_ready(pool: Pool, make, as_it_times) -> None:
    """Measure until the second node times too: its first processes may take longer to start than others to do all."""
    ready = threading.Event()
    with as_it_times(OTHER, ready.set):
        for _ in range(100):
            assert all(m.status is Status.OK for _, m in pool.measure([make.default(), make.planted("same")]))
            if ready.is_set():
                break


@pytest.mark.slow
def test_a_node_joins_and_dies_while_batches_run(ray_cluster: RayCluster, make, as_it_times) -> None:
    """It is killed while it times; its candidate is timed elsewhere, and none is lost."""
    leaving = make.of_other_task("Leaving")  # nothing is known of it: each device is busy with one that hangs
    hanging = [leaving.planted("hang"), leaving.planted("hang_longer")]
    with ray_cluster.pool(make.target) as pool, second_node(ray_cluster) as node:
        assert make.sound(make.measured(pool, make.default()))
        node.wait_until_there(ray_cluster)
        wait_for(lambda: len(ray_cluster.nodes.keepers(make.target)) == 2)
        make_ready(pool, make.of_other_task("Ready" * 3), as_it_times)
        with as_it_times(OTHER, node.kill):
            measurements = dict(pool.measure([*hanging, leaving.default()]))
    assert [measurements.pop(candidate).status for candidate in hanging] == [Status.TIMEOUT, Status.TIMEOUT]
    assert [measurement.status for measurement in measurements.values()] == [Status.OK]


@pytest.mark.slow
def test_a_node_that_is_gone_does_not_answer(ray_cluster: RayCluster) -> None:
    """So that what was lost with it is put down to it, before Ray has missed it."""
    with second_node(ray_cluster) as node:
        node.wait_until_there(ray_cluster)
        both = ray_cluster.nodes.ids()
        assert len(both) == 2 and ray_cluster.nodes.are_alive(both)
        node.kill()
        assert not ray_cluster.nodes.are_alive(both)
        assert len(ray_cluster.nodes.ids()) == 1 and ray_cluster.nodes.are_alive(ray_cluster.nodes.ids())


@pytest.mark.slow
def test_processes_share_the_keeper_of_a_device(ray_cluster: RayCluster, make, tmp_path: Path) -> None:
    """Whoever has it; when its owner is killed in the middle, the work of others goes on."""
    import ray

    for identity in ray_cluster.nodes.keepers(make.target):
        if ray_cluster.nodes.drop_keeper(identity):
            wait_for(lambda: not alive(ray))
    address = ray.get_runtime_context().gcs_address
    command = [
        *(sys.executable, "-P", "-c", OWNER, address, str(tmp_path)),
        json.dumps(candidate_json(make.default())),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout and owner.stdout.readline() == "ok\n"
        [keeper] = alive(ray)
        with ray_cluster.pool(make.target) as pool:
            wait_for(lambda: ray_cluster.nodes.keepers(make.target))
            assert alive(ray) == [keeper], "the same one"
            results = pool.measure([make.planted("build_error"), make.planted("hang"), make.default()])
            statuses = [next(results)[1].status]
            owner.kill()
            statuses += [measurement.status for _, measurement in results]
            assert sorted(statuses) == [Status.BUILD_ERROR, Status.OK, Status.TIMEOUT]
        assert len(alive(ray)) == 1 and alive(ray) != [keeper]


def alive(ray: Any) -> list[str]:
    """Ids of the keepers that there are of this machine's device."""
    try:
        return [ray.get_actor(own_identity(), NAMESPACE)._actor_id.hex()]
    except ValueError:
        return []

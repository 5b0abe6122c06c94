"""Nodes are asked for while they have work, and let go of afterwards. Ray's autoscaler is played by the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tunewright.workers.ray import nodes
from tunewright.workers.ray.cluster import RayCluster
from tunewright.workers.ray.nodes import GROUP, NAMESPACE, group_of, missing_nodes

from ..waiting import wait_for
from .test_ray_cluster import OTHER, SecondNode, names

A = f"{GROUP}a"


def test_as_many_again_are_asked_for_as_long_as_candidates_wait() -> None:
    assert [missing_nodes(1, 1, candidates) for candidates in (0, 1, 2, 64)] == [0, 0, 1, 1]
    assert [missing_nodes(4, 4, candidates) for candidates in (4, 5, 6, 8, 64)] == [0, 1, 2, 4, 4]
    assert [missing_nodes(2, 16, candidates) for candidates in (16, 17, 24, 25, 64)] == [
        0,
        1,
        1,
        2,
        2,
    ]  # eight GPUs each
    assert missing_nodes(0, 0, 64) == 0


def test_a_node_names_its_group() -> None:
    assert group_of({"CPU": 4, A: 1, "memory": 1}) == A
    assert group_of({"CPU": 4, "memory": 1}) is None


def seats() -> Counter[str]:
    """Placement groups of the cluster that still exist, by their state."""
    from ray.util import placement_group_table

    states = [group["state"] for group in placement_group_table().values() if A in group["bundles"][0]]
    return Counter(state for state in states if state != "REMOVED")


def keepers(ray: Any) -> set[str]:
    return {
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE
    }


@contextmanager
def grouped(cluster: RayCluster) -> Iterator[SecondNode]:
    """A node of a group that may grow, with what it takes to let go of it."""
    import ray

    second = SecondNode(ray.get_runtime_context().gcs_address, "--resources", f'{{"{A}": 1}}')
    try:
        yield second
    finally:
        second.kill()


@pytest.fixture
def node(ray_cluster: RayCluster) -> Iterator[SecondNode]:
    with grouped(ray_cluster) as second:
        second.wait_until_there(ray_cluster)
        yield second
        ray_cluster.nodes._demand.release()
    wait_for(lambda: OTHER not in names(ray_cluster) and not seats())


@pytest.mark.slow
@pytest.mark.ray
def test_a_job_asks_for_nodes_and_lets_them_go(
    ray_cluster: RayCluster, node: SecondNode, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    busy = make.of_other_task("Grows")
    with ray_cluster.pool(make.target) as pool:
        assert len(list(pool.measure([busy.default(), busy.planted("same"), busy.planted("twin")]))) == 3
        wait_for(lambda: seats() == {"CREATED": 1} or seats() == {"PENDING": 1})
        assert list(pool.measure([busy.default()]))
    wait_for(lambda: seats()["CREATED"] >= 1)  # the node that is there is this process's
    ray_cluster.targets()
    assert seats() and keepers(ray)  # the next job may come at once
    monkeypatch.setattr(nodes, "REST_S", 0.0)
    ray_cluster.targets()
    wait_for(lambda: not seats())
    wait_for(lambda: not any(name.rpartition(":")[2] == OTHER or OTHER in name for name in keepers(ray)))


@pytest.mark.slow
@pytest.mark.ray
def test_one_more_node_is_waited_for_and_kept_as_it_comes(ray_cluster: RayCluster, node: SecondNode, make) -> None:
    ask = ray_cluster.nodes._demand.ask
    ask(A, 1)
    wait_for(lambda: seats() == {"CREATED": 1})
    ask(A, 2)
    wait_for(lambda: seats() == {"CREATED": 1, "PENDING": 2})
    ask(A, 1)
    wait_for(lambda: seats() == {"CREATED": 1, "PENDING": 1})
    with grouped(ray_cluster):  # what the autoscaler would start
        wait_for(lambda: seats() == {"CREATED": 2})


@pytest.mark.slow
@pytest.mark.ray
def test_builds_are_no_demand_where_the_cluster_grows(ray_cluster: RayCluster, node: SecondNode, make) -> None:
    """Each is for a node that is there: Ray's autoscaler starts none for those."""
    assert set(ray_cluster.nodes.builders(make.target) or []) == ray_cluster.nodes.ids()

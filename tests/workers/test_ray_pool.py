"""What only a cluster can suffer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Status
from tunewright.workers.pool import PoolError
from tunewright.workers.ray.cluster import RayCluster
from tunewright.workers.ray.pool import RayPool
from tunewright.workers.wire import candidate_json

from ..waiting import wait_for

pytestmark = pytest.mark.ray

JOIN = """
import json, sys
from pathlib import Path
from tunewright.workers.ray.cluster import open_ray_pool
from tunewright.workers.wire import read_candidate
candidate = read_candidate(json.loads(sys.argv[3]))
with open_ray_pool(candidate.target, Path(sys.argv[2]), address=sys.argv[1]) as pool:
    [(_, measurement)] = pool.measure([candidate])
print(measurement.status, measurement.error)
"""


def keeper_pid(cluster: RayCluster, target: Target) -> int:
    """The process of the keeper of the only device."""
    import ray

    keepers = wait_for(lambda: cluster.nodes.keepers(target))
    [keeper] = keepers.values()
    pid: int = ray.get(keeper.__ray_call__.remote(lambda _: os.getpid()))
    return pid


def test_the_cluster_wants_a_token(ray_pool: RayPool) -> None:
    del ray_pool
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) >= 32


def test_ending_is_for_the_program_to_handle(ray_pool: RayPool) -> None:
    """Ray sets a handler of its own as it starts."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_lost_builder_is_replaced_once(
    ray_cluster: RayCluster, ray_pool: RayPool, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster.nodes, "are_alive", lambda ids: True)  # whatever other tests did to them
    measurements = {c.schedule.sketch: m for c, m in ray_pool.measure([make.planted("kill_worker"), make.default()])}
    assert len(measurements) == 2
    lost = measurements.pop("planted.kill_worker")
    assert lost.status is Status.CRASH
    assert "took its Ray worker with it, 2 times" in lost.error
    [other] = measurements.values()
    assert make.sound(other)


def test_a_builder_lost_with_its_node_is_replaced_more_often(
    ray_cluster: RayCluster, ray_pool: RayPool, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster.nodes, "are_alive", lambda ids: False)
    lost = make.measured(ray_pool, make.planted("kill_worker"))
    assert lost.status is Status.CRASH
    assert "took its Ray worker with it, 5 times" in lost.error


@pytest.mark.slow
def test_a_lost_keeper_is_replaced(ray_cluster: RayCluster, ray_pool: RayPool, make, as_it_times) -> None:
    pid = keeper_pid(ray_cluster, make.target)
    with as_it_times("own", lambda: os.kill(pid, signal.SIGKILL)):
        measurements = {
            c.schedule.sketch: m for c, m in ray_pool.measure([make.planted("hang_longer"), make.default()])
        }
    assert measurements.pop("planted.hang_longer").status is Status.TIMEOUT
    [other] = measurements.values()
    assert make.sound(other)
    assert keeper_pid(ray_cluster, make.target) != pid


def test_people_reach_the_keeper_of_a_device(ray_cluster: RayCluster, ray_pool: RayPool, make) -> None:
    """It rests for all processes of the cluster, and a quarantine that it has begun ends."""
    import ray

    [(identity, keeper)] = wait_for(lambda: ray_cluster.nodes.keepers(make.target)).items()
    [device] = ray_cluster.devices()

    def left_s() -> float:
        left: float = ray.get(keeper.__ray_call__.remote(lambda keeper: keeper._health.left_s))
        return left

    try:
        ray.get(keeper.__ray_call__.remote(lambda keeper: keeper._health.quarantine("broken", 3000.0)))
        ray_cluster.nodes.set_quarantine(identity, "broken", 3000.0)
        assert left_s() > 0 and ray_cluster.targets() == []
        ray_cluster.rest(device.name, "", 0.0)
        assert left_s() == 0 and ray_cluster.targets() == [device.target]
        ray_cluster.rest(device.name, "its fan", 3600.0)
        assert left_s() > 3000 and ray_cluster.targets() == []
    finally:
        ray_cluster.rest(device.name, "", 0.0)
    assert make.sound(make.measured(ray_pool, make.default()))


def test_a_comparison_survives_its_keeper(ray_cluster: RayCluster, ray_pool: RayPool, make) -> None:
    os.kill(keeper_pid(ray_cluster, make.target), signal.SIGKILL)
    assert all(make.sound(measurement) for measurement in ray_pool.compare([make.default(), make.planted("ok")]))


def test_a_comparison_whose_keepers_die_puts_it_down_to_no_candidate(
    ray_cluster: RayCluster, ray_pool: RayPool, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunewright.workers.ray.pool.MAX_LOSSES", 1)
    os.kill(keeper_pid(ray_cluster, make.target), signal.SIGKILL)
    with pytest.raises(PoolError, match="best schedules were compared: took its Ray worker with it, 1 times"):
        ray_pool.compare([make.default(), make.planted("ok")])


def test_a_node_that_is_another_machine_does_not_time(ray_cluster: RayCluster, ray_pool: RayPool, make) -> None:
    with pytest.raises(PoolError, match="no node of the Ray cluster is a cpu:i386"):
        ray_cluster.pool(replace(make.target, cpu="i386"))
    assert make.sound(make.measured(ray_pool, make.default())), "the cluster is still there"


def join(address: str, objects: Path, candidate: Any, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-P",
        "-W",
        "error",
        "-c",
        JOIN,
        address,
        str(objects),
        json.dumps(candidate_json(candidate)),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_running_cluster_is_joined_with_its_token(ray_pool: RayPool, make, tmp_path: Path) -> None:
    import ray

    del ray_pool
    address = ray.get_runtime_context().gcs_address
    assert join(address, tmp_path, make.default(), dict(os.environ)).stdout.strip() == "ok"
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    refused = join(address, tmp_path, make.default(), stranger | {"HOME": str(tmp_path)})
    assert refused.returncode == 1
    assert "PoolError: the Ray cluster" in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nowhere.invalid:6379", "nonsense"])
def test_an_address_without_a_cluster_is_refused_at_once(address: str, make, tmp_path: Path) -> None:
    refused = join(address, tmp_path, make.default(), dict(os.environ))
    assert refused.returncode == 1
    assert "PoolError: no " in refused.stderr.splitlines()[-1]


def test_without_ray_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PoolError, match=r"pip install 'tunewright\[ray\]'"):
        RayCluster(tmp_path)

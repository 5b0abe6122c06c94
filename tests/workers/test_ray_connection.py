"""A cluster that is lost: whoever uses it is told, whatever of it died or hangs, and nothing of it stays behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunewright.workers.pool import ClusterLost
from tunewright.workers.ray import connection as connection_module
from tunewright.workers.ray.connection import MARK, RayConnection, kill_marked

from ..waiting import gone, wait_for


class RayError(Exception):
    pass


class Simulated:
    """What a connection asks of Ray: a node whose two processes are sockets here."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=type("RayTaskError", (RayError,), {}),
        GetTimeoutError=type("GetTimeoutError", (RayError, TimeoutError), {}),
        LocalRayletDiedError=type("LocalRayletDiedError", (RayError,), {}),
    )

    def __init__(self) -> None:
        self.head, self.raylet = (socket.create_server(("127.0.0.1", 0), backlog=1000) for _ in range(2))
        self.is_alive = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(
            gcs_address=f"127.0.0.1:{self.head.getsockname()[1]}",
            get_node_id=lambda: "own",
        )

    def nodes(self) -> list[dict[str, Any]]:
        port = self.raylet.getsockname()[1]
        own = {"NodeID": "own", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "Alive": self.is_alive}
        return [own | {"NodeID": "gone", "NodeManagerPort": 9, "Alive": False}, own]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    monkeypatch.setattr(connection_module, "LOOK_S", 0.05)
    monkeypatch.setattr(connection_module, "SILENT_S", 0.3)
    simulated = Simulated()
    yield simulated
    simulated.head.close()
    simulated.raylet.close()


@pytest.fixture
def connection(ray: Simulated) -> Iterator[RayConnection]:
    opened = RayConnection(ray)
    yield opened
    opened.close()


def test_calls_return_and_raise_as_they_are(ray: Simulated, connection: RayConnection) -> None:
    assert connection.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        connection.call(divmod, 7, 0)
    for error in (RayError("as it is"), ray.exceptions.RayTaskError("of a task"), ray.exceptions.GetTimeoutError()):
        with pytest.raises(type(error)):
            connection.call(raising, error)
    assert len(connection.nodes()) == 2
    assert not connection.is_lost


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("process", "name"), [("head", "its head process"), ("raylet", "the raylet of this machine")])
def test_a_process_that_is_gone_is_noticed_while_a_call_hangs(
    ray: Simulated, connection: RayConnection, process: str, name: str
) -> None:
    hangs = threading.Event()
    threading.Timer(0.1, getattr(ray, process).close).start()
    with pytest.raises(ClusterLost, match=f"{name}.* at 127.0.0.1:.* has not answered for 0.3 s"):
        connection.call(hangs.wait)
    assert connection.is_lost
    with pytest.raises(ClusterLost):
        connection.call(divmod, 7, 2)
    hangs.set()


def test_an_error_is_put_down_to_nobody_where_the_cluster_is_gone(ray: Simulated, connection: RayConnection) -> None:
    """As a worker that dies with its raylet, which is known only later."""
    ray.raylet.close()
    with pytest.raises(ClusterLost, match="the raylet of this machine"):
        connection.call(raising, RayError("a worker died"))


def test_what_ray_itself_knows_is_believed(ray: Simulated, connection: RayConnection) -> None:
    with pytest.raises(ClusterLost, match="the raylet of this machine died"):
        connection.call(raising, ray.exceptions.LocalRayletDiedError())


def test_a_node_that_is_given_up_is_lost(ray: Simulated, connection: RayConnection) -> None:
    """As where its processes still take connections, but do nothing."""
    ray.is_alive = False
    with pytest.raises(ClusterLost, match="takes the node of this machine for dead"):
        connection.nodes()


def test_a_call_that_hangs_is_left_alone(connection: RayConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HUNG_S", 0.1)
    hangs = threading.Event()
    with pytest.raises(ClusterLost, match=r"does not answer within 0.2 s"):
        connection.call(hangs.wait, waits_s=0.1)
    hangs.set()


def test_no_call_is_begun_once_it_is_closed(ray: Simulated) -> None:
    """Ray would start a cluster for it, or join one."""
    connection, start, goes_on, calls_made = RayConnection(ray), threading.Event(), threading.Event(), threading.Event()

    def call() -> bool:
        start.set()
        return goes_on.wait(60)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(connection.call, call)
        assert start.wait(60)
        second = threads.submit(connection.call, calls_made.set)
        wait_for(lambda: not connection._calls.empty())
        closing = threads.submit(connection.close)
        wait_for(connection._closed.is_set)
        goes_on.set()
        closing.result()
        assert first.result()
        with pytest.raises(RuntimeError, match="closed"):
            second.result()
    assert not calls_made.is_set()
    with pytest.raises(RuntimeError, match="closed"):
        connection.call(calls_made.set)


def test_a_process_that_is_away_for_a_moment_is_waited_for(
    ray: Simulated, connection: RayConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 60.0)
    address = ray.head.getsockname()
    ray.head.close()
    again = threading.Timer(0.3, lambda: setattr(ray, "head", socket.create_server(address, backlog=1000)))
    again.start()
    started_s = time.monotonic()
    connection.confirm()
    assert time.monotonic() - started_s > 0.2
    assert not connection.is_lost


def test_a_client_of_ray_watches_its_server(ray: Simulated) -> None:
    connection = RayConnection(ray, f"ray://127.0.0.1:{ray.head.getsockname()[1]}")
    ray.raylet.close()
    connection.confirm()
    ray.head.close()
    with pytest.raises(ClusterLost, match="its server for clients"):
        connection.confirm()
    connection.close()


def test_marked_processes_are_ended_and_no_others() -> None:
    def start(mark: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
        environment = os.environ | {MARK: mark}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        return process

    with start("aa") as marked, start("aab") as other:
        kill_marked("aa")
        assert gone(marked.pid) and other.poll() is None
        other.kill()


LOSE = """
import os, signal, sys
from pathlib import Path
from tunewright.workers.pool import ClusterLost
from tunewright.workers.ray.cluster import RayCluster
from tunewright.workers.ray.connection import MARK

def marked(mark):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                yield int(folder.name), (folder / "cmdline").read_bytes().decode()
        except OSError:
            pass

cluster = RayCluster(Path(sys.argv[1]))
[target] = cluster.targets()
while not cluster.nodes.keepers(target):
    pass
processes = dict(marked(cluster._mark))
[pid] = [pid for pid, command in processes.items() if sys.argv[2] in command]
os.kill(pid, signal.SIGKILL)
try:
    while True:
        cluster.targets()
except ClusterLost as lost:
    print(lost, cluster.devices(), MARK in os.environ)
cluster.close()
print(len(processes), dict(marked(cluster._mark)))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_the_head_of_a_real_cluster_is_missed_and_none_of_its_processes_stays_behind(tmp_path: Path) -> None:
    """In a process of its own. Ray itself would forget two of them."""
    command = [sys.executable, "-P", "-c", LOSE, str(tmp_path), "/gcs_server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lost, left = done.stdout.splitlines()
    assert "its head process (GCS) at " in lost and lost.endswith("[] False")
    count, _, processes = left.partition(" ")
    assert int(count) >= 5 and processes == "{}"

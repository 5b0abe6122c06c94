"""RayCluster: the nodes of a Ray cluster, what devices they are, and the one keeper that each device has.

Nodes may come and go at any time. A node is asked once what it is. A device is a machine with certain cores: two nodes
on the same cores of one machine are one device. Its *keeper* is an actor under the device's name, so that all processes
that share the cluster time through the same one, and no two candidates are ever timed at once. A keeper belongs to the
process that made it and dies with it; the others notice and make another, which costs no candidate anything.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement

from .builder import Built
from .device import Device, Health, Setup, own_identity, own_name
from .local import timed_together
from .pool import DeviceState, Limits, PoolError, has

STORE_BYTES = 128 << 20
"""Ray's object store in a cluster that is started here. Messages are small; by default it takes a third of memory."""

ANSWER_S = 10.0
"""Time that a cluster has to answer. Ray itself would try for minutes, and print its errors meanwhile."""

START_S = 120.0
"""Time that a node has to say what it is, and to start its keeper."""

PAUSE_S = 1.0
"""Between two looks at the cluster, and two attempts at a keeper that does not start."""

STARTS = 3
"""How often in a row a keeper fails to start before its device is left alone for a while."""

SETUPS = 2
"""Timers that a keeper has at most, for processes with different limits or targets: each has a child."""

NAMESPACE = "tunewright"

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class Node:
    """What a node says of the machine it is on."""

    identity: str  # of its device
    name: str  # of its device, for people
    target: Target  # with all its threads


def describe() -> Node:
    """The task that asks a node."""
    return Node(own_identity(), own_name(), detect())


class Keeper:
    """The actor that times on a device. It never runs candidates itself: their process is a child of it."""

    def __init__(self) -> None:
        self._health = Health()
        self._devices: OrderedDict[tuple[Target, Setup], Device] = OrderedDict()

    def answer(self) -> None:
        """Nothing: it is there."""

    def prepare(self, target: Target, setup: Setup, task: Task) -> None:
        """See `Device.prepare`."""
        if not self._health.left_s:
            self._device(target, setup).prepare(task)

    def measure(self, target: Target, setup: Setup, task: Task, built: Built, limit_s: float | None) -> Measurement:
        """See `Device.measure`."""
        return self._device(target, setup).measure(task, built, limit_s)

    def compare(
        self, target: Target, setup: Setup, task: Task, outcomes: dict[int, Built | Measurement]
    ) -> list[Measurement]:
        """See `timed_together`."""
        return timed_together(self._device(target, setup), task, outcomes)

    def _device(self, target: Target, setup: Setup) -> Device:
        key = target, setup
        found = self._devices.pop(key, None)
        if found is None:
            while len(self._devices) >= SETUPS:
                self._devices.popitem(last=False)[1].close()
            found = Device(target, setup, self._health)
        self._devices[key] = found
        return found


@dataclass(slots=True)
class _Place:
    """A device, as this process knows it."""

    health: Health
    actor: Any = None  # its keeper, once it has answered
    starting: Any = None  # a keeper that has not answered yet, its answer, and until when it is waited for
    own: bool = False  # whether this process made the keeper
    failed_starts: int = 0
    not_before_s: float = 0.0  # by the monotonic clock: when to try again


class RayCluster:
    """A cluster that is joined, or started on this machine. See `Machines` and the module.

    Without an `address` it starts a cluster on this machine, which ends with it. Nodes of a cluster that is joined must
    have the same tunewright installed; the folder `objects` is made on each. Joining takes the cluster's token
    (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH), unless RAY_AUTH_MODE=disabled says that it has none. Where this process is
    connected to a cluster already, that one is used and left running.

    Raises PoolError without Ray, and if the cluster can't be joined.
    """

    def __init__(
        self,
        objects: Path,
        limits: Limits | None = None,
        plugins: Sequence[str] = (),
        *,
        address: str | None = None,
    ) -> None:
        self.ray = import_ray()
        self.setup = Setup(objects, limits or Limits(), tuple(plugins))
        self._nodes: dict[str, Node] = {}  # by Ray's id of it
        self._asked: dict[Any, str] = {}  # ids of nodes, by the answers that are awaited
        self._unfit: set[str] = set()  # ids of nodes that can't say what they are
        self._places: dict[str, _Place] = {}  # by the identity of the device
        self._lock = threading.RLock()
        self._connected = not self.ray.is_initialized()
        if self._connected:
            with _own_signals():
                _connect(self.ray, address)
        try:
            self.refresh(START_S)
        except BaseException:
            self.close()
            raise

    def targets(self) -> list[Target]:
        """See `Machines.targets`."""
        self.refresh()
        return list(dict.fromkeys(node.target for node in self._devices().values() if not self._left_s(node)))

    def devices(self) -> list[DeviceState]:
        """See `Machines.devices`."""
        return [self._places[node.identity].health.state(node.name, node.target) for node in self._devices().values()]

    def pool(self, target: Target) -> Any:
        """See `Machines.pool`."""
        from .ray_pool import RayPool

        self.refresh()
        return RayPool(target, self)

    def refresh(self, wait_s: float = 0.0) -> None:
        """See who has come and who has gone. Waits for the first answer if there is nobody else."""
        ray = self.ray
        with self._lock:
            self._ask()
            if not self._asked:
                return
            answers = list(self._asked)
            ready, late = ray.wait(answers, num_returns=1 if wait_s else len(answers), timeout=wait_s)
            if wait_s and ready and late:
                ready, _ = ray.wait(answers, num_returns=len(answers), timeout=min(wait_s, ANSWER_S))
            for answer in ready:
                self._hear(answer)

    def nodes(self) -> frozenset[str]:
        """Ray's ids of those that were there at the last `refresh`."""
        return frozenset(self._nodes)

    def answer(self, nodes: Collection[str]) -> bool:
        """Whether all these nodes are still there. Ray itself takes some seconds to miss one."""
        if not nodes:
            return True
        asking = [self._describe_on(node) for node in nodes]
        ready, late = self.ray.wait(asking, num_returns=len(asking), timeout=ANSWER_S)
        try:
            self.ray.get(ready)
        except self.ray.exceptions.RayError:
            return False
        finally:
            self.refresh()
        return not late

    def _describe_on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node, soft=False)
        return self.ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(describe).remote()

    def _ask(self) -> None:
        """Ask the nodes that are new; forget those that are gone."""
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1}
        self._nodes = {node: about for node, about in self._nodes.items() if node in alive}
        for node in alive - self._nodes.keys() - set(self._asked.values()) - self._unfit:
            self._asked[self._describe_on(node)] = node

    def _hear(self, answer: Any) -> None:
        node = self._asked.pop(answer)
        try:
            about = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            _log.warning("a node of the Ray cluster is not used: %s", str(error).strip().splitlines()[-1])
            self._unfit.add(node)
        except self.ray.exceptions.RayError:  # it went away, or its worker did: asked again if it is there
            return
        else:
            self._places.setdefault(about.identity, _Place(Health()))
            self._nodes[node] = about

    def _devices(self) -> dict[str, Node]:
        """A node of each device, by the device's identity; the same one each time as long as it is there."""
        nodes = dict(self._nodes)  # at once, as another thread may be about to add one
        return {about.identity: about for _, about in sorted(nodes.items(), reverse=True)}

    def _left_s(self, node: Node) -> float:
        return self._places[node.identity].health.left_s

    def having(self, target: Target) -> dict[str, Node]:
        """The devices that have a target, in quarantine or not, by their identities."""
        return {identity: node for identity, node in self._devices().items() if has(node.target, target)}

    def keepers(self, target: Target) -> dict[str, Any]:
        """Keepers of the devices that have a target and are not in quarantine. Those that lack one get it started."""
        with self._lock:
            free = [identity for identity, node in self.having(target).items() if not self._left_s(node)]
            for identity in free:
                self._start(identity)
            return {identity: actor for identity in free if (actor := self._places[identity].actor) is not None}

    def _start(self, identity: str) -> None:
        place = self._places[identity]
        if place.starting is not None:
            self._settle(identity)
        now_s = time.monotonic()
        if place.actor is None and place.starting is None and now_s >= place.not_before_s:
            actor, place.own = self._keeper(identity)
            if actor is not None:
                place.starting = actor, actor.answer.remote(), now_s + START_S
            place.not_before_s = now_s + PAUSE_S

    def _settle(self, identity: str) -> None:
        """See whether a keeper that was started is there by now."""
        place = self._places[identity]
        actor, answer, deadline_s = place.starting
        ready, _ = self.ray.wait([answer], timeout=0)
        if not ready and time.monotonic() < deadline_s:
            return
        place.starting = None
        try:
            if not ready:
                raise self.ray.exceptions.GetTimeoutError(f"no answer within {START_S:g} s")
            self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            self._end(place, actor)
            place.failed_starts += 1
            if place.failed_starts >= STARTS:
                why = f"its keeper does not start: {str(error).strip().splitlines()[-1]}"
                place.health.fail(why, self.setup.limits.quarantine_s)
        else:
            place.actor, place.failed_starts = actor, 0
            place.health.return_to_work()
            place.health.work()

    def _keeper(self, identity: str) -> tuple[Any, bool]:
        """The keeper of a device, and whether it is our own; None where another process has just begun to make it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            return self.ray.get_actor(identity, NAMESPACE), False
        except ValueError:  # there is none
            pass
        node = max(node for node, about in self._nodes.items() if about.identity == identity)
        options = {
            "name": identity,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        try:
            return self.ray.remote(Keeper).options(**options).remote(), True
        except ValueError:  # somebody was faster
            return None, False

    def starting(self, target: Target) -> list[Any]:
        """Answers of keepers that are being started for a target."""
        places = [self._places[identity] for identity in self.having(target)]
        return [place.starting[1] for place in places if place.starting is not None]

    def lose(self, identity: str) -> bool:
        """The keeper of a device is gone, or out of reach. Whether it was our own, and so did not go with its owner."""
        with self._lock:
            place = self._places[identity]
            actor, place.actor = place.actor, None
            if actor is not None:
                self._end(place, actor)
            return place.own

    def _end(self, place: _Place, actor: Any) -> None:
        if place.own:  # others may use it, but it does not answer
            self.ray.kill(actor)

    def hold(self, identity: str, reason: str, left_s: float) -> None:
        """The keeper of a device has quarantined it."""
        with self._lock:
            self._places[identity].health.hold(reason, left_s)

    def close(self) -> None:
        """See `Machines.close`. Keepers of ours end with this process's connection."""
        if not self.ray.is_initialized():
            return
        with self._lock:
            for place in self._places.values():
                place.actor = place.starting = None
        if self._connected:
            self.ray.shutdown()
            self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def import_ray() -> Any:
    """The module. Raises PoolError where it is not installed."""
    if "ray" not in sys.modules:  # which reads them as it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise PoolError("the Ray pool needs Ray: pip install 'tunewright[ray]'") from error
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray makes SIGTERM end the process at once; what it does is for the program to say."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if kept is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, kept)


def _connect(ray: Any, address: str | None) -> None:
    """Start a cluster on this machine, or join one. Both only with a token: who can talk to Ray can run anything."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:  # else Ray writes one to the home folder, for all to read
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        cores = len(available_cores())
        ray.init("local", num_cpus=cores, object_store_memory=STORE_BYTES, include_dashboard=False, **quiet)
        return
    _check_answers(address)
    try:
        ray.init(address, **quiet)
    except ray.exceptions.AuthenticationError as error:
        raise PoolError(
            f"the Ray cluster at {address} wants its token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except ValueError as error:
        raise PoolError(f"no address of a Ray cluster is like {address}: {error}") from error
    except ConnectionError as error:
        raise PoolError(f"no Ray cluster answers at {address}: {error}") from error


def _check_answers(address: str) -> None:
    """Raises PoolError where nobody listens at HOST:PORT. Ray looks the other forms up itself."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise PoolError(f"no Ray cluster answers at {address}: {error}") from error

"""Nodes: those of a Ray cluster, what devices they have, and the one keeper that each device has.

Nodes may come and go at any time. A node is asked once what it has. A device is a machine with certain cores, or one
of its GPUs: two nodes on the same cores of one machine are one device. Its *keeper* is an actor under the device's
name, so that all processes that share the cluster time through the same one, and no two candidates are ever timed at
once. That of a GPU holds one of those that Ray counts, so nothing else that asks Ray for a GPU runs there. A keeper
belongs to the process that made it and dies with it; the others notice and make another, which costs no candidate
anything. Where nodes may be had by asking, those in use are: see `ray_demand`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement

from .builder import Built
from .device import Device, Health, Setup, own_gpus, own_identity, own_name
from .local import timed_together
from .pool import DeviceState, has
from .ray_connection import Connection
from .ray_demand import Demand, group_of, wanted

ANSWER_S = 10.0
"""Time that a node has to answer which was there a moment ago."""

START_S = 120.0
"""Time that a node has to say what it is, and to start its keeper."""

PAUSE_S = 1.0
"""Between two looks at the cluster, and two attempts at a keeper that does not start."""

STARTS = 3
"""How often in a row a keeper fails to start before its device is left alone for a while."""

REST_S = 60.0
"""How long nodes that were asked for are kept between jobs: the next one would ask for them again."""

SETUPS = 2
"""Timers that a keeper has at most, for processes with different limits or targets: each has a child."""

NAMESPACE = "tunewright"

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node says of a device that it has."""

    identity: str
    name: str  # for people
    target: Target  # with all its threads


def describe(gpus: int) -> tuple[Offer, ...]:
    """The task that asks a node, of whose GPUs Ray counts so many."""
    processor = Offer(own_identity(), own_name(), detect())
    return processor, *(
        Offer(f"{own_identity()}:gpu{number}", f"{own_name()}:gpu{number}", target)
        for number, target in enumerate(_alike(gpus))
    )


def _alike(gpus: int) -> list[Target]:
    """The GPUs that keepers may hold here; none where they differ, as it is Ray who says which one a keeper holds."""
    if not gpus:
        return []
    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides them from whom it has given none
    try:
        found = own_gpus()
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    return found[:gpus] if len(set(found)) == 1 else []


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

    def measure(self, target: Target, setup: Setup, task: Task, built: Built, best_s: float | None) -> Measurement:
        """See `Device.measure`."""
        return self._device(target, setup).measure(task, built, best_s)

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


class Nodes:
    """Nodes of the cluster that this process is connected to. See the module.

    Keepers time as `setup` says. Whatever asks the cluster raises ClusterLost.
    """

    def __init__(self, ray: Connection, setup: Setup) -> None:
        self.ray = ray
        self.setup = setup
        self._describe = ray.remote(describe, num_cpus=0, max_retries=0)
        self._nodes: dict[str, tuple[Offer, ...]] = {}  # by Ray's id of it
        self._asked: dict[Any, str] = {}  # ids of nodes, by the answers that are awaited
        self._unfit: set[str] = set()  # ids of nodes that can't say what they are
        self._groups: dict[str, str] = {}  # that may grow, by Ray's id of a node
        self._demand = Demand(ray.call)
        self._used_s = 0.0  # by the monotonic clock: when a keeper was last wanted
        self._places: dict[str, _Place] = {}  # by the identity of the device
        self._lock = threading.RLock()

    def refresh(self, wait_s: float = 0.0) -> None:
        """See who has come and who has gone. With `wait_s` the first of the new has so long to answer, others a bit."""
        with self._lock:
            self._ask()
            if not self._asked:
                return
            answers = list(self._asked)
            ready, late = self.ray.wait(answers, num_returns=1 if wait_s else len(answers), timeout=wait_s)
            if wait_s and ready and late:
                ready, _ = self.ray.wait(answers, num_returns=len(answers), timeout=min(wait_s, ANSWER_S))
            for answer in ready:
                self._hear(answer)

    def ids(self) -> frozenset[str]:
        """Ray's ids of those that were there at the last `refresh`."""
        return frozenset(self._nodes)

    def are_there(self, ids: Collection[str]) -> bool:
        """Whether all these nodes still answer. Ray itself takes some seconds to miss one."""
        if not ids:
            return True
        asked = [self._describe_on(node, 0) for node in ids]
        ready, late = self.ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        try:
            self.ray.get(ready)
        except self.ray.exceptions.RayError:
            return False
        finally:
            self.refresh()
        return not late

    def targets(self) -> list[Target]:
        """Of the devices that are not in quarantine, with all threads, each once."""
        return list(dict.fromkeys(one.target for one in self._devices().values() if not self._left_s(one.identity)))

    def devices(self, target: Target | None = None) -> list[DeviceState]:
        """All devices, or those that have a target, in quarantine or not; none of a lost cluster.

        From any thread, and at once.
        """
        if self.ray.is_lost:
            return []
        offers = self._devices() if target is None else self.having(target)
        return [self._places[identity].health.state(one.name, one.target) for identity, one in offers.items()]

    def builders(self, target: Target) -> list[str] | None:
        """Ray's ids of the nodes that can compile for a target; None: all can. Code for GPUs takes what has one.

        In a cluster that grows each build is for a node that is there: see `ray_demand`.
        """
        if target.gpu is None:
            return list(self._nodes) if self._groups else None
        return self._nodes_having(target)

    def _nodes_having(self, target: Target) -> list[str]:
        return [node for node, offers in self._nodes.items() if any(has(one.target, target) for one in offers)]

    def grow(self, target: Target, candidates: int) -> None:
        """Ask for more nodes to time so many candidates on, where a group that has the target may grow."""
        with self._lock:
            having = self._nodes_having(target)
            groups = {self._groups[node]: self._has_gpu(node) for node in having if node in self._groups}
            if groups:
                least = min(groups, key=lambda group: (groups[group], group))  # GPUs are not woken for a processor
                self._demand.ask(least, wanted(len(having), len(self.having(target)), candidates))

    def _has_gpu(self, node: str) -> bool:
        return any(one.target.gpu is not None for one in self._nodes[node])

    def rest(self) -> None:
        """Between jobs. Nodes of groups that grow are let go of in time: a node with a keeper is never taken away."""
        with self._lock:
            if not self._groups or time.monotonic() < self._used_s + REST_S:
                return
            self._demand.let_go()
            for node in self._groups.keys() & self._nodes.keys():
                for one in self._nodes[node]:
                    self._dismiss(self._places[one.identity])

    def _dismiss(self, place: _Place) -> None:
        actor = place.actor if place.starting is None else place.starting[0]
        place.actor = place.starting = None
        if actor is not None:
            self._end(place, actor)

    def _describe_on(self, node: str, gpus: int) -> Any:
        return self.ray.call(self._describe.options(scheduling_strategy=on_node(node)).remote, gpus)

    def _ask(self) -> None:
        """Ask the nodes that are new; forget those that are gone."""
        said = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
        alive = {node for node, resources in said.items() if resources.get("CPU", 0) >= 1}
        self._groups = {node: group for node in alive if (group := group_of(said[node])) is not None}
        self._nodes = {node: offers for node, offers in self._nodes.items() if node in alive}
        for node in alive - self._nodes.keys() - set(self._asked.values()) - self._unfit:
            self._asked[self._describe_on(node, int(said[node].get("GPU", 0)))] = node

    def _hear(self, answer: Any) -> None:
        node = self._asked.pop(answer)
        try:
            offers = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            _log.warning("a node of the Ray cluster is not used: %s", str(error).strip().splitlines()[-1])
            self._unfit.add(node)
        except self.ray.exceptions.RayError:  # it went away, or its worker did: asked again if it is there
            return
        else:
            for one in offers:
                self._places.setdefault(one.identity, _Place(Health()))
            self._nodes[node] = offers

    def _devices(self) -> dict[str, Offer]:
        """What is said of each device, by its identity; by the same node each time as long as that is there."""
        nodes = dict(self._nodes)  # at once, as another thread may be about to add one
        return {one.identity: one for _, offers in sorted(nodes.items(), reverse=True) for one in offers}

    def _left_s(self, identity: str) -> float:
        return self._places[identity].health.left_s

    def having(self, target: Target) -> dict[str, Offer]:
        """The devices that have a target, in quarantine or not, by their identities."""
        return {identity: one for identity, one in self._devices().items() if has(one.target, target)}

    def keepers(self, target: Target) -> dict[str, Any]:
        """Keepers of the devices that have a target and are not in quarantine. Those that lack one get it started."""
        with self._lock:
            self._used_s = time.monotonic()
            free = [identity for identity in self.having(target) if not self._left_s(identity)]
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
                place.starting = actor, self.ray.call(actor.answer.remote), now_s + START_S
            place.not_before_s = now_s + PAUSE_S

    def _settle(self, identity: str) -> None:
        """See whether a keeper that was started is there by now."""
        place = self._places[identity]
        actor, answer, deadline_s = place.starting
        ready, _ = self.ray.wait([answer], num_returns=1, timeout=0)
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
        try:
            return self.ray.actor(identity, NAMESPACE), False
        except ValueError:  # there is none
            pass
        node = max(node for node, offers in self._nodes.items() if identity in {one.identity for one in offers})
        options = {
            "name": identity,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "num_gpus": int(self._devices()[identity].target.gpu is not None),
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": on_node(node),
        }
        try:
            return self.ray.call(self.ray.remote(Keeper).options(**options).remote), True
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

    def let_go(self) -> None:
        """Use no keeper any more."""
        with self._lock:
            for place in self._places.values():
                place.actor = place.starting = None

    def hold(self, identity: str, reason: str, left_s: float) -> None:
        """The keeper of a device has quarantined it."""
        with self._lock:
            self._places[identity].health.hold(reason, left_s)


def on_node(node: str) -> Any:
    """On that node, or not at all."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)

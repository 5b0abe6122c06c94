"""Nodes of a Ray cluster, their devices, and the keeper of each device.

Nodes may come and go at any time; each is asked once for its devices. A device is a machine with certain cores, or one
of its GPUs: two nodes on the same cores of one machine are one device. Its *keeper* is an actor under the device's
name. All processes that share the cluster time through it, so no two candidates are ever timed at once. The keeper of a
GPU holds one of the GPUs that Ray counts, so nothing else that asks Ray for a GPU runs there. A keeper belongs to the
process that made it and dies with it; the others notice and make another, at no cost for the candidates. In a cluster
that grows, nodes in use are held by `Demand`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tunewright.codegen.host import detect
from tunewright.codegen.lru_cache import LruCache
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement

from ..device.builder import Build, Setup
from ..device.device import DeviceHealth, TimingDevice, own_gpus, own_identity, own_name
from ..local import compare_builds
from ..pool import ClusterLost, DeviceState, can_time
from .connection import RayConnection

GROUP = "tunewright-group-"
"""Prefix of such resources. The chart in deploy/helm gives them to the groups that have `maxReplicas`."""


def group_of(resources: Mapping[str, float]) -> str | None:
    """The group of a node that offers these resources; None where it does not grow."""
    return next((name for name in sorted(resources) if name.startswith(GROUP)), None)


def missing_nodes(nodes: int, devices: int, candidates: int) -> int:
    """How many more nodes to request for so many candidates: at most as many as there are."""
    waiting = max(candidates - devices, 0)
    return min(nodes, -(-waiting * nodes // devices)) if devices else 0


class Demand:
    """Nodes that this process requests, so that the cluster grows with the work. They are its own until it disconnects
    or releases them.

    Nodes of a group that may grow offer one unit of a resource with the group's name. Who holds a unit keeps a node for
    itself; who waits for one makes Ray's autoscaler start another node of that group, and of no other, up to the
    group's maximum. Builds must not wait for processors of any node: that would be demand too, for nodes of any group.
    `call` calls a function of Ray.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._seats: dict[str, list[Any]] = {}  # placement groups, by the group of nodes

    def ask(self, group: str, more: int) -> None:
        """Request so many more nodes of a group; granted requests stay."""
        from ray.util import placement_group

        seats = self._seats.setdefault(group, [])
        waiting = [seat for seat in seats if not self._is_granted(seat)]
        for seat in waiting[more:]:
            seats.remove(seat)
            self._remove(seat)
        seats += [self._call(placement_group, [{group: 1}]) for _ in range(more - len(waiting))]

    def release(self) -> None:
        """Drop all requests, granted or not."""
        while self._seats:
            for seat in self._seats.popitem()[1]:
                self._remove(seat)

    def _is_granted(self, seat: Any) -> bool:
        from ray.util import placement_group_table

        return bool(self._call(placement_group_table, seat)["state"] == "CREATED")

    def _remove(self, seat: Any) -> None:
        from ray.util import remove_placement_group

        self._call(remove_placement_group, seat)


ANSWER_S = 10.0
"""Time limit of an answer from a node that was there a moment ago."""

START_S = 120.0
"""Time limit of a node's description, and of starting its keeper."""

PAUSE_S = 1.0
"""Between two looks at the cluster, and two attempts at a keeper that does not start."""

STARTS = 3
"""Failed starts of a keeper in a row before its device is quarantined."""

REST_S = 60.0
"""How long requested nodes are held between jobs, as the next job would request them again."""

SETUPS = 2
"""Most timers of a keeper, for processes with different limits or targets: each has a child."""

NAMESPACE = "tunewright"

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class Offer:
    """A device of a node, as the node describes it."""

    identity: str
    name: str  # for people
    target: Target  # with all its threads


def describe(gpus: int) -> tuple[Offer, ...]:
    """The Ray task that describes a node, of whose GPUs Ray counts so many."""
    processor = Offer(own_identity(), own_name(), detect())
    return processor, *(
        Offer(f"{own_identity()}:gpu{number}", f"{own_name()}:gpu{number}", target)
        for number, target in enumerate(_equal_gpus(gpus))
    )


def _equal_gpus(count: int) -> list[Target]:
    """The GPUs that keepers may hold here; none where they differ, as Ray chooses which one a keeper holds."""
    if not count:
        return []
    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides GPUs from tasks that hold none
    try:
        targets = own_gpus()
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    return targets[:count] if len(set(targets)) == 1 else []


class Keeper:
    """The actor that times on a device. Candidates run in a child of it."""

    def __init__(self) -> None:
        self._health = DeviceHealth()
        self._devices: LruCache[tuple[Target, Setup], TimingDevice] = LruCache(SETUPS, lambda device: device.close())

    def answer(self) -> None:
        """Does nothing: an answer shows that the keeper runs."""

    def rest(self, reason: str, left_s: float) -> None:
        """Have the device rest, as people want it: `DeviceHealth.rest`."""
        self._health.rest(reason, left_s)

    def prepare(self, target: Target, setup: Setup, task: Task) -> None:
        if not self._health.left_s:
            self._device(target, setup).prepare(task)

    def measure(self, target: Target, setup: Setup, task: Task, build: Build, best_s: float | None) -> Measurement:
        return self._device(target, setup).measure(task, build, best_s)

    def compare(
        self, target: Target, setup: Setup, task: Task, outcomes: dict[int, Build | Measurement]
    ) -> list[Measurement]:
        return compare_builds(self._device(target, setup), task, outcomes)

    def _device(self, target: Target, setup: Setup) -> TimingDevice:
        return self._devices.get((target, setup), lambda: TimingDevice(target, setup, self._health))


@dataclass(slots=True)
class _DeviceEntry:
    """A device, as this process knows it."""

    health: DeviceHealth
    actor: Any = None  # its keeper, once it has answered
    starting: Any = None  # a keeper that has not answered yet, its answer, and until when it is waited for
    own: bool = False  # whether this process made the keeper
    failed_starts: int = 0
    not_before_s: float = 0.0  # by the monotonic clock: when to try again


class Nodes:
    """Nodes of the cluster that this process is connected to.

    Keepers time with `setup`. All that asks the cluster raises ClusterLost.
    """

    def __init__(self, ray: RayConnection, setup: Setup) -> None:
        self.ray = ray
        self.setup = setup
        self._describe = ray.module.remote(num_cpus=0, max_retries=0)(describe)
        self._nodes: dict[str, tuple[Offer, ...]] = {}  # by Ray's id of it
        self._questions: dict[Any, str] = {}  # ids of nodes by their awaited answers
        self._unfit: set[str] = set()  # ids of nodes without a description
        self._groups: dict[str, str] = {}  # groups that may grow, by Ray's id of a node
        self._demand = Demand(ray.call)
        self._used_s = 0.0  # by the monotonic clock: the last use of a keeper
        self._entries: dict[str, _DeviceEntry] = {}  # by the identity of the device
        self._lock = threading.RLock()

    def refresh(self, wait_s: float = 0.0) -> None:
        """Note which nodes have come and gone. The first new one has `wait_s` to answer, others a bit longer."""
        with self._lock:
            self._ask()
            if not self._questions:
                return
            answers = list(self._questions)
            ready, late = self.ray.wait(answers, num_returns=1 if wait_s else len(answers), timeout=wait_s)
            if wait_s and ready and late:
                ready, _ = self.ray.wait(answers, num_returns=len(answers), timeout=min(wait_s, ANSWER_S))
            for answer in ready:
                self._take_answer(answer)

    def ids(self) -> frozenset[str]:
        """Ray's ids of the nodes at the last `refresh`."""
        return frozenset(self._nodes)

    def are_alive(self, ids: Collection[str]) -> bool:
        """Whether all these nodes still answer. Ray itself needs some seconds to notice a loss."""
        if not ids:
            return True
        questions = [self._describe_on(node, 0) for node in ids]
        ready, late = self.ray.wait(questions, num_returns=len(questions), timeout=ANSWER_S)
        try:
            self.ray.call(self.ray.module.get, ready)
        except self.ray.exceptions.RayError:
            return False
        finally:
            self.refresh()
        return not late

    def targets(self) -> list[Target]:
        """Targets of the devices that are not in quarantine, with all threads, each once."""
        return list(
            dict.fromkeys(
                offer.target for offer in self._devices().values() if not self._entries[offer.identity].health.left_s
            )
        )

    def devices(self, target: Target | None = None) -> list[DeviceState]:
        """All devices, or those that have a target, in quarantine or not; none of a lost cluster.

        From any thread; does not block.
        """
        if self.ray.is_lost:
            return []
        offers = self._devices() if target is None else self.offers_for(target)
        return [self._entries[identity].health.state(offer.name, offer.target) for identity, offer in offers.items()]

    def builders(self, target: Target) -> list[str] | None:
        """Ray's ids of the nodes that can compile for a target; None: all can. Code for GPUs needs a node with one.

        In a cluster that grows each build is bound to a node, so that waiting builds are no demand (`Demand`).
        """
        if target.gpu is None:
            return list(self._nodes) if self._groups else None
        return self._nodes_for(target)

    def _nodes_for(self, target: Target) -> list[str]:
        return [node for node, offers in self._nodes.items() if any(can_time(offer.target, target) for offer in offers)]

    def grow(self, target: Target, candidates: int) -> None:
        """Request more nodes for so many candidates, if a group that has the target may grow."""
        with self._lock:
            nodes = self._nodes_for(target)
            with_gpu = {node for node in nodes if any(offer.target.gpu is not None for offer in self._nodes[node])}
            groups = {self._groups[node]: node in with_gpu for node in nodes if node in self._groups}
            if groups:
                group = min(groups, key=lambda name: (groups[name], name))  # no GPUs are started for a processor
                self._demand.ask(group, missing_nodes(len(nodes), len(self.offers_for(target)), candidates))

    def release_idle(self) -> None:
        """Release nodes of growing groups some time after the last job, with their keepers, which hold them."""
        with self._lock:
            if not self._groups or time.monotonic() < self._used_s + REST_S:
                return
            self._demand.release()
            for node in self._groups.keys() & self._nodes.keys():
                for offer in self._nodes[node]:
                    self._drop_keeper(self._entries[offer.identity])

    def _drop_keeper(self, entry: _DeviceEntry) -> None:
        actor = entry.actor if entry.starting is None else entry.starting[0]
        entry.actor = entry.starting = None
        if actor is not None:
            self._end(entry, actor)

    def _describe_on(self, node: str, gpus: int) -> Any:
        return self.ray.call(self._describe.options(scheduling_strategy=on_node(node)).remote, gpus)

    def _ask(self) -> None:
        """Ask new nodes for their devices; forget those that are gone."""
        resources_by_node = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
        alive = {node for node, resources in resources_by_node.items() if resources.get("CPU", 0) >= 1}
        self._groups = {node: group for node in alive if (group := group_of(resources_by_node[node])) is not None}
        self._nodes = {node: offers for node, offers in self._nodes.items() if node in alive}
        for node in alive - self._nodes.keys() - set(self._questions.values()) - self._unfit:
            self._questions[self._describe_on(node, int(resources_by_node[node].get("GPU", 0)))] = node

    def _take_answer(self, answer: Any) -> None:
        node = self._questions.pop(answer)
        try:
            offers = self.ray.call(self.ray.module.get, answer)
        except self.ray.exceptions.RayTaskError as error:
            _log.warning("a node of the Ray cluster is not used: %s", str(error).strip().splitlines()[-1])
            self._unfit.add(node)
        except self.ray.exceptions.RayError:  # the node or its worker is gone: asked again if it comes back
            return
        else:
            for offer in offers:
                self._entries.setdefault(offer.identity, _DeviceEntry(DeviceHealth()))
            self._nodes[node] = offers

    def _devices(self) -> dict[str, Offer]:
        """The devices by identity; those of the same node each time, as long as it is there."""
        nodes = dict(self._nodes)  # a copy, as another thread may add one
        return {offer.identity: offer for _, offers in sorted(nodes.items(), reverse=True) for offer in offers}

    def offers_for(self, target: Target) -> dict[str, Offer]:
        """The devices that have a target, in quarantine or not, by their identities."""
        return {identity: offer for identity, offer in self._devices().items() if can_time(offer.target, target)}

    def keepers(self, target: Target) -> dict[str, Any]:
        """Keepers of the devices that have a target and are not in quarantine. Missing ones are started."""
        with self._lock:
            self._used_s = time.monotonic()
            free = [identity for identity in self.offers_for(target) if not self._entries[identity].health.left_s]
            for identity in free:
                self._start(identity)
            return {identity: actor for identity in free if (actor := self._entries[identity].actor) is not None}

    def _start(self, identity: str) -> None:
        entry = self._entries[identity]
        if entry.starting is not None:
            self._check_start(identity)
        now_s = time.monotonic()
        if entry.actor is None and entry.starting is None and now_s >= entry.not_before_s:
            actor, entry.own = self._keeper(identity)
            if actor is not None:
                entry.starting = actor, self.ray.call(actor.answer.remote), now_s + START_S
            entry.not_before_s = now_s + PAUSE_S

    def _check_start(self, identity: str) -> None:
        """Note whether a keeper has started by now."""
        entry = self._entries[identity]
        actor, answer, deadline_s = entry.starting
        ready, _ = self.ray.wait([answer], num_returns=1, timeout=0)
        if not ready and time.monotonic() < deadline_s:
            return
        entry.starting = None
        try:
            if not ready:
                raise self.ray.exceptions.GetTimeoutError(f"no answer within {START_S:g} s")
            self.ray.call(self.ray.module.get, answer)
        except self.ray.exceptions.RayError as error:
            self._end(entry, actor)
            entry.failed_starts += 1
            if entry.failed_starts >= STARTS:
                reason = f"its keeper does not start: {str(error).strip().splitlines()[-1]}"
                entry.health.quarantine(reason, self.setup.limits.quarantine_s)
        else:
            entry.actor, entry.failed_starts = actor, 0
            entry.health.end_quarantine()
            entry.health.note_success()

    def _keeper(self, identity: str) -> tuple[Any, bool]:
        """The keeper of a device, and whether it is our own; None where another process is just making it."""
        try:
            return self.ray.call(self.ray.module.get_actor, identity, NAMESPACE), False
        except ValueError:  # there is none
            pass
        node = max(node for node, offers in self._nodes.items() if identity in {offer.identity for offer in offers})
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
            return self.ray.call(self.ray.module.remote(Keeper).options(**options).remote), True
        except ValueError:  # another process was faster
            return None, False

    def starting(self, target: Target) -> list[Any]:
        """Answers of keepers that are being started for a target."""
        entries = [self._entries[identity] for identity in self.offers_for(target)]
        return [entry.starting[1] for entry in entries if entry.starting is not None]

    def drop_keeper(self, identity: str) -> bool:
        """Drop a keeper that is gone or out of reach: whether it was our own, and so did not end with its owner."""
        with self._lock:
            self._drop_keeper(self._entries[identity])
            return self._entries[identity].own

    def _end(self, entry: _DeviceEntry, actor: Any) -> None:
        if entry.own:  # other processes may use it, but it does not answer
            self.ray.call(self.ray.module.kill, actor)

    def rest(self, name: str, reason: str, left_s: float) -> None:
        """Have a device of a name rest, as people want it: `Machines.rest`. From any thread.

        Its keeper hears of it first, so that no candidate comes to one that still refuses it.
        """
        with self._lock:
            entries = [self._entries[offer.identity] for offer in self._devices().values() if offer.name == name]
            actors = [entry.actor if entry.starting is None else entry.starting[0] for entry in entries]
        for entry, actor in zip(entries, actors, strict=True):
            if actor is not None:
                with suppress(ClusterLost, self.ray.exceptions.RayError):  # who times on it notices that it is gone
                    self.ray.call(actor.rest.remote, reason, left_s)
            entry.health.rest(reason, left_s)

    def set_quarantine(self, identity: str, reason: str, left_s: float) -> None:
        """Note that the keeper of a device has quarantined it."""
        with self._lock:
            self._entries[identity].health.set_quarantine(reason, left_s)


def on_node(node: str) -> Any:
    """The scheduling strategy that binds to a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)

"""RayPool: the pool of a Ray cluster.

Builds are tasks, one core each, on any node: LLVM compiles for every processor everywhere. For GPUs nodes compile that
have one. Timing is done by the keepers of the devices that have the target: see `ray_nodes`. Both own a child that can
be killed, since Ray's resources are a matter of counting only and running actor methods can't be stopped. Object code
travels with the reply of a build, so nodes need share no folder.

Ray's retries are off: who is lost at work is dealt with here. A worker process that dies is most likely not the fault
of its candidate, which ran in a child of it; so the candidate is handed out once more, and only if it loses its worker
again is it measured as a crash. That a keeper ended with the process that had made it is never held against anybody,
nor that a worker ended with its node, unless it happens again and again. Nothing at all is held against anybody once
the cluster is lost: see `ray_connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement, Status

from .builder import Builder, Built
from .device import Quarantined, Setup
from .lock import refuse_holding
from .pool import ClusterLost, DeviceState, PoolError, ReferenceFailed, checked_targets, checked_task
from .ray_nodes import PAUSE_S, START_S, Nodes, on_node

ATTEMPTS = 2
"""How often work is handed out whose worker is lost, on nodes that stay."""

MOST_ATTEMPTS = 5
"""How often it is handed out at all: it may be what takes the nodes down."""


class RayPool:
    """Builds on every node of a cluster, times on the devices that have the target. See `Pool` and the module.

    The cluster is left open, unless it is the pool's own: then `leave` closes it. Raises PoolError where no device has
    the target.
    """

    def __init__(self, target: Target, nodes: Nodes, leave: Callable[[], None] | None = None) -> None:
        self._target = target
        self._nodes = nodes
        self._leave = leave
        self._build = nodes.ray.remote(_build, num_cpus=1, max_retries=0)
        if not nodes.having(target):
            raise PoolError(f"no node of the Ray cluster is a {target}")

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """See `Pool.measure`."""
        refuse_holding(self._nodes.setup.objects)
        checked_targets(candidates, self._target)
        if not candidates:
            return
        self._nodes.refresh()
        self._check_devices()
        self._nodes.grow(self._target, len(candidates))
        setup = self._nodes.setup
        for keeper in self._nodes.keepers(self._target).values():
            # While it is built; a failure shows again where it matters.
            self._nodes.ray.call(keeper.prepare.remote, self._target, setup, candidates[0].task)
        work = _Work(self._nodes, self._target, self._check_devices)
        try:
            self._add_builds(work, candidates)
            while work:
                n, outcome = work.next()
                if isinstance(outcome, Built):
                    task = candidates[n].task
                    work.add(_Call(n, True, _calling("measure", self._target, setup, task, outcome, best_s)))
                else:
                    yield candidates[n], outcome
        finally:
            work.cancel()

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """See `Pool.compare`."""
        refuse_holding(self._nodes.setup.objects)
        checked_targets(candidates, self._target)
        if not candidates:
            return []
        task = checked_task(candidates)
        self._nodes.refresh()
        self._check_devices()
        work = _Work(self._nodes, self._target, self._check_devices)
        try:
            self._add_builds(work, candidates)
            outcomes = dict(work.next() for _ in candidates)
            work.add(_Call(0, True, _calling("compare", self._target, self._nodes.setup, task, outcomes)))
            _, measured = work.next()
        finally:
            work.cancel()
        if isinstance(measured, Measurement):  # which of them took the keepers with it is not known
            raise PoolError(
                f"task {task.key[:12]} ({task.op}): while its best schedules were compared: {measured.error}"
            )
        return list(measured)

    def devices(self) -> list[DeviceState]:
        """See `Pool.devices`."""
        return self._nodes.devices(self._target)

    def _add_builds(self, work: _Work, candidates: Sequence[Candidate]) -> None:
        for n, candidate in enumerate(candidates):
            work.add(_Call(n, False, self._building(n, candidate)))

    def _building(self, n: int, candidate: Candidate) -> Callable[[Any], Any]:
        """Hand out a build: anywhere, or to the nodes that can, in turn; None while there is none."""

        def hand_out(_: Any) -> Any:
            able = self._nodes.builders(self._target)
            if able is None:
                return self._build.remote(candidate, self._nodes.setup)
            if not able:
                return None
            where = on_node(able[n % len(able)])
            return self._build.options(scheduling_strategy=where).remote(candidate, self._nodes.setup)

        return hand_out

    def _check_devices(self) -> None:
        """Raises PoolError where there is no device, or all are in quarantine, and ClusterLost."""
        self._nodes.ray.check()
        states = self.devices()
        if not states:
            raise PoolError(f"no node of the Ray cluster is a {self._target}")
        ends = [state.quarantined_until for state in states]
        if all(ends):
            first = min((state for state in states if state.quarantined_until), key=_end_s)
            left_s = max(_end_s(first) - time.time(), 0.0)
            text = f"all {len(states)} devices are in quarantine, {first.name} for {left_s:.0f} s: {first.reason}"
            raise PoolError(text, left_s)

    def close(self) -> None:
        """See `Pool.close`. The keepers of a cluster that stays open are there for the next pool."""
        if self._leave:
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end_s(state: DeviceState) -> float:
    return state.quarantined_until.timestamp() if state.quarantined_until else 0.0


@dataclass(slots=True)
class _Call:
    """Something to be done for candidate `n`: `make` hands it out, to a keeper if it needs one."""

    n: int
    needs_keeper: bool
    make: Callable[[Any], Any]
    losses: int = 0  # of workers
    losses_with_node: int = 0
    nodes: frozenset[str] = frozenset()  # that were there when it was handed out


def _calling(method: str, *arguments: Any) -> Callable[[Any], Any]:
    return lambda keeper: getattr(keeper, method).remote(*arguments)


class _Work:
    """Calls that wait or are under way. A keeper has one call at a time, so that its death costs no other."""

    def __init__(self, nodes: Nodes, target: Target, check_devices: Callable[[], None]) -> None:
        self._ray = nodes.ray
        self._nodes = nodes
        self._target = target
        self._check_devices = check_devices
        self._waiting: list[_Call] = []
        self._idle_since_s = time.monotonic()  # since when nothing is under way
        self._under_way: dict[Any, tuple[_Call, str | None]] = {}  # by reference of the result; with its device
        errors = nodes.ray.exceptions
        self._lost = (
            errors.ActorUnschedulableError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RayActorError,
            errors.TaskUnschedulableError,
            errors.WorkerCrashedError,
        )

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way)

    def add(self, call: _Call) -> None:
        """A call to be handed out by `next`, as soon as there is somebody for it."""
        self._waiting.append(call)

    def next(self) -> tuple[int, Any]:
        """Wait for a result: the number of its candidate, and what the call returned. Raises PoolError."""
        while True:
            self._hand_out()
            reference = self._ended()
            if reference is not None and (result := self._result(reference)) is not None:
                return result

    def _ended(self) -> Any:
        """A call that has ended, or None: look again who is there."""
        awaited = [*self._under_way]
        if self._waiting:  # for a keeper; `_hand_out` looks after those that start
            awaited += self._nodes.starting(self._target)
        if awaited:
            ready, _ = self._ray.wait(awaited, num_returns=1, timeout=PAUSE_S)
            if ready:
                return ready[0] if ready[0] in self._under_way else None
        else:
            time.sleep(PAUSE_S / 4)  # another process makes the keeper, or ours is not to be made again yet: no event
        self._nodes.refresh()
        if self._under_way:
            self._idle_since_s = time.monotonic()
        else:
            self._check_devices()
            if time.monotonic() > self._idle_since_s + START_S:
                raise PoolError(f"no device starts to time for {self._target} within {START_S:g} s", START_S)
        return None

    def _result(self, reference: Any) -> tuple[int, Any] | None:
        """What a call came to. None if it has to be done again, elsewhere if there is another device."""
        call, device = self._under_way.pop(reference)
        try:
            return call.n, self._ray.get(reference)
        except ReferenceFailed as error:  # Ray's own kind of it, with the traceback of the other process for a text
            raise ReferenceFailed(error.task_key, str(getattr(error, "cause", error))) from error
        except Quarantined as error:
            assert device is not None
            self._nodes.hold(device, error.reason, error.left_s)
        except self._lost as error:
            self._count(call, device)
            if call.losses == ATTEMPTS or call.losses + call.losses_with_node == MOST_ATTEMPTS:
                return call.n, _lost(self._ray.exceptions, error, call.losses + call.losses_with_node)
        self._waiting.append(call)
        return None

    def _count(self, call: _Call, device: str | None) -> None:
        """A worker of a call is lost; not counted where another process took its keeper along as it ended.

        Ray says so before it knows what became of the node.
        """
        if device is not None and not self._nodes.lose(device):
            return
        if self._nodes.are_there(call.nodes):
            call.losses += 1
        else:
            call.losses_with_node += 1

    def _hand_out(self) -> None:
        if not self._waiting:
            return
        keepers = self._nodes.keepers(self._target)
        busy = {device for _, device in self._under_way.values()}
        idle = [device for device in keepers if device not in busy]
        calls, self._waiting = self._waiting, []
        nodes = self._nodes.ids()
        for call in calls:
            call.nodes = nodes
            if not call.needs_keeper:
                if (reference := self._ray.call(call.make, None)) is None:
                    self._waiting.append(call)
                else:
                    self._under_way[reference] = call, None
            elif idle:
                device = idle.pop()
                self._under_way[self._ray.call(call.make, keepers[device])] = call, device
            else:
                self._waiting.append(call)

    def cancel(self) -> None:
        """Drop what is left. Builds under way are interrupted; keepers finish the one in hand."""
        self._waiting.clear()
        with suppress(ClusterLost):  # then nothing is under way any more
            for reference in self._under_way:
                self._ray.cancel(reference)
        self._under_way.clear()


def _lost(errors: Any, error: Exception, times: int) -> Measurement:
    """The measurement of a candidate whose worker was lost as often as it was handed out."""
    status = Status.OUT_OF_MEMORY if isinstance(error, errors.OutOfMemoryError) else Status.CRASH
    reason = str(error).strip().splitlines()[0]
    return Measurement(status, error=f"took its Ray worker with it, {times} times: {reason}")


_builders: dict[Setup, Builder] = {}
"""The builder of this Ray worker process; its child lives as long as the process."""


def _build(candidate: Candidate, setup: Setup) -> Built | Measurement:
    """The task of a Ray worker."""
    if setup not in _builders:
        while _builders:
            _builders.popitem()[1].close()
        _builders[setup] = Builder(setup.objects, setup.limits, setup.plugins)
    return _builders[setup].build(candidate)

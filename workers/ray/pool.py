"""RayPool: the pool of a Ray cluster.

Builds are tasks, one core each, on any node, as LLVM compiles for every processor everywhere. For GPUs, nodes with one
compile. The keepers of the devices that have the target time (`nodes`). Both own a child that can be killed, since Ray
only counts resources and can't stop running actor methods. Object code travels with the reply of a build, so nodes
share no folder.

Ray's retries are off; losses of workers are handled here. A worker process that dies is most likely not the fault of
its candidate, which ran in a child of it; so the call is submitted once more, and the candidate has crashed only if it
loses its worker again. Losses do not count if a keeper ended with the process that had made it, or a worker with its
node, unless they happen again and again. No loss counts once the cluster is lost (`connection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement, Status

from ..device.builder import Build, Builder, Setup
from ..device.device import DeviceQuarantined
from ..lock import require_unlocked
from ..pool import ClusterLost, DeviceState, PoolError, ReferenceFailed, check_targets, common_task
from .nodes import PAUSE_S, START_S, Nodes, on_node

MAX_LOSSES = 2
"""Losses of a call's worker on nodes that stay, after which its candidate has crashed."""

MAX_LOSSES_IN_ALL = 5
"""Losses in all, after which it has crashed: it may be what takes the nodes down."""


class RayPool(Closeable):
    """Builds on every node of a cluster, times on the devices that have the target. A `Pool`.

    The cluster stays open, unless it is the pool's own: then `leave` closes it. Raises PoolError where no device has
    the target.
    """

    def __init__(self, target: Target, nodes: Nodes, leave: Callable[[], None] | None = None) -> None:
        self._target = target
        self._nodes = nodes
        self._leave = leave
        self._build = nodes.ray.module.remote(num_cpus=1, max_retries=0)(_build)
        if not nodes.offers_for(target):
            raise PoolError(f"no node of the Ray cluster is a {target}")

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        require_unlocked(self._nodes.setup.objects)
        check_targets(candidates, self._target)
        if not candidates:
            return
        self._nodes.refresh()
        self._check_devices()
        self._nodes.grow(self._target, len(candidates))
        setup = self._nodes.setup
        for keeper in self._nodes.keepers(self._target).values():
            # While it is built; a failure shows again where it matters.
            self._nodes.ray.call(keeper.prepare.remote, self._target, setup, candidates[0].task)
        work = _CallQueue(self._nodes, self._target, self._check_devices)
        try:
            self._add_builds(work, candidates)
            while work:
                number, outcome = work.next()
                if isinstance(outcome, Build):
                    task = candidates[number].task
                    work.add(_Call(number, True, _keeper_call("measure", self._target, setup, task, outcome, best_s)))
                else:
                    yield candidates[number], outcome
        finally:
            work.cancel()

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        require_unlocked(self._nodes.setup.objects)
        check_targets(candidates, self._target)
        if not candidates:
            return []
        task = common_task(candidates)
        self._nodes.refresh()
        self._check_devices()
        work = _CallQueue(self._nodes, self._target, self._check_devices)
        try:
            self._add_builds(work, candidates)
            outcomes = dict(work.next() for _ in candidates)
            work.add(_Call(0, True, _keeper_call("compare", self._target, self._nodes.setup, task, outcomes)))
            _, measurements = work.next()
        finally:
            work.cancel()
        if isinstance(measurements, Measurement):  # which of them took the keepers with it is not known
            raise PoolError(
                f"task {task.key[:12]} ({task.op}): while its best schedules were compared: {measurements.error}"
            )
        return list(measurements)

    def devices(self) -> list[DeviceState]:
        return self._nodes.devices(self._target)

    def machine_sampler(self) -> None:
        """Implement `Pool.machine_sampler`: other machines time, or other processes of this one."""

    def _add_builds(self, work: _CallQueue, candidates: Sequence[Candidate]) -> None:
        for number, candidate in enumerate(candidates):
            work.add(_Call(number, False, partial(self._submit_build, number, candidate)))

    def _submit_build(self, number: int, candidate: Candidate, _: Any) -> Any:
        nodes = self._nodes.builders(self._target)
        if nodes is None:
            return self._build.remote(candidate, self._nodes.setup)
        if not nodes:
            return None
        where = on_node(nodes[number % len(nodes)])
        return self._build.options(scheduling_strategy=where).remote(candidate, self._nodes.setup)

    def _check_devices(self) -> None:
        """Raises PoolError where there is no device, or all are in quarantine, and ClusterLost."""
        self._nodes.ray.check()
        states = self.devices()
        if not states:
            raise PoolError(f"no node of the Ray cluster is a {self._target}")
        ends = [state.quarantined_until for state in states]
        if all(ends):
            first = min((state for state in states if state.quarantined_until), key=_end_s)
            remaining_s = max(_end_s(first) - time.time(), 0.0)
            text = f"all {len(states)} devices are in quarantine, {first.name} for {remaining_s:.0f} s: {first.reason}"
            raise PoolError(text, remaining_s)

    def close(self) -> None:
        """See `Pool.close`. Keepers of a cluster that stays open remain for the next pool."""
        if self._leave:
            self._leave()


def _end_s(state: DeviceState) -> float:
    return state.quarantined_until.timestamp() if state.quarantined_until else 0.0


@dataclass(slots=True)
class _Call:
    """A call for candidate `n`: `submit` starts it, on a keeper if it needs one."""

    n: int
    needs_keeper: bool
    submit: Callable[[Any], Any]
    losses: int = 0  # of workers
    losses_with_node: int = 0
    nodes: frozenset[str] = frozenset()  # that were there when it was handed out


def _keeper_call(method: str, *arguments: Any) -> Callable[[Any], Any]:
    return lambda keeper: getattr(keeper, method).remote(*arguments)


class _CallQueue:
    """Waiting and running calls. A keeper has one call at a time, so that its death affects no other."""

    def __init__(self, nodes: Nodes, target: Target, check_devices: Callable[[], None]) -> None:
        self._ray = nodes.ray
        self._nodes = nodes
        self._target = target
        self._check_devices = check_devices
        self._waiting: list[_Call] = []
        self._idle_since_s = time.monotonic()  # since when nothing is under way
        self._running: dict[Any, tuple[_Call, str | None]] = {}  # by reference of the result; with its device
        errors = nodes.ray.exceptions
        self._worker_loss = (
            errors.ActorUnschedulableError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RayActorError,
            errors.TaskUnschedulableError,
            errors.WorkerCrashedError,
        )

    def __bool__(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, call: _Call) -> None:
        """Add a call, which `next` submits as soon as possible."""
        self._waiting.append(call)

    def next(self) -> tuple[int, Any]:
        """Wait for a result: the number of its candidate, and the result. Raises PoolError."""
        while True:
            self._hand_out()
            reference = self._wait()
            if reference is not None and (result := self._result(reference)) is not None:
                return result

    def _wait(self) -> Any:
        """Wait for a call to end; None after a while, or when the devices must be looked up again."""
        references = [*self._running]
        if self._waiting:  # for a keeper; `_hand_out` looks after those that start
            references += self._nodes.starting(self._target)
        if references:
            ready, _ = self._ray.wait(references, num_returns=1, timeout=PAUSE_S)
            if ready:
                return ready[0] if ready[0] in self._running else None
        else:
            time.sleep(PAUSE_S / 4)  # another process makes the keeper, or ours is not to be made again yet: no event
        self._nodes.refresh()
        if self._running:
            self._idle_since_s = time.monotonic()
        else:
            self._check_devices()
            if time.monotonic() > self._idle_since_s + START_S:
                raise PoolError(f"no device starts to time for {self._target} within {START_S:g} s", START_S)
        return None

    def _result(self, reference: Any) -> tuple[int, Any] | None:
        """The result of a call; None if it must be repeated, on another device if there is one."""
        call, device = self._running.pop(reference)
        try:
            return call.n, self._ray.call(self._ray.module.get, reference)
        except ReferenceFailed as error:  # Ray's own kind of it, with the traceback of the other process for a text
            raise ReferenceFailed(error.task_key, str(getattr(error, "cause", error))) from error
        except DeviceQuarantined as error:
            assert device is not None
            self._nodes.set_quarantine(device, error.reason, error.left_s)
        except self._worker_loss as error:
            self._count(call, device)
            if call.losses == MAX_LOSSES or call.losses + call.losses_with_node == MAX_LOSSES_IN_ALL:
                return call.n, _worker_loss(self._ray.exceptions, error, call.losses + call.losses_with_node)
        self._waiting.append(call)
        return None

    def _count(self, call: _Call, device: str | None) -> None:
        """Count the loss of a call's worker, unless another process took its keeper along as it ended.

        Ray reports it before it knows what became of the node.
        """
        if device is not None and not self._nodes.drop_keeper(device):
            return
        if self._nodes.are_alive(call.nodes):
            call.losses += 1
        else:
            call.losses_with_node += 1

    def _hand_out(self) -> None:
        if not self._waiting:
            return
        keepers = self._nodes.keepers(self._target)
        busy = {device for _, device in self._running.values()}
        idle = [device for device in keepers if device not in busy]
        calls, self._waiting = self._waiting, []
        nodes = self._nodes.ids()
        for call in calls:
            call.nodes = nodes
            if not call.needs_keeper:
                if (reference := self._ray.call(call.submit, None)) is None:
                    self._waiting.append(call)
                else:
                    self._running[reference] = call, None
            elif idle:
                device = idle.pop()
                self._running[self._ray.call(call.submit, keepers[device])] = call, device
            else:
                self._waiting.append(call)

    def cancel(self) -> None:
        """Drop waiting calls. Running builds are interrupted; keepers finish the current call."""
        self._waiting.clear()
        with suppress(ClusterLost):  # then nothing is under way any more
            for reference in self._running:
                self._ray.call(self._ray.module.cancel, reference)
        self._running.clear()


def _worker_loss(errors: Any, error: Exception, count: int) -> Measurement:
    """The measurement of a candidate whose worker was lost in each attempt."""
    status = Status.OUT_OF_MEMORY if isinstance(error, errors.OutOfMemoryError) else Status.CRASH
    reason = str(error).strip().splitlines()[0]
    return Measurement(status, error=f"took its Ray worker with it, {count} times: {reason}")


_builders: dict[Setup, Builder] = {}
"""The builder of this Ray worker process; its child lives as long as the process."""


def _build(candidate: Candidate, setup: Setup) -> Build | Measurement:
    """The Ray task of a build."""
    if setup not in _builders:
        while _builders:
            _builders.popitem()[1].close()
        _builders[setup] = Builder(setup)
    return _builders[setup].build(candidate)

"""RayPool: the pool of a Ray cluster, one that it starts on this machine or one that it joins.

Builds are tasks, one core each, on any node; a timer is an actor, one on each node that is the target's machine. Both
own a child that can be killed, since Ray's resources are a matter of counting only and running actor methods can't be
stopped. Object code travels with the reply of a build, so nodes need share no folder.

Ray's retries are off: who is lost at work is dealt with here. A worker process that dies is most likely not the fault
of its candidate, which ran in a child of it; so the candidate is handed out once more, and only if it loses its worker
again is it measured as a crash.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status

from .builder import Builder, Built
from .local import timed_together
from .pool import Limits, ReferenceFailed, checked_targets, checked_task
from .timer import Timer

STORE_BYTES = 128 << 20
"""Ray's object store in a cluster that is started here. Messages are small; by default it takes a third of memory."""

ATTEMPTS = 2
"""How often work is handed out whose worker is lost."""

ANSWER_S = 10.0
"""Time that a cluster has to answer. Ray itself would try for minutes, and print its errors meanwhile."""

START_S = 120.0
"""Time that a node has to start its timer."""


class RayPool:
    """Builds on every node of a cluster, times on those that are the target's machine. See `Pool` and the module.

    Without an `address` it starts a cluster on this machine, which ends with the pool. Nodes of a cluster that is
    joined must have the same tunewright installed; the folder `objects` is made on each. Joining takes the cluster's
    token (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH), unless RAY_AUTH_MODE=disabled says that it has none. Where this
    process is connected to a cluster already, that one is used and left running.

    Raises ModuleNotFoundError without Ray, ConnectionError if the cluster can't be joined, RuntimeError where no node
    is the target's machine.
    """

    def __init__(
        self,
        target: Target,
        objects: Path,
        limits: Limits | None = None,
        plugins: Sequence[str] = (),
        *,
        address: str | None = None,
    ) -> None:
        self._ray = _import_ray()
        self._target = target
        self._settings = (objects, limits or Limits(), tuple(plugins))
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, address)
        self._build = self._ray.remote(num_cpus=1, max_retries=0)(_build)
        self.timers: dict[str, Any] = {}  # actors, by the id of their node
        self._unfit: set[str] = set()  # nodes that are another machine
        try:
            self.find_timers()
        except BaseException:
            self.close()
            raise

    def measure(
        self, candidates: Sequence[Candidate], limit_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """See `Pool.measure`."""
        checked_targets(candidates, self._target)
        if not candidates:
            return
        self.find_timers()
        for timer in self.timers.values():
            timer.prepare.remote(candidates[0].task)  # while it is built; a failure shows again where it matters
        work = _Work(self._ray, self)
        try:
            self._start_builds(work, candidates)
            while work:
                n, outcome = work.next()
                if isinstance(outcome, Built):
                    work.start(_Call(n, True, _measuring(candidates[n].task, outcome, limit_s)))
                else:
                    yield candidates[n], outcome
        finally:
            work.cancel()

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """See `Pool.compare`."""
        checked_targets(candidates, self._target)
        if not candidates:
            return []
        task = checked_task(candidates)
        work = _Work(self._ray, self)
        try:
            self._start_builds(work, candidates)
            outcomes = dict(work.next() for _ in candidates)
            work.start(_Call(0, True, lambda timer: timer.compare_outcomes.remote(task, outcomes)))
            _, measured = work.next()
        finally:
            work.cancel()
        return [measured] * len(candidates) if isinstance(measured, Measurement) else list(measured)

    def _start_builds(self, work: _Work, candidates: Sequence[Candidate]) -> None:
        for n, candidate in enumerate(candidates):
            work.start(_Call(n, False, _building(self._build, candidate, self._settings)))

    def find_timers(self) -> None:
        """See that each node that is the target's machine has its timer. Raises RuntimeError if there is none."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = self._ray
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1}
        fits = {}
        for node in alive - self.timers.keys() - self._unfit:
            here = NodeAffinitySchedulingStrategy(node, soft=False)
            kind = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy=here)(NodeTimer)
            self.timers[node] = kind.remote(self._target.threads, *self._settings)
            fits[self.timers[node].fits.remote(self._target)] = node
        ready, late = ray.wait(list(fits), num_returns=len(fits), timeout=START_S) if fits else ([], [])
        for answer in late:
            self.drop_timer(fits[answer])
        for answer in ready:
            try:
                if not ray.get(answer):
                    self._unfit.add(fits[answer])
                    self.drop_timer(fits[answer])
            except ray.exceptions.RayActorError:  # the node went away meanwhile
                self.drop_timer(fits[answer])
        if not self.timers:
            raise RuntimeError(f"no node of the Ray cluster is a {self._target}")

    def drop_timer(self, node: str) -> None:
        """End the timer of a node, if it still lives."""
        self._ray.kill(self.timers.pop(node))

    def close(self) -> None:
        """See `Pool.close`."""
        if not self._ray.is_initialized():
            return
        for node in list(self.timers):
            self.drop_timer(node)
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(slots=True)
class _Call:
    """Something to be done for candidate `n`: `make` hands it out, to a timer if it needs one."""

    n: int
    needs_timer: bool
    make: Callable[[Any], Any]
    losses: int = 0


def _building(build: Any, candidate: Candidate, settings: tuple[Any, ...]) -> Callable[[Any], Any]:
    return lambda _: build.remote(candidate, *settings)


def _measuring(task: Task, built: Built, limit_s: float | None) -> Callable[[Any], Any]:
    return lambda timer: timer.measure.remote(task, built, limit_s)


class _Work:
    """Calls that wait or are under way. A timer has one call at a time, so that its death costs no other."""

    def __init__(self, ray: Any, pool: RayPool) -> None:
        self._ray = ray
        self._pool = pool
        self._waiting: list[_Call] = []
        self._under_way: dict[Any, tuple[_Call, str | None]] = {}  # by reference of the result; with a timer's node
        errors = ray.exceptions
        self._lost = (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
            errors.ObjectLostError,
        )

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way)

    def start(self, call: _Call) -> None:
        """Hand a call out as soon as there is somebody for it."""
        self._waiting.append(call)
        self._hand_out()

    def next(self) -> tuple[int, Any]:
        """Wait for a result: the number of its candidate, and what the call returned."""
        while True:
            self._hand_out()
            [reference], _ = self._ray.wait(list(self._under_way), num_returns=1)
            call, node = self._under_way.pop(reference)
            try:
                return call.n, self._ray.get(reference)
            except ReferenceFailed as error:  # Ray's own kind of it, with the traceback of the other process for a text
                raise ReferenceFailed(error.task_key, str(getattr(error, "cause", error))) from error
            except self._lost as error:
                if node is not None:
                    self._pool.drop_timer(node)
                call.losses += 1
                if call.losses == ATTEMPTS:
                    return call.n, _lost(self._ray, error)
                self._waiting.append(call)

    def _hand_out(self) -> None:
        if not self._pool.timers:
            self._pool.find_timers()
        busy = {node for _, node in self._under_way.values()}
        idle = [node for node in self._pool.timers if node not in busy]
        calls, self._waiting = self._waiting, []
        for call in calls:
            if not call.needs_timer:
                self._under_way[call.make(None)] = call, None
            elif idle:
                node = idle.pop()
                self._under_way[call.make(self._pool.timers[node])] = call, node
            else:
                self._waiting.append(call)

    def cancel(self) -> None:
        """Drop what is left. Builds under way are interrupted; timers finish the one in hand."""
        self._waiting.clear()
        for reference, (_, node) in self._under_way.items():
            if node is None:
                self._ray.cancel(reference)
        self._under_way.clear()


def _lost(ray: Any, error: Exception) -> Measurement:
    """The measurement of a candidate whose worker was lost as often as it was handed out."""
    status = Status.OUT_OF_MEMORY if isinstance(error, ray.exceptions.OutOfMemoryError) else Status.CRASH
    reason = str(error).strip().splitlines()[0]
    return Measurement(status, error=f"took its Ray worker with it, {ATTEMPTS} times: {reason}")


class NodeTimer(Timer):
    """The timer of one node."""

    def fits(self, target: Target) -> bool:
        """Whether this node is the target's machine."""
        here = detect()
        same = (here.triple, here.cpu, here.features) == (target.triple, target.cpu, target.features)
        return same and len(available_cores()) >= target.threads

    def compare_outcomes(self, task: Task, outcomes: dict[int, Built | Measurement]) -> list[Measurement]:
        """See `timed_together`."""
        return timed_together(self, task, outcomes)


_builders: dict[tuple[Any, ...], Builder] = {}
"""The builder of this Ray worker process, under its settings; its child lives as long as the process."""


def _build(candidate: Candidate, *settings: Any) -> Built | Measurement:
    """The task of a Ray worker."""
    if settings not in _builders:
        while _builders:
            _builders.popitem()[1].close()
        _builders[settings] = Builder(*settings)
    return _builders[settings].build(candidate)


def _import_ray() -> Any:
    if "ray" not in sys.modules:  # which reads it as it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the Ray pool needs Ray: pip install 'tunewright[ray]'") from error
    return ray


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
        raise ConnectionError(
            f"the Ray cluster at {address} wants its token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    except ValueError as error:
        raise ConnectionError(f"no address of a Ray cluster is like {address}: {error}") from error


def _check_answers(address: str) -> None:
    """Raises ConnectionError where nobody listens at HOST:PORT. Ray looks the other forms up itself."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from error

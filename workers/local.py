"""LocalPool: the pool of one machine, without Ray. LocalMachine: this machine, for pools of its targets."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement

from .device.builder import Build, Builder, Setup
from .device.device import DeviceHealth, DeviceQuarantined, TimingDevice, own_name
from .lock import require_unlocked
from .machine_sample import MachineSample
from .measure.machine_watch import MachineWatch
from .pool import DeviceState, Limits, PoolError, ReferenceFailed, Unfit, can_time, check_targets, common_task
from .sandbox.process import ChildStartError, RequestStopped

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class LocalPool(Closeable):
    """Builds a batch on all cores, in a child each, then times it in one more child while they are idle. A `Pool`.

    `objects` is the folder of the object cache; it is made if need be. `plugins` are modules that the children import.
    `health` is the state of this machine in earlier pools.
    """

    def __init__(
        self,
        target: Target,
        objects: Path,
        limits: Limits | None = None,
        plugins: Sequence[str] = (),
        health: DeviceHealth | None = None,
    ) -> None:
        setup = Setup(objects, limits or Limits(), tuple(plugins))
        self._target = target
        self._objects = objects
        self._health = health or DeviceHealth()
        self._device = TimingDevice(target, setup, self._health)
        self._builders = [Builder(setup) for _ in available_cores()]
        self._idle: SimpleQueue[Builder] = SimpleQueue()
        for builder in self._builders:
            self._idle.put(builder)
        self._unfinished: set[Future[Any]] = set()
        # One thread more, for the reference of the task.
        self._threads = ThreadPoolExecutor(len(self._builders) + 1, thread_name_prefix="tunewright-build")

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """Failures to build come first, then the others in the order given. See `Pool.measure`."""
        require_unlocked(self._objects)
        check_targets(candidates, self._target)
        if not candidates:
            return
        with _require_device():
            self._device.admit()
        finished: dict[int, Build] = {}
        with self._submit_builds(candidates, prepare=True) as futures:
            for future in as_completed(futures):
                match future.result():
                    case Measurement() as failure:
                        yield candidates[futures[future]], failure
                    case outcome:
                        finished[futures[future]] = outcome
        for number in sorted(finished):
            with _require_device():
                measurement = self._device.measure(candidates[number].task, finished[number], best_s)
            yield candidates[number], measurement

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        require_unlocked(self._objects)
        check_targets(candidates, self._target)
        if not candidates:
            return []
        task = common_task(candidates)
        with _require_device():
            self._device.admit()
        with self._submit_builds(candidates) as futures:
            outcomes = {number: future.result() for future, number in futures.items()}
        with _require_device():
            return compare_builds(self._device, task, outcomes)

    def devices(self) -> list[DeviceState]:
        target = self._target
        if target.kind != CUDA:
            target = replace(target, threads=len(available_cores()))
        return [self._health.state(own_name(), target)]

    def machine_sampler(self) -> Callable[[], MachineSample]:
        if self._target.kind != CUDA:
            return MachineWatch(self._target.threads).sample
        from .measure.gpu import gpu_watch

        return gpu_watch(self._target.threads).sample

    @contextmanager
    def _submit_builds(
        self, candidates: Sequence[Candidate], prepare: bool = False
    ) -> Iterator[dict[Future[Build | Measurement], int]]:
        """Futures of builds, with the numbers of their candidates; at the end unfinished ones are stopped."""
        preparations = [self._submit(self._prepare, candidates[0].task)] if prepare else []
        futures = {self._submit(self._build, candidate): number for number, candidate in enumerate(candidates)}
        try:
            yield futures
        finally:
            self._stop({future for future in futures if not future.cancel()})
            wait([preparation for preparation in preparations if not preparation.cancel()])

    def _submit(self, function: Callable[[Argument], Result], argument: Argument) -> Future[Result]:
        future = self._threads.submit(function, argument)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _stop(self, unwanted: set[Future[Any]]) -> None:
        """End work by killing the children that do it; they restart when needed."""
        unfinished = {future for future in unwanted if not future.done()}
        while unfinished:
            for builder in self._builders:
                builder.kill()
            self._device.kill()
            # Again and again, as one may have been about to begin.
            _, unfinished = wait(unfinished, timeout=0.1)

    def _prepare(self, task: Task) -> None:
        """Compute the reference early. A failure is reported where a candidate needs it, which fails at once."""
        with suppress(ChildStartError, ReferenceFailed, RequestStopped, Unfit):
            self._device.prepare(task)

    def _build(self, candidate: Candidate) -> Build | Measurement:
        builder = self._idle.get()
        try:
            return builder.build(candidate)
        finally:
            self._idle.put(builder)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stop(set(self._unfinished))
        self._threads.shutdown()
        for builder in self._builders:
            builder.close()
        self._device.close()


class LocalMachine(Closeable):
    """This machine as `Machines`; the arguments are those of `LocalPool`."""

    def __init__(self, objects: Path, limits: Limits | None = None, plugins: Sequence[str] = ()) -> None:
        self._setup = Setup(objects, limits or Limits(), tuple(plugins))
        self._health = DeviceHealth()
        self._own = detect()

    def targets(self) -> list[Target]:
        return [] if self._health.left_s else [self._own]

    def devices(self) -> list[DeviceState]:
        return [self._health.state(own_name(), self._own)]

    def rest(self, device: str, reason: str, left_s: float) -> None:
        if device == own_name():
            self._health.rest(reason, left_s)

    def pool(self, target: Target) -> LocalPool:
        if not can_time(self._own, target):
            raise PoolError(f"this machine is a {self._own}, not a {target}")
        return LocalPool(target, self._setup.objects, self._setup.limits, self._setup.plugins, self._health)

    def close(self) -> None:
        """Implement `Machines.close`."""


@contextmanager
def _require_device() -> Iterator[None]:
    """Raise PoolError where the only device is in quarantine."""
    try:
        yield
    except DeviceQuarantined as quarantined:
        text = f"{own_name()} is in quarantine for {quarantined.left_s:.0f} s: {quarantined.reason}"
        raise PoolError(text, quarantined.left_s) from quarantined


def compare_builds(device: TimingDevice, task: Task, outcomes: dict[int, Build | Measurement]) -> list[Measurement]:
    """Compare what was built. `outcomes` are numbered from 0; those that failed stay as they are."""
    builds = {number: outcome for number, outcome in sorted(outcomes.items()) if isinstance(outcome, Build)}
    measurements = dict(zip(builds, device.compare(task, list(builds.values())) if builds else [], strict=True))
    return [
        outcome if isinstance(outcome, Measurement) else measurements[number]
        for number, outcome in sorted(outcomes.items())
    ]

"""LocalPool: the pool of one machine, without Ray. LocalMachine: this machine, for pools of any target of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from tunewright.codegen.host import available_cores, detect
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement

from .builder import Builder, Built
from .device import Device, Health, Quarantined, Setup, own_name
from .lock import refuse_holding
from .pool import DeviceState, Limits, PoolError, ReferenceFailed, Unfit, checked_targets, checked_task, has
from .process import NotStarted, Stopped

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class LocalPool:
    """Builds a batch on all cores, a child each, then times it in one more child while they rest. See `Pool`.

    `objects` is the folder of the object cache; it is made if need be. `plugins` are modules that the children import.
    `health` is what earlier pools found of this machine.
    """

    def __init__(
        self,
        target: Target,
        objects: Path,
        limits: Limits | None = None,
        plugins: Sequence[str] = (),
        health: Health | None = None,
    ) -> None:
        limits = limits or Limits()
        self._target = target
        self._objects = objects
        self._health = health or Health()
        self._device = Device(target, Setup(objects, limits, tuple(plugins)), self._health)
        self._builders = [Builder(objects, limits, plugins) for _ in available_cores()]
        self._idle: SimpleQueue[Builder] = SimpleQueue()
        for builder in self._builders:
            self._idle.put(builder)
        self._unfinished: set[Future[Any]] = set()
        # One thread more: the reference of the task is computed while its candidates are built.
        self._threads = ThreadPoolExecutor(len(self._builders) + 1, thread_name_prefix="tunewright-build")

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """See `Pool.measure`. Failures to build come first, then the others in the order given."""
        refuse_holding(self._objects)
        checked_targets(candidates, self._target)
        if not candidates:
            return
        with _alone():
            self._device.admit()
        built: dict[int, Built] = {}
        with self._building(candidates, prepare=True) as builds:
            for build in as_completed(builds):
                match build.result():
                    case Measurement() as failure:
                        yield candidates[builds[build]], failure
                    case outcome:
                        built[builds[build]] = outcome
        for n in sorted(built):
            with _alone():
                measured = self._device.measure(candidates[n].task, built[n], best_s)
            yield candidates[n], measured

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """See `Pool.compare`."""
        refuse_holding(self._objects)
        checked_targets(candidates, self._target)
        if not candidates:
            return []
        task = checked_task(candidates)
        with _alone():
            self._device.admit()
        with self._building(candidates) as builds:
            outcomes = {n: build.result() for build, n in builds.items()}
        with _alone():
            return timed_together(self._device, task, outcomes)

    def devices(self) -> list[DeviceState]:
        """See `Pool.devices`."""
        target = self._target
        if target.kind != CUDA:
            target = replace(target, threads=len(available_cores()))
        return [self._health.state(own_name(), target)]

    @contextmanager
    def _building(
        self, candidates: Sequence[Candidate], prepare: bool = False
    ) -> Iterator[dict[Future[Built | Measurement], int]]:
        """Builds under way, with the numbers of their candidates; those that are not waited for are dropped."""
        preparing = [self._submit(self._prepare, candidates[0].task)] if prepare else []
        builds = {self._submit(self._build, candidate): n for n, candidate in enumerate(candidates)}
        try:
            yield builds
        finally:
            self._stop({build for build in builds if not build.cancel()})
            wait([one for one in preparing if not one.cancel()])

    def _submit(self, function: Callable[[Argument], Result], argument: Argument) -> Future[Result]:
        future = self._threads.submit(function, argument)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _stop(self, unwanted: set[Future[Any]]) -> None:
        """End work by ending the children that do it, which come back when they are needed."""
        unfinished = {future for future in unwanted if not future.done()}
        while unfinished:
            for builder in self._builders:
                builder.kill()
            self._device.kill()
            # More than once: one may have been about to begin.
            _, unfinished = wait(unfinished, timeout=0.1)

    def _prepare(self, task: Task) -> None:
        """Ahead of time: what fails fails again, at once, where a candidate needs it, and is reported there."""
        with suppress(NotStarted, ReferenceFailed, Stopped, Unfit):
            self._device.prepare(task)

    def _build(self, candidate: Candidate) -> Built | Measurement:
        builder = self._idle.get()
        try:
            return builder.build(candidate)
        finally:
            self._idle.put(builder)

    def close(self) -> None:
        """See `Pool.close`."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stop(set(self._unfinished))
        self._threads.shutdown()
        for builder in self._builders:
            builder.close()
        self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalMachine:
    """This machine. See `Machines`; the arguments are those of `LocalPool`."""

    def __init__(self, objects: Path, limits: Limits | None = None, plugins: Sequence[str] = ()) -> None:
        self._setup = Setup(objects, limits or Limits(), tuple(plugins))
        self._health = Health()
        self._own = detect()

    def targets(self) -> list[Target]:
        """See `Machines.targets`."""
        return [] if self._health.left_s else [self._own]

    def devices(self) -> list[DeviceState]:
        """See `Machines.devices`."""
        return [self._health.state(own_name(), self._own)]

    def pool(self, target: Target) -> LocalPool:
        """See `Machines.pool`."""
        if not has(self._own, target):
            raise PoolError(f"this machine is a {self._own}, not a {target}")
        return LocalPool(target, self._setup.objects, self._setup.limits, self._setup.plugins, self._health)

    def close(self) -> None:
        """See `Machines.close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def _alone() -> Iterator[None]:
    """There is no other device: raises PoolError where this one is quarantined."""
    try:
        yield
    except Quarantined as quarantined:
        text = f"{own_name()} is in quarantine for {quarantined.left_s:.0f} s: {quarantined.reason}"
        raise PoolError(text, quarantined.left_s) from quarantined


def timed_together(device: Device, task: Task, outcomes: dict[int, Built | Measurement]) -> list[Measurement]:
    """The outcomes of builds, 0 to n - 1, with those that were built compared."""
    built = {n: outcome for n, outcome in sorted(outcomes.items()) if isinstance(outcome, Built)}
    figures = dict(zip(built, device.compare(task, list(built.values())) if built else [], strict=True))
    return [outcome if isinstance(outcome, Measurement) else figures[n] for n, outcome in sorted(outcomes.items())]

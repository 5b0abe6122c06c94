"""Timer: checks and times builds in a child; each device has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status

from ..lock import HostLock
from ..measure import sampling
from ..measure.race import LONG_RUN_S, SLOWER_RATIO
from ..pool import ReferenceFailed, Unfit
from ..sandbox.process import Child, ChildStartError, RequestFailed, RequestStopped
from .builder import Build, Setup, request_build
from .comparison import Comparison

MAX_MEASUREMENTS = 10_000
"""Stored measurements, by which identical objects are timed once."""

MAX_FASTEST = 100
"""Tasks whose fastest artifact is stored, to be loaded into a new child."""


class FastestBuild(NamedTuple):
    """The fastest build of a task with its stored time, and its anchor."""

    build: Build
    time_s: float
    anchor: FastestBuild | None = None

    def to_json(self) -> list[dict[str, Any]]:
        """The argument `known` of `measure.recall`."""
        own = {"artifact": self.build.artifact, "time_s": self.time_s}
        return [*(self.anchor.to_json() if self.anchor else []), own]


class Timer:
    """Owns the child that times one artifact after the other, on the threads of a target.

    Meanwhile the lock of the folder of objects stops builders of this machine.
    """

    def __init__(self, target: Target, setup: Setup) -> None:
        self._threads = target.threads
        self._is_gpu = target.kind == CUDA
        self._setup = setup
        self._limits = setup.limits
        self._lock = HostLock(setup.objects)
        self._child = setup.child()
        self._measurements: dict[tuple[str, str], Measurement] = {}
        self._prepared_for: tuple[int | None, str] | None = None  # the process and task of the last `prepare`
        self._fastest: dict[str, FastestBuild] = {}  # by task key
        self._recalled_for: tuple[int | None, str] | None = None  # the process and task of the last `recall`
        self._reference_faults: dict[str, str] = {}  # by task key: the next candidate fails at once

    def prepare(self, task: Task) -> None:
        """Compute the reference of a task, which its candidates need, unless it is ready.

        Raises ReferenceFailed, Unfit, and RequestStopped if it is killed meanwhile.
        """
        if self._prepared_for == (self._child.pid, task.key):
            return
        with self._lock.shared():
            self._prepare(self._child, task)
        self._prepared_for = self._child.pid, task.key

    def measure(self, task: Task, build: Build, best_s: float | None = None) -> Measurement:
        """Check and time one candidate, unless the same object was timed before. See `Pool.measure`. Raises Unfit."""
        key = (task.key, build.identity)
        measurement = self._measurements.pop(key, None)
        if measurement is None or not _is_final(measurement, best_s):
            measurement = self._measure(task, build, best_s)
        self._measurements[key] = measurement
        if len(self._measurements) > MAX_MEASUREMENTS:
            self._measurements.pop(next(iter(self._measurements)))
        return replace(measurement, build_s=build.build_s)

    def _measure(self, task: Task, build: Build, best_s: float | None) -> Measurement:
        limits = self._limits
        self.prepare(task)
        self._recall(task)
        try:
            with self._lock.exclusive():
                reply = self._child.request(
                    "measure",
                    limits.run_s,
                    task_key=task.key,
                    artifact=build.artifact,
                    threads=self._threads,
                    budget_s=limits.timing_s,
                    best_s=best_s,
                )
        except RequestStopped:
            raise
        except RequestFailed as failure:
            if failure.status is Status.OUT_OF_MEMORY:
                self._child.close()  # its memory is full of things that the next candidate does not need
            return build.failure(failure, self._child.provenance)
        if "unprepared" in reply:  # the child was killed from outside after `prepare`
            self._prepared_for = self._recalled_for = None
            return self._measure(task, build, best_s)
        measurement = Measurement.from_json(reply["measurement"])
        if reply["is_fastest"]:
            assert measurement.median_s is not None
            previous = self._fastest.pop(task.key, None)
            anchor = None if previous is None or not reply["has_anchor"] else previous.anchor or previous
            self._fastest[task.key] = FastestBuild(build, measurement.median_s, anchor)
            if len(self._fastest) > MAX_FASTEST:
                self._fastest.pop(next(iter(self._fastest)))
        if measurement.status is Status.WRONG_RESULT:
            self._child.close()  # it may have written anywhere
        return measurement

    def _recall(self, task: Task) -> None:
        """Load the fastest build into a child that may not have it: a new one, or one that timed other tasks."""
        fastest, recalled_for = self._fastest.get(task.key), (self._child.pid, task.key)
        if fastest is not None and self._recalled_for != recalled_for:
            arguments = {"task_key": task.key, "known": fastest.to_json(), "threads": self._threads}
            try:
                with self._lock.exclusive():
                    self._child.request("recall", self._limits.run_s, **arguments)
            except RequestStopped:
                raise
            except RequestFailed:  # it worked before, so the waiting candidate is not to blame
                del self._fastest[task.key]
                self.prepare(task)
        self._recalled_for = self._child.pid, task.key

    def run_canary(self, canary: Candidate) -> str | None:
        """Measure a candidate that is known to work on this machine: its failure, or None.

        Stored measurements are not used, and it runs in the child of the next candidate. Raises RequestStopped, Unfit.
        """
        try:
            with self._lock.shared():
                build = request_build(self._child, self._setup, canary)
            if isinstance(build, Measurement):
                return build.error
            measurement = self._measure(canary.task, build, best_s=0.0)
        except RequestStopped:
            raise
        except (RequestFailed, ChildStartError, ReferenceFailed) as failure:
            self._child.close()
            return str(failure).splitlines()[0]
        return None if measurement.status is Status.OK else f"{measurement.status}: {measurement.error}"

    def forget_failures(self) -> None:
        """Forget failures of candidates and references, as the device was to blame."""
        self._reference_faults.clear()
        self._measurements = {
            key: measurement for key, measurement in self._measurements.items() if measurement.status is Status.OK
        }

    def compare(self, task: Task, builds: Sequence[Build]) -> list[Measurement]:
        """Check and time candidates in turns, in one fresh child after the other. See `Pool.compare`.

        Raises ReferenceFailed, also where the child dies each time before a candidate has run, and ChildStartError;
        neither after the fewest children, which are enough. Raises Unfit.
        """
        comparison = Comparison(task, builds, self._threads, self._limits)
        while not comparison.is_over:
            with self._setup.child(once=True) as child:
                try:
                    with self._lock.shared(), comparison.count_time():
                        self._prepare(child, task)
                except (ReferenceFailed, ChildStartError):
                    if comparison.is_enough:
                        break
                    raise
                with self._lock.exclusive():
                    comparison.time_in(child)
        return comparison.measurements()

    def _prepare(self, child: Child, task: Task) -> None:
        """Raises ReferenceFailed, at once if it was raised before, and Unfit."""
        if fault := self._reference_faults.get(task.key):
            raise ReferenceFailed(task.key, fault)
        is_used = child.pid is not None
        self._open(child)
        try:
            child.request("prepare", self._limits.reference_s, task=task.to_json())
        except RequestStopped:
            raise
        except RequestFailed as failure:
            child.close()
            if is_used and failure.status is Status.OUT_OF_MEMORY:  # examples of other tasks may fill its memory
                self._prepare(child, task)
                return
            limits = f"{self._limits.reference_s:g} s and {child.memory_bytes >> 20:,} MiB"
            fault = f"task {task.key[:12]} ({task.op}): its reference can't be computed within {limits}: {failure}"
            self._reference_faults[task.key] = fault
            raise ReferenceFailed(task.key, fault) from failure

    def _open(self, child: Child) -> None:
        """Start the GPU, within the longest limit, as the first process on it waits for the system. Raises Unfit."""
        if not self._is_gpu:
            return
        try:
            child.request("open_gpu", self._limits.reference_s)
        except RequestStopped:
            raise
        except RequestFailed as failure:
            child.close()
            raise Unfit(str(failure)) from failure

    def kill(self) -> None:
        """Stop the current request, from any thread, unless it is of a comparison."""
        self._child.kill()

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _is_final(measurement: Measurement, best_s: float | None) -> bool:
    """Whether timing again would show nothing new: it was not given up for a limit that no longer applies."""
    if measurement.median_s is None:
        return True
    min_samples = sampling.MIN_SAMPLES_OF_LONG_RUNS if measurement.median_s >= LONG_RUN_S else sampling.MIN_SAMPLES
    if len(measurement.samples_s) >= min_samples:
        return True
    return best_s is not None and measurement.median_s > SLOWER_RATIO * best_s

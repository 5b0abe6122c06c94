"""Timer: checks and times what was built, in a child; the one of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status

from . import sampling
from .builder import Built
from .comparing import Comparison
from .lock import HostLock
from .pool import Limits, ReferenceFailed, Unfit
from .process import Child, ChildLimits, Failed, NotStarted, Stopped
from .racing import CLEARLY, LONG_S
from .wire import candidate_json

REMEMBERED = 10_000
"""Measurements kept, so that identical objects are timed once."""

RECALLED = 100
"""Tasks whose fastest artifact is kept, for a child that comes after the one that found it."""


class Known(NamedTuple):
    """The fastest artifact of a task and what was noted of it, and the one that is its standard."""

    built: Built
    time_s: float
    standard: Known | None = None

    def to_json(self) -> list[dict[str, Any]]:
        """As `measure.recall` takes it."""
        own = {"artifact": self.built.artifact, "time_s": self.time_s}
        return [*(self.standard.to_json() if self.standard else []), own]


class Timer:
    """Owns the child that one artifact after the other is timed in, on `threads` threads.

    `objects` is the folder whose lock keeps builders of this machine still meanwhile.
    """

    def __init__(
        self, threads: int, objects: Path, limits: Limits, plugins: Sequence[str] = (), *, is_gpu: bool = False
    ) -> None:
        self._threads = threads
        self._is_gpu = is_gpu
        self._objects = objects
        self._limits = limits
        self._plugins = tuple(plugins)
        self._lock = HostLock(objects)
        self._child = Child(ChildLimits(limits.memory_bytes), plugins)
        self._known: dict[tuple[str, str], Measurement] = {}
        self._ready: tuple[int | None, str] | None = None  # process and task that were prepared last
        self._fastest: dict[str, Known] = {}  # by task key: what others race against
        self._recalled: tuple[int | None, str] | None = None  # process and task that it was handed to last
        self._no_reference: dict[str, str] = {}  # by task key, why: the next candidate shall not wait for it again

    def prepare(self, task: Task) -> None:
        """Get ready to time candidates of a task: computes its reference, unless that is at hand.

        Raises ReferenceFailed, Unfit, and Stopped if it is killed meanwhile.
        """
        if self._ready == (self._child.pid, task.key):
            return
        with self._lock.building():
            self._prepare(self._child, task)
        self._ready = self._child.pid, task.key

    def measure(self, task: Task, built: Built, best_s: float | None = None) -> Measurement:
        """Check and time one candidate, or find that the same object was timed before. See `Pool.measure`.

        Raises Unfit.
        """
        key = (task.key, built.identity)
        known = self._known.pop(key, None)
        if known is None or not _final(known, best_s):
            known = self._measure(task, built, best_s)
        self._known[key] = known
        if len(self._known) > REMEMBERED:
            self._known.pop(next(iter(self._known)))
        return replace(known, build_s=built.build_s)

    def _measure(self, task: Task, built: Built, best_s: float | None) -> Measurement:
        limits = self._limits
        self.prepare(task)
        self._recall(task)
        try:
            with self._lock.timing():
                reply = self._child.request(
                    "measure",
                    limits.run_s,
                    task_key=task.key,
                    artifact=built.artifact,
                    threads=self._threads,
                    budget_s=limits.timing_s,
                    best_s=best_s,
                )
        except Stopped:
            raise
        except Failed as failed:
            if failed.status is Status.OUT_OF_MEMORY:
                self._child.close()  # what fills it is not the next candidate's
            return built.failed(failed, self._child.provenance)
        if "unprepared" in reply:  # the child was killed from outside, after it had prepared
            self._ready = self._recalled = None
            return self._measure(task, built, best_s)
        measurement = Measurement.from_json(reply["measurement"])
        if reply["is_fastest"]:
            assert measurement.median_s is not None
            before = self._fastest.pop(task.key, None)
            standard = None if reply["is_standard"] or before is None else before.standard or before
            self._fastest[task.key] = Known(built, measurement.median_s, standard)
            if len(self._fastest) > RECALLED:
                self._fastest.pop(next(iter(self._fastest)))
        if measurement.status is Status.WRONG_RESULT:
            self._child.close()  # it may have written anywhere
        return measurement

    def _recall(self, task: Task) -> None:
        """Hand the fastest one known to a child that may not know it: one that is new, or that timed other tasks."""
        fastest, here = self._fastest.get(task.key), (self._child.pid, task.key)
        if fastest is not None and self._recalled != here:
            arguments = {"task_key": task.key, "known": fastest.to_json(), "threads": self._threads}
            try:
                with self._lock.timing():
                    self._child.request("recall", self._limits.run_s, **arguments)
            except Stopped:
                raise
            except Failed:  # it worked before: no fault of the candidate that waits
                del self._fastest[task.key]
                self.prepare(task)
        self._recalled = self._child.pid, task.key

    def try_out(self, canary: Candidate) -> str | None:
        """What goes wrong with a candidate that is known to work on this machine; None: nothing does.

        Past what is remembered, and in the child that the next candidate meets. Raises Stopped, Unfit.
        """
        try:
            with self._lock.building():
                reply = self._child.request(
                    "build", self._limits.build_s, candidate=candidate_json(canary), objects=str(self._objects)
                )
            if "error" in reply:
                return str(reply["error"])
            built = Built(reply["artifact"], reply["identity"], reply["build_s"])
            measured = self._measure(canary.task, built, best_s=0.0)
        except Stopped:
            raise
        except (Failed, NotStarted, ReferenceFailed) as failure:
            self._child.close()
            return str(failure).splitlines()[0]
        return None if measured.status is Status.OK else f"{measured.status}: {measured.error}"

    def forget_failures(self) -> None:
        """Of candidates and of references: they were not their own."""
        self._no_reference.clear()
        self._known = {key: known for key, known in self._known.items() if known.status is Status.OK}

    def compare(self, task: Task, several: Sequence[Built]) -> list[Measurement]:
        """Check and time candidates in turns, in one fresh child after the other. See `Pool.compare`.

        Raises ReferenceFailed, also where the child dies each time before a candidate has run, and NotStarted; neither
        after the fewest children, which are enough. Raises Unfit.
        """
        comparison = Comparison(task, several, self._threads, self._limits)
        while not comparison.is_over:
            with Child(ChildLimits(self._limits.memory_bytes), self._plugins, once=True) as child:
                try:
                    with self._lock.building(), comparison.spending():
                        self._prepare(child, task)
                except (ReferenceFailed, NotStarted):
                    if comparison.is_enough:
                        break
                    raise
                with self._lock.timing():
                    comparison.go_on(child)
        return comparison.measurements()

    def _prepare(self, child: Child, task: Task) -> None:
        """Raises ReferenceFailed, after the first time at once, and Unfit."""
        if why := self._no_reference.get(task.key):
            raise ReferenceFailed(task.key, why)
        used = child.pid is not None
        self._open(child)
        try:
            child.request("prepare", self._limits.reference_s, task=task.to_json())
        except Stopped:
            raise
        except Failed as failed:
            child.close()
            if used and failed.status is Status.OUT_OF_MEMORY:  # other tasks' examples may have taken the room
                self._prepare(child, task)
                return
            within = f"{self._limits.reference_s:g} s and {child.memory_bytes >> 20:,} MiB"
            why = f"task {task.key[:12]} ({task.op}): its reference can't be computed within {within}: {failed}"
            self._no_reference[task.key] = why
            raise ReferenceFailed(task.key, why) from failed

    def _open(self, child: Child) -> None:
        """Within the longest limit: the system starts a GPU for the first process that asks. Raises Unfit."""
        if not self._is_gpu:
            return
        try:
            child.request("open_gpu", self._limits.reference_s)
        except Stopped:
            raise
        except Failed as failed:
            child.close()
            raise Unfit(str(failed)) from failed

    def kill(self) -> None:
        """Stop what is under way, from any thread, but a comparison."""
        self._child.kill()

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _final(known: Measurement, best_s: float | None) -> bool:
    """Whether timing again would tell nothing new: it wasn't given up for a limit that is no more."""
    if known.median_s is None:
        return True
    fewest = sampling.FEWEST_LONG if known.median_s >= LONG_S else sampling.FEWEST
    if len(known.samples_s) >= fewest:
        return True
    return best_s is not None and known.median_s > CLEARLY * best_s

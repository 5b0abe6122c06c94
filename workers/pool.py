"""Pool: what measures candidates, wherever its processes are. Machines: where pools can be opened."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may cost before it is stopped, and how long a sound one is timed."""

    build_s: float = 30.0  # lowering and compiling it
    run_s: float = 20.0  # checking and timing it
    reference_s: float = 300.0  # computing its task's outputs, once for many candidates; starting a GPU has as long
    memory_bytes: int | None = None  # of the process it is in; None: half of the machine's
    timing_s: float = 0.02  # taking samples; less once it is clear what is faster, more where the fewest take longer
    quarantine_s: float = 60.0  # for which a device that fails its canary is not used; twice as long the next time


class PoolError(Exception):
    """Nobody is there to measure: the cluster can't be joined, no device has the target, all are in quarantine.

    The text is one line for people. `retry_s`: after that long it may be different; None: not by itself.
    """

    def __init__(self, text: str, retry_s: float | None = None) -> None:
        super().__init__(text, retry_s)
        self.retry_s = retry_s
        self._text = text

    def __str__(self) -> str:
        return self._text


class ClusterLost(PoolError):
    """The cluster that the machines belong to is gone, and with it all that was opened there. Nobody is to blame."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device that candidates are timed on, as it was last heard of."""

    name: str  # of the machine, and of the device on it
    target: Target  # with all its threads
    quarantined_until: datetime | None = None  # UTC; None: it is in use
    reason: str = ""  # of the quarantine, one line


class ReferenceFailed(Exception):
    """What the outputs of a task must be can't be computed within the limits. The text is one line for people.

    It tells nothing about the candidates of the task, which have no measurement then.
    """

    def __init__(self, task_key: str, text: str) -> None:
        super().__init__(task_key, text)
        self.task_key = task_key
        self._text = text

    def __str__(self) -> str:
        return self._text


class Unfit(Exception):
    """A device is in no state to time anything. One line for people.

    It tells nothing about what was to be timed.
    """


class Pool(Protocol):
    """Builds, checks and times candidates of one target in processes that can be killed.

    A candidate that crashes, hangs, eats memory or computes the wrong thing costs only itself: it gets a Measurement
    with that status, and the others go on. A time is never given for an output that was not checked. Timing and
    building don't overlap on one machine, whatever pools are at work there with the same folder of objects. Candidates
    of one task that turn out to be the same object code are timed once and share the figures.

    A task without a reference raises ReferenceFailed, from `measure` and from `compare`: what was yielded before stays
    final, the other candidates of the call have no measurement. The same task fails at once the next time.

    No failure is put down to a candidate, nor to a task, before its device has shown that it works: see `device`. One
    that doesn't, or is Unfit, is quarantined, and its work goes to others. Where there is none left, PoolError is
    raised, from `measure` and from `compare`: again what was yielded before is final, the rest has no measurement.

    An illegal schedule raises Illegal, a candidate of another target ValueError, and a thread that holds the lock of
    the folder of objects RuntimeError: these are bugs of the caller.
    A pool serves one thread at a time. Every implementation passes `tests/workers/test_pool.py`.
    """

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """Each candidate once with its measurement, in the order in which they finish. What was yielded is final.

        Work is done while the iterator is asked; one that is closed early drops the rest. `best_s` is the fastest time
        known of the task: a candidate that clearly can't be faster, than that or than others of the task which were
        timed here, is timed no further. See `racing`.
        """
        ...

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """Schedules of one task timed side by side in fresh processes, in the order given.

        They take turns: the samples with one index were taken in the same round, so that drift of the machine meets
        all alike; they are put at the pace of the middle round. What is slower is left out of later processes: see
        `comparing`. Each gets its `warm_s`. Raises ValueError if there are several tasks.
        """
        ...

    def devices(self) -> list[DeviceState]:
        """What candidates of this pool are timed on, in quarantine or not. From any thread, and at once."""
        ...

    def close(self) -> None:
        """End all processes. Closing twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Machines(Protocol):
    """The machines that a process can measure on: this one, or a cluster. Opened once, for pools of any target.

    Once a cluster is lost, there are no devices, and all else raises ClusterLost, as its pools do. Close it then.
    """

    def targets(self) -> list[Target]:
        """What candidates can be timed for now, with all threads, each once: the devices that are not in quarantine."""
        ...

    def devices(self) -> list[DeviceState]:
        """All devices, in quarantine or not. From any thread, and at once."""
        ...

    def pool(self, target: Target) -> Pool:
        """A pool for a target that a device has: see `has`. Raises PoolError where none does."""
        ...

    def close(self) -> None:
        """Leave. The pools must be closed before. Closing twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def has(device: Target, target: Target) -> bool:
    """Whether a device, given as a target with all its threads, can time candidates of a target.

    It is the same processor, and has cores enough; or a GPU with the same figures.
    """
    if device.gpu is not None or target.gpu is not None:
        return device == target
    same = (device.kind, device.triple, device.cpu, device.features)
    return same == (target.kind, target.triple, target.cpu, target.features) and device.threads >= target.threads


def checked_targets(candidates: Sequence[Candidate], target: Target) -> None:
    """Raises ValueError if a candidate is for another target."""
    for candidate in candidates:
        if candidate.target != target:
            raise ValueError(f"a candidate for {candidate.target} in a pool for {target}")


def checked_task(candidates: Sequence[Candidate]) -> Task:
    """The task of all candidates, at least one. Raises ValueError if there are several."""
    keys = {candidate.task.key for candidate in candidates}
    if len(keys) > 1:
        raise ValueError(f"{len(keys)} tasks in a comparison: only schedules of one task can be compared")
    return candidates[0].task

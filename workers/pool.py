"""Pool: measures candidates, wherever its processes are. Machines: where pools can be opened."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement

from .machine_sample import MachineSample


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one candidate, and how long a working one is timed."""

    build_s: float = 30.0  # lowering and compiling it
    run_s: float = 20.0  # checking and timing it
    reference_s: float = 300.0  # computing the outputs of a task, once for its candidates; also starting a GPU
    memory_bytes: int | None = None  # of its process; None: half of the machine's
    timing_s: float = 0.02  # taking samples; less once one is clearly faster, more where the fewest take longer
    quarantine_s: float = 60.0  # of a device that fails its canary; twice as long the next time


class PoolError(Exception):
    """No device can measure: the cluster can't be joined, none has the target, all are in quarantine.

    The text is one line for people. `retry_s`: it may succeed after that long; None: not by itself.
    """

    def __init__(self, text: str, retry_s: float | None = None) -> None:
        super().__init__(text, retry_s)
        self.retry_s = retry_s
        self._text = text

    def __str__(self) -> str:
        return self._text


class ClusterLost(PoolError):
    """The connection to the cluster is lost, with all that was opened there. No candidate is to blame."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device that candidates are timed on, in its last known state."""

    name: str  # of the machine, and of the device on it
    target: Target  # with all its threads
    quarantined_until: datetime | None = None  # UTC; None: it is in use
    reason: str = ""  # of the quarantine, one line


class ReferenceFailed(Exception):
    """The expected outputs of a task can't be computed within the limits. The text is one line for people.

    The candidates of the task have no measurement then.
    """

    def __init__(self, task_key: str, text: str) -> None:
        super().__init__(task_key, text)
        self.task_key = task_key
        self._text = text

    def __str__(self) -> str:
        return self._text


class Unfit(Exception):
    """A device is in no state to time anything. The text is one line for people.

    It is no failure of what was to be timed.
    """


class Pool(Protocol):
    """Builds, checks and times candidates of one target in processes that can be killed.

    A candidate that crashes, hangs, exceeds memory or computes wrong results costs only itself: its Measurement has
    that status, and the others go on. No output is timed without being checked. Timing and building don't overlap on
    one machine, in all pools with the same folder of objects. Candidates of one task with the same object code are
    timed once and share the samples.

    A task without a reference raises ReferenceFailed, from `measure` and from `compare`: what was yielded before is
    final, the other candidates of the call have no measurement. The same task fails at once the next time.

    A failure is a candidate's or a task's only after its device has shown that it works (`device`). A device that
    doesn't work, or is Unfit, is quarantined, and its work goes to others. Where there is none left, `measure` and
    `compare` raise PoolError: again what was yielded before is final, the rest has no measurement.

    Bugs of the caller raise: Illegal for an illegal schedule, ValueError for a candidate of another target,
    RuntimeError in a thread that holds the lock of the folder of objects. A pool serves one thread at a time. Every
    implementation passes `tests/workers/test_pool.py`.
    """

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """Each candidate once with its measurement, in the order in which they finish. What was yielded is final.

        Work is done while the iterator is advanced; closing it early drops the rest. `best_s` is the fastest time known
        of the task: a candidate that is clearly slower than that, or than others of the task that were timed here, is
        timed no further (`race`).
        """
        ...

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """Schedules of one task timed side by side in fresh processes, in the order given.

        They take turns: samples with one index were taken in the same round, and the drift of the machine between
        rounds is removed. Slower ones are left out of later processes (`comparison`). Each gets its `warm_s`. Raises
        ValueError if there are several tasks.
        """
        ...

    def devices(self) -> list[DeviceState]:
        """The devices of this pool, in quarantine or not. From any thread; does not block."""
        ...

    def machine_sampler(self) -> Callable[[], MachineSample] | None:
        """A function that says what the machine that times did since its last call, or since now.

        None where that machine is not this one.
        """
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
        """The targets of the devices that are not in quarantine, with all threads, each once."""
        ...

    def devices(self) -> list[DeviceState]:
        """All devices, in quarantine or not. From any thread; does not block."""
        ...

    def rest(self, device: str, reason: str, left_s: float) -> None:
        """Have a device of a name rest for so long, as people want it; 0 ends its quarantine, whoever began it.

        It is tried by a canary before it is used again. Does nothing where there is no such device. From any thread.
        """
        ...

    def pool(self, target: Target) -> Pool:
        """A pool for a target that a device `can_time`. Raises PoolError where none can."""
        ...

    def close(self) -> None:
        """Close the connection. The pools must be closed before. Closing twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def can_time(device: Target, target: Target) -> bool:
    """Whether a device, given as a target with all its threads, can time candidates of a target.

    It is the same processor with enough cores, or a GPU with the same figures.
    """
    if device.gpu is not None or target.gpu is not None:
        return device == target
    same = (device.kind, device.triple, device.cpu, device.features)
    return same == (target.kind, target.triple, target.cpu, target.features) and device.threads >= target.threads


def check_targets(candidates: Sequence[Candidate], target: Target) -> None:
    """Raises ValueError if a candidate is for another target."""
    for candidate in candidates:
        if candidate.target != target:
            raise ValueError(f"a candidate for {candidate.target} in a pool for {target}")


def common_task(candidates: Sequence[Candidate]) -> Task:
    """The task of all candidates, of which there is at least one. Raises ValueError if there are several tasks."""
    keys = {candidate.task.key for candidate in candidates}
    if len(keys) > 1:
        raise ValueError(f"{len(keys)} tasks in a comparison: only schedules of one task can be compared")
    return candidates[0].task

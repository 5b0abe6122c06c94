"""Jobs: the contract of the queue that tuning jobs wait in, are leased from and leave their history in.

Read `Jobs` first. Who may write is settled by leases: each carries an epoch that grows with every lease of the job, and
every write under a lease checks that epoch in its own transaction (a fencing token). So a process that hung, lost the
network or was thought dead can change nothing once another one has its job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, Protocol

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Record, Status

from .errors import StoreError

LEASE_S = 30.0
"""How long a lease lasts unless it is renewed. Renew it every third of that."""

THREADS = "threads"
"""The setting of a job without a target that says on how many threads its kernels are to run."""

DEFAULT_TRIALS = 200
"""Trials of a search that was given no bound at all."""

ATTEMPTS = 5
"""How many holders in a row may lose a job without one new trial before it has failed."""


class LeaseLost(StoreError):
    """Another process has the job by now, or it has ended: what was to be written is not, and the work should stop."""


class Conflict(StoreError):
    """The job is in no state for that, or the idempotency key came with another request before."""


class QuotaExceeded(StoreError):
    """The owner has as many unfinished jobs as one may have."""


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""The states in which an equal spec takes the job up again. A job in any other state never changes."""


class Wish(StrEnum):
    """What somebody wants of a job that a process is at work on. Its holder sees to it."""

    PAUSE = "pause"
    CANCEL = "cancel"


class EventKind(StrEnum):
    """What happened to a job."""

    QUEUED = "queued"  # data: label, priority, budget
    STARTED = "started"  # a process took it up; data: holder, attempt
    STAGE = "stage"  # data: stage
    DEFAULT = "default"  # a task's default is known to the job from here on; data: task_key, op, default_ms, best_ms
    IMPROVED = "improved"  # a task's best became better; data: task_key, op, best_ms, default_ms, trial
    PROGRESS = "progress"  # now and then; data: trials, speedup, left_s, ...
    CONFIRMED = "confirmed"  # a task's finalists were compared; data: task_key, op, default_ms, best_ms
    LOST = "lost"  # its process went away without a word; data: holder
    RETURNED = "returned"  # its process gave it back, as it is asked to end; data: holder
    CHANGED = "changed"  # somebody changed it; data: priority or wish
    PAUSED = "paused"
    RESUMED = "resumed"
    SUCCEEDED = "succeeded"  # data: the result
    FAILED = "failed"  # data: error
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobTask:
    """A task of a job, and how often the model runs it."""

    task_key: str
    occurrences: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What makes two requests the same: whoever brings an equal spec gets the unfinished job.

    `settings` is plain JSON data: seed, strategy and whatever else changes what is tried. The budget is no part of it,
    nor are file names.

    Without a target the job waits for any device, and becomes one for the target of the first that it is leased for.
    How many threads are wanted of that stands in `settings` until then, as `THREADS`.
    """

    model_sha256: str  # empty: a job of tasks without a model
    target_key: str  # empty: the job waits for any device
    tasks: tuple[JobTask, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def on(self, device: Target) -> tuple[JobSpec, Target] | None:
        """The spec for a device, where there is no target yet, and its target. None where that has too few threads."""
        threads = int(self.settings.get(THREADS, device.threads))
        if threads > device.threads:
            return None
        target = replace(device, threads=threads)
        settings = {name: value for name, value in self.settings.items() if name != THREADS}
        return replace(self, target_key=target.key, settings=settings), target

    @property
    def key(self) -> str:
        """SHA-256 over the canonical JSON. Raises TypeError or ValueError where `settings` is not JSON data."""
        data = {
            "model_sha256": self.model_sha256,
            "target_key": self.target_key,
            "tasks": [[task.task_key, task.occurrences] for task in self.tasks],
            "settings": self.settings,
        }
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Budget:
    """When a search stops, whichever comes first of what is given.

    After so many trials of the job; after so many seconds of searching; once another minute is expected to make the
    whole model faster by less than the share `until`.
    """

    trials: int | None  # None: no bound
    seconds: float = inf
    until: float | None = None

    @staticmethod
    def of(trials: int | None, minutes: float | None, until: float | None) -> Budget:
        """The bounds that somebody gave, and no other; where none was given, `DEFAULT_TRIALS`."""
        if trials is None and minutes is None and until is None:
            trials = DEFAULT_TRIALS
        return Budget(trials, inf if minutes is None else 60 * minutes, until)

    def trials_left(self, done: int) -> float:
        """Trials to go after so many; infinite where they are not bounded."""
        return inf if self.trials is None else self.trials - done

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "seconds": None if self.seconds == inf else self.seconds,
            "until": self.until,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Budget:
        """The inverse of `to_json`; also of what was written before there was `until`."""
        return Budget(data["trials"], inf if data["seconds"] is None else data["seconds"], data.get("until"))


@dataclass(frozen=True, slots=True)
class Job:
    """One request for tuning, over as many processes as it takes."""

    id: int
    spec: JobSpec
    label: str  # for people, e.g. the model's file name; hostile text is possible
    state: JobState
    created_at: datetime  # UTC
    updated_at: datetime  # UTC; of the last trial or change of state
    budget: Budget
    attached: bool = False  # belongs to the command that made it: no other process takes it up
    priority: int = 0  # the higher goes first
    spent_s: float = 0.0  # of searching, over all processes
    attempts: int = 0  # processes that took it up since the last new trial
    holder: str = ""  # who has it leased, for people: host and process
    wish: Wish | None = None  # what its holder is asked to do
    progress: dict[str, Any] | None = None  # the newest one that a holder told
    result: dict[str, Any] | None = None  # of one that succeeded, or that its budget's time paused
    error: str = ""  # why it failed, one line
    owner: str = ""  # id of the API key that submitted it; empty: a local command


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job. Worth nothing once another epoch of the job has begun."""

    job_id: int
    epoch: int
    holder: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. Numbers of one job are 1, 2, 3, ... without a gap, in order of commits."""

    job_id: int
    number: int
    kind: EventKind
    data: dict[str, Any]
    created_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is yet to be stored."""

    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's name for one submission, so that sending it twice submits once."""

    owner: str  # id of the API key
    name: str  # the Idempotency-Key header
    fingerprint: str  # SHA-256 of the request it came with


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of a submission."""

    job: Job
    is_new: bool  # whether the submission made it: False where an unfinished job had the same spec


@dataclass(frozen=True, slots=True)
class Trial:
    """A record with its place in the job that measured it."""

    ordinal: int  # 0, 1, 2, ... within the job, in order of storing
    created_at: datetime  # UTC
    record: Record


class Jobs(Protocol):
    """The queue of tuning jobs and their history, shared by any number of processes.

    Times are the database's: clocks of the processes need not agree. Each method is one transaction, in which the
    event of the change is written too, and wakes whoever waits in `wait`. A method may be called again after a lost
    connection: nothing happens twice, but that a lease may be taken which nobody holds, and it expires.

    Every method may raise StoreError, and then has changed nothing. `tests/db/test_jobs.py` is its conformance suite.
    """

    def submit(
        self,
        spec: JobSpec,
        label: str,
        budget: Budget,
        *,
        priority: int = 0,
        owner: str = "",
        idempotency: Idempotency | None = None,
        most_unfinished: int | None = None,
    ) -> Submitted:
        """Queue a job; an unfinished one of the same spec is returned as it is.

        But one that a command left behind (attached, and nobody has it leased) is queued for any process, with this
        budget and priority.

        Raises NotFound where the target or a task is unknown, Conflict where the idempotency key came with another
        fingerprint, QuotaExceeded where the owner has `most_unfinished` jobs that are not finished.
        """
        ...

    def submitted(self, idempotency: Idempotency) -> Submitted | None:
        """What came of the submission of this name, as it stands; None where it is not known (yet).

        Raises Conflict where the name came with another fingerprint.
        """
        ...

    def open(self, spec: JobSpec, label: str, budget: Budget, holder: str, lease_s: float = LEASE_S) -> Lease | None:
        """Take up the unfinished job of a spec, or a new one that is `attached`, under the budget given.

        It is taken up however often it was lost before, but where it was lost and is wished to be cancelled: it ends
        so, and a new one is made. None where another process has it leased. Raises NotFound where the target or a task
        is unknown.
        """
        ...

    def waiting(self) -> list[Target | None]:
        """The targets for which `lease` would find a job now; None among them for jobs that wait for any device."""
        ...

    def lease(
        self, target_keys: Collection[str], holder: str, lease_s: float = LEASE_S, *, devices: Sequence[Target] = ()
    ) -> Lease | None:
        """Take the job to do next: of those for these targets the one of highest priority, the oldest of them.

        One that waits for any device is among them where `devices` has one for it: from here on it is a job for the
        target of the first of them that will do, for good. It goes on waiting while another job is unfinished that it
        would be equal to.

        Queued ones, and running ones whose lease is over (which counts as an attempt; with a wish or without attempts
        left they end instead, and the next one is looked at). Attached ones are left alone.
        """
        ...

    def renew(
        self,
        lease: Lease,
        lease_s: float = LEASE_S,
        *,
        progress: Mapping[str, Any] | None = None,
        events: Sequence[NewEvent] = (),
        spent_s: float = 0.0,
    ) -> Wish | None:
        """Keep the lease, and tell what there is to tell; `spent_s` is added. What is wished of the job.

        One that is over is in force again, if nobody took the job up meanwhile. Raises LeaseLost.
        """
        ...

    def give_back(self, lease: Lease) -> None:
        """End the lease without an end of the job: it is queued again, or paused where it is attached.

        This counts as no attempt. Where it was wished to pause or end, it does. Raises LeaseLost.
        """
        ...

    def pause_leased(self, lease: Lease, *, result: Mapping[str, Any] | None = None) -> None:
        """End the lease, the job being paused, or ended where that was wished. Raises LeaseLost.

        `result` is what it has come to so far.
        """
        ...

    def finish(self, lease: Lease, state: JobState, *, result: Mapping[str, Any] | None = None, error: str = "") -> Job:
        """End the lease and the job. Raises LeaseLost, and ValueError for a state that is not final."""
        ...

    def claim(self, lease: Lease, task_key: str) -> bool:
        """Have a task of the job for this lease alone, so that no other job measures the same candidates meanwhile.

        False where another job with a lease in force has it. Claiming twice is harmless. Raises LeaseLost, and
        NotFound where the task is unknown.
        """
        ...

    def release_claims(self, lease: Lease) -> None:
        """Let go of the tasks claimed. A lease that ends lets go of them too."""
        ...

    def pause(self, job_id: int) -> Job:
        """Wish that a running job pause; pause one that nobody has leased. One that is to be cancelled stays so.

        Raises NotFound, and Conflict where it is finished.
        """
        ...

    def resume(self, job_id: int) -> Job:
        """Queue a paused job, for any process though it was attached before; or take back the wish to pause.

        Raises NotFound, and Conflict where it is finished.
        """
        ...

    def cancel(self, job_id: int) -> Job:
        """Wish that a running job end; end one that nobody has leased. Raises NotFound, Conflict where it is finished.

        Cancelling a cancelled job is harmless.
        """
        ...

    def prioritise(self, job_id: int, priority: int) -> Job:
        """Change the priority. Raises NotFound, and Conflict where the job is finished."""
        ...

    def get(self, job_id: int) -> Job:
        """Raises NotFound."""
        ...

    def events(
        self,
        job_id: int,
        after: int = 0,
        limit: int = 1000,
        *,
        kinds: Collection[EventKind] | None = None,
        every: int = 1,
    ) -> list[Event]:
        """The events of a job with a higher number than `after`, in order. Raises NotFound.

        Only those of some kinds, and of a number that `every` divides, where given.
        """
        ...

    def last_of(self, task_keys: Collection[str], target_key: str) -> Job | None:
        """The newest job of these very tasks on a target that has a result; None where there is none.

        So models that differ in their weights alone, or in whether they have them, have their jobs in common.
        """
        ...

    def wish(self, job_id: int) -> Wish | None:
        """What is wished of a job and not yet done; cheaply. Raises NotFound."""
        ...

    def newest_event(self, job_id: int) -> int:
        """The number of the job's newest event: how many it has. Raises NotFound."""
        ...

    def trials(self, job_id: int, after: int = -1, limit: int | None = None) -> list[Trial]:
        """What a job has measured, in order, from the ordinal after `after` on. Raises NotFound."""
        ...

    def statuses(self, job_id: int) -> dict[Status, int]:
        """How the trials of a job ended: how many each way, only ways that occurred. Raises NotFound."""
        ...

    def counts(self) -> dict[JobState, int]:
        """How many jobs there are in each state, zeros too."""
        ...

    def oldest_queued_s(self) -> float | None:
        """Seconds that the queued job which waits longest has waited; None where none waits."""
        ...

    def changes(self) -> int:
        """A number that grows when any process may have changed a job. For `wait`: ask before looking."""
        ...

    def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until any process may have changed a job. False when the time is over without.

        Changes after the number `since` (of `changes`) end it at once; by default those after the last wait of this
        thread, so that in a loop which looks and waits no change is missed. A change is whatever has an event, a
        progress that was told, claims that were let go of, and a tuner that came or went. A lease that is over and a
        job that may be tried again are none: so wait a few seconds, not for ever.

        On PostgreSQL a notification ends it at once; on SQLite a change of the file is noticed within 0.2 s. May end
        early without reason; never raises for a database that can't be reached, but waits the time.
        """
        ...

    def list(
        self,
        states: Collection[JobState] | None = None,
        *,
        model: str | None = None,
        model_sha256: str | None = None,
        target_key: str | None = None,
        owner: str | None = None,
        before_id: int | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """The newest first: those that meet all conditions given, with an id below `before_id`, at most `limit`.

        `model` is text in the label, whatever its case, or the begin of the model's digest.
        """
        ...

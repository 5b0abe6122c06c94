"""Job: a tuning job with its specification, budget, leases and events."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any

from tunewright.codegen.target import Target
from tunewright.graph.numerics import Precision
from tunewright.search_space.measurement import Record

from .errors import StoreError

LEASE_S = 30.0
"""How long a lease lasts unless it is renewed. Renew it every third of that."""

THREADS = "threads"
"""The setting for the number of threads of a job without a target."""

VENDOR = "vendor"
"""The setting, true where it is there, of a job that times the whole model in a vendor's runtime too."""

PRECISION = "precision"
"""The setting, a word of `Precision`, of a job whose model is not computed as it is given."""

RETIME = "retime"
"""The setting of a job that searches nothing, but times the fastest so many schedules of each stale task again."""

GRAPH = "graph"
"""The entry of the first event of a job that has the graph of its model's tasks, plain data."""

DEFAULT_TRIALS = 200
"""Trials of a search without any bound."""

ATTEMPTS = 5
"""Holders in a row that may lose a job without a new trial before it fails."""

TAG = "[a-z0-9][a-z0-9._:-]*"
"""Pattern of a tag."""

LONGEST_TAG = 64

MOST_TAGS = 16
"""Tags of a job."""

LONGEST_NOTES = 4096
"""Longest notes of a job, in characters."""


class LeaseLost(StoreError):
    """Another process has the job by now, or it has ended. Nothing was written, and the work should stop."""


class Conflict(StoreError):
    """A job is in no state for that, or the idempotency key came with another request before."""


class QuotaExceeded(StoreError):
    """The owner has as many unfinished jobs as allowed."""


class NoSuchBound(StoreError):
    """The job's budget lacks a bound that was to be raised: something else ends its search."""

    def __init__(self, job_id: int, budget: SearchBudget) -> None:
        super().__init__(f"the budget of job {job_id} has no such bound")
        self.job_id = job_id
        self.budget = budget


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""The states in which an equal spec joins the job. A job in any other state never changes."""


class Wish(StrEnum):
    """What somebody wants of a job that a process is at work on. Its holder sees to it."""

    PAUSE = "pause"
    CANCEL = "cancel"


class EventKind(StrEnum):
    """What happened to a job."""

    QUEUED = "queued"  # data: label, priority, budget, and graph where it is known: see `JobReader.graph`
    STARTED = "started"  # a process took it up; data: holder, attempt
    STAGE = "stage"  # data: stage
    DEFAULT = "default"  # a task's default is known to the job from here on; data: task_key, op, default_ms, best_ms
    IMPROVED = "improved"  # a task's best became better; data: task_key, op, best_ms, default_ms, trial (or None)
    PROGRESS = "progress"  # now and then; data: trials, speedup, left_s, ...
    MACHINE = "machine"  # now and then: what the machine that measures did meanwhile; data: a `MachineSpan`
    CONFIRMED = "confirmed"  # finalists were compared; data: task_key, and of its report op, times, noise, retimed
    REGRESSED = "regressed"  # a task was confirmed to be slower than before; data: task_key, op, and its `Regression`
    LOST = "lost"  # its process went away without a word; data: holder
    RETURNED = "returned"  # its process gave it back, as it is asked to end; data: holder
    CHANGED = "changed"  # somebody changed it; data: what is new of wish, priority, label, tags, notes, trials, minutes
    PAUSED = "paused"
    RESUMED = "resumed"
    SUCCEEDED = "succeeded"  # data: the result
    FAILED = "failed"  # data: error
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SpecTask:
    """A task of a job, and how often the model runs it."""

    task_key: str
    occurrences: int


def search_settings(
    seed: int,
    strategy: str,
    dims: Mapping[str, int],
    *,
    vendor: bool,
    precision: Precision,
    retime: int | None = None,
) -> dict[str, Any]:
    """The settings of a job, those of all jobs and what is not as usual: equal ones are of one job."""
    settings: dict[str, Any] = {"seed": seed, "strategy": strategy}
    settings |= {"dims": dict(dims)} if dims else {}
    settings |= {VENDOR: True} if vendor else {}
    settings |= {RETIME: retime} if retime else {}
    return settings | ({PRECISION: precision.value} if precision is not Precision.AS_GIVEN else {})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The identity of a request: an equal spec joins the unfinished job.

    `settings` is plain JSON data: seed, strategy and whatever else changes the search. The budget and file names are no
    part of it.

    Without a target the job waits for any device, and gets the target of the first one that leases it. Until then the
    number of threads is in `settings`, as `THREADS`.
    """

    model_sha256: str  # empty: a job of tasks without a model
    target_key: str  # empty: the job waits for any device
    tasks: tuple[SpecTask, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def least_threads(self) -> int | None:
        """The threads that a device must have, of a job that waits for any; None: it has a target, or any will do."""
        threads: int | None = self.settings.get(THREADS)
        return None if self.target_key else threads

    @property
    def retimed(self) -> int:
        """How many schedules of each stale task it times again; 0: it searches."""
        return int(self.settings.get(RETIME, 0))

    @property
    def precision(self) -> str:
        """What the model is computed in: a word of `Precision`, or one of a later version."""
        return str(self.settings.get(PRECISION, Precision.AS_GIVEN))

    def on(self, device: Target) -> tuple[JobSpec, Target] | None:
        """The spec of a job without a target for a device, and its target. None if that has too few threads."""
        threads = int(self.settings.get(THREADS, device.threads))
        if threads > device.threads:
            return None
        target = replace(device, threads=threads)
        settings = {name: value for name, value in self.settings.items() if name != THREADS}
        return replace(self, target_key=target.key, settings=settings), target

    @property
    def key(self) -> str:
        """SHA-256 of the canonical JSON. Raises TypeError or ValueError where `settings` is not JSON data."""
        data = {
            "model_sha256": self.model_sha256,
            "target_key": self.target_key,
            "tasks": [[task.task_key, task.occurrences] for task in self.tasks],
            "settings": self.settings,
        }
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """When a search stops: at the first of these bounds.

    `trials` of the job; `seconds` of searching; the expected gain of another minute, as a share of the time of all
    tasks of the model, falling below `until`. Each run of a command has its seconds, and so has a job that somebody
    else takes over from it: what was spent before does not count.
    """

    trials: int | None  # None: no bound
    seconds: float = inf
    until: float | None = None
    before_s: float = 0.0  # of searching before `seconds` count

    @staticmethod
    def of(trials: int | None, minutes: float | None, until: float | None) -> SearchBudget:
        """The bounds that were given; `DEFAULT_TRIALS` if there is none."""
        if trials is None and minutes is None and until is None:
            trials = DEFAULT_TRIALS
        return SearchBudget(trials, inf if minutes is None else 60 * minutes, until)

    def raised(self, trials: int | None, seconds: float | None) -> SearchBudget:
        """The same with so much more of both; a bound that it lacks it goes on without."""
        more_trials = None if self.trials is None else self.trials + (trials or 0)
        return replace(self, trials=more_trials, seconds=self.seconds + (seconds or 0.0))

    def trials_left(self, done: int) -> float:
        """Trials left after `done`; infinite without a bound."""
        return inf if self.trials is None else self.trials - done

    def seconds_left(self, spent_s: float) -> float:
        """Seconds left after so many of searching in all; infinite without a bound."""
        return self.before_s + self.seconds - spent_s

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "seconds": None if self.seconds == inf else self.seconds,
            "until": self.until,
            "before_s": self.before_s,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SearchBudget:
        """The inverse of `to_json`; also of older data without the last ones."""
        seconds = inf if data["seconds"] is None else data["seconds"]
        return SearchBudget(data["trials"], seconds, data.get("until"), data.get("before_s", 0.0))


@dataclass(frozen=True, slots=True)
class Job:
    """One request for tuning, over any number of processes."""

    id: int
    spec: JobSpec
    label: str  # for people, e.g. the model's file name; hostile text is possible
    state: JobState
    created_at: datetime  # UTC
    updated_at: datetime  # UTC; of the last trial or change of state
    budget: SearchBudget
    trials: int = 0  # that are stored, over all processes
    attached: bool = False  # belongs to the command that made it: no other process takes it up
    priority: int = 0  # the higher goes first
    spent_s: float = 0.0  # of searching, over all processes
    attempts: int = 0  # leases since the last new trial
    holder: str = ""  # the process that has it leased, for people: host and process
    wish: Wish | None = None  # what its holder is to do
    progress: dict[str, Any] | None = None  # the newest one that was told; trials may have been stored since
    result: dict[str, Any] | None = None  # if it succeeded, or its budget's time paused it
    error: str = ""  # why it failed, one line
    owner: str = ""  # id of the API key that submitted it; empty: a local command
    tags: tuple[str, ...] = ()  # words to find it by, in order
    notes: str = ""  # of people; hostile text is possible

    @property
    def is_over(self) -> bool:
        """Whether it has all that it was to have: it is finished, or its time is over and its findings confirmed."""
        return self.state not in UNFINISHED or (self.state is JobState.PAUSED and self.result is not None)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job. Void once another epoch of the job has begun."""

    job_id: int
    epoch: int
    holder: str


@dataclass(frozen=True, slots=True)
class Orders:
    """What people want of a job by now. Its holder asks for it every second or so (`JobReader.look_s`)."""

    wish: Wish | None
    budget: SearchBudget


@dataclass(frozen=True, slots=True)
class JobEdit:
    """What is to be changed of a job; None leaves it as it is. All but the priority may be changed of finished ones."""

    priority: int | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None  # in place of those that it has
    add_tags: tuple[str, ...] = ()
    remove_tags: tuple[str, ...] = ()
    notes: str | None = None

    def edited_tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        """The tags of a job that has these. Raises ValueError as `check_tags`."""
        before = tags if self.tags is None else self.tags
        return check_tags({*before, *self.add_tags} - set(self.remove_tags))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. Numbers of one job ascend in order of commits, from 1 on, without a gap.

    But of a job that finished long ago most of the progress may have been removed (`pruning`).
    """

    job_id: int
    number: int
    kind: EventKind
    data: dict[str, Any]
    created_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is not stored yet."""

    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's name for one submission, so that sending it twice submits once."""

    owner: str  # id of the API key
    name: str  # the Idempotency-Key header
    fingerprint: str  # SHA-256 of the request it came with


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of a submission."""

    job: Job
    is_new: bool  # whether the submission made it: False where an unfinished job had the same spec


@dataclass(frozen=True, slots=True)
class Trial:
    """A record with its place in the job that measured it."""

    ordinal: int  # 0, 1, 2, ... within the job, in order of storing
    created_at: datetime  # UTC
    record: Record


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags of a job in order, each once. Raises ValueError where one is none, or there are too many."""
    ordered = tuple(sorted(set(tags)))
    for tag in ordered:
        if len(tag) > LONGEST_TAG or not re.fullmatch(TAG, tag):
            raise ValueError(
                f"{tag[: LONGEST_TAG + 1]!r} is no tag: that is a word of 1 to {LONGEST_TAG} characters, a-z, 0-9 and "
                "._:-, and begins with a letter or digit"
            )
    if len(ordered) > MOST_TAGS:
        raise ValueError(f"a job has at most {MOST_TAGS} tags, not {len(ordered)}: remove some")
    return ordered


def check_notes(notes: str) -> str:
    """The notes of a job. Raises ValueError where they are too long."""
    if len(notes) > LONGEST_NOTES:
        raise ValueError(f"the notes of a job have at most {LONGEST_NOTES:,} characters, not {len(notes):,}")
    return notes

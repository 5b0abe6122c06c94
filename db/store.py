"""Store: the contract of what keeps tasks, targets, jobs and trials, and the plain data that goes in and out.

Whoever tunes, looks up or shows results imports this module; no SQL is in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status


class StoreError(Exception):
    """The database can't be opened, read or written, or refuses the change: one line for people."""


class NotFound(StoreError):
    """The job, task or target that was named is not in the database."""


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
"""The states in which the same command takes a job up again. A job in any other state never changes."""


@dataclass(frozen=True, slots=True)
class JobTask:
    """A task of a job, and how often the model runs it."""

    task_key: str
    occurrences: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What makes two commands the same: whoever opens an equal spec takes the unfinished job up.

    `settings` is plain JSON data: seed, strategy and whatever else changes what is tried. The budget is no part of it,
    nor are file names.
    """

    model_sha256: str
    target_key: str
    tasks: tuple[JobTask, ...]
    settings: dict[str, Any] = field(default_factory=dict)

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
class Job:
    """One run of a tuning command, over as many processes as it took."""

    id: int
    spec: JobSpec
    label: str  # for people, e.g. the model's file name; hostile text is possible
    state: JobState
    created_at: datetime  # UTC
    updated_at: datetime  # UTC; of the last trial or change of state
    result: dict[str, Any] | None = None  # what `finish_job` was given


@dataclass(frozen=True, slots=True)
class Trial:
    """A record with its place in the job that measured it."""

    ordinal: int  # 0, 1, 2, ... within the job, in order of storing
    created_at: datetime  # UTC
    record: Record


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    added: int
    known: int  # were there already and stayed as they were


class Store(Protocol):
    """Keeps every trial once and finds it again.

    Threads and processes. Any number of threads may share a store, and any number of processes may each open one on
    the same database. A store does not survive a fork: open it in the process that uses it. Each method is one
    transaction (the iterators: one a page). When a method returns, what it wrote outlives the process.

    Values. What goes in is copied, what comes out is new: changing either changes nothing stored. Numbers come back
    exactly; texts come back with NUL and lone surrogates replaced, which no database keeps; an error that is not a
    number counts as infinite.

    Trials are facts: they are added, never changed or removed. The key of a trial is (task, target, schedule). The
    first one stored under it stays. Confirmations are added likewise; of a task on a target the newest one counts.

    Errors. Every method may raise StoreError; it then has changed nothing, `import_` excepted. Further ones are named
    where they occur.
    """

    def add_task(self, task: Task) -> bool:
        """Make a task known. Whether it was new."""
        ...

    def add_target(self, target: Target) -> bool:
        """Make a target known. Whether it was new."""
        ...

    def task(self, task_key: str) -> Task:
        """Raises NotFound."""
        ...

    def task_keys(self, prefix: str = "") -> list[str]:
        """Keys of the tasks whose key begins with `prefix`, ascending."""
        ...

    def target(self, target_key: str) -> Target:
        """Raises NotFound."""
        ...

    def record(self, record: Record, job_id: int | None = None) -> bool:
        """Store a trial. False where the same schedule had been stored before, which stays as it is.

        `job_id` is the job that measured it. Raises NotFound where task, target or job is unknown, and ValueError for
        a measurement that contradicts itself (OK without a positive time, a time that is no number).
        """
        ...

    def records(self, task_key: str, target_key: str, statuses: Collection[Status] | None = None) -> list[Record]:
        """The trials of a task on a target, in order of storing; only those that ended as `statuses` where given."""
        ...

    def best(self, task_key: str, target_key: str) -> Record | None:
        """What to use: the fastest of the newest confirmation and the OK trials stored after it.

        The trials before it are superseded: they took part in the choice or lost against those that did. Without a
        confirmation all OK trials count. The first of equals, the confirmation before the trials; None where nothing
        is left.
        """
        ...

    def best_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """`best` of each task that has one."""
        ...

    def confirm(self, record: Record) -> None:
        """Store what came of comparing the best trials of a task: the chosen schedule with its time beside the others.

        One that is not OK says that no schedule tried so far holds: `best` then knows only later trials. Raises
        NotFound where task or target is unknown, and ValueError as `record` does.
        """
        ...

    def confirmed_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """The newest confirmation of each task that has one, however it ended."""
        ...

    def measured(self, task_key: str, target_key: str) -> set[str]:
        """Keys of the schedules that were tried, however they ended."""
        ...

    def examples(self, target_kind: str) -> Iterator[tuple[Candidate, Measurement]]:
        """Every trial on targets of a kind, the newest first, so that a reader can stop when it has enough.

        Trials stored while it runs may be left out.
        """
        ...

    def open_job(self, spec: JobSpec, label: str = "") -> Job:
        """The job to run for a spec: the unfinished one if there is one, else a new one. It is RUNNING now.

        Two processes that open the same spec at once get the same job. Raises NotFound where the target or a task is
        unknown.
        """
        ...

    def pause_job(self, job_id: int) -> Job:
        """Note that nobody works on it for now. Raises NotFound, and StoreError where it is finished."""
        ...

    def finish_job(self, job_id: int, state: JobState, result: dict[str, Any] | None = None) -> Job:
        """End a job as SUCCEEDED, FAILED or CANCELLED. Raises NotFound, and StoreError where it is finished already."""
        ...

    def job(self, job_id: int) -> Job:
        """Raises NotFound."""
        ...

    def jobs(self, states: Collection[JobState] | None = None) -> list[Job]:
        """The newest first; only those in `states` where given."""
        ...

    def trials(self, job_id: int) -> list[Trial]:
        """What a job has measured so far, in order. Raises NotFound."""
        ...

    def statuses(self, job_id: int) -> dict[Status, int]:
        """How the trials of a job ended: how many each way, only ways that occurred. Raises NotFound."""
        ...

    def counts(self) -> dict[str, int]:
        """How many "tasks", "targets", "jobs" and "trials" are stored."""
        ...

    def export(self) -> Iterator[dict[str, Any]]:
        """Every trial as JSON data that stands alone: see `exchange`. Trials stored while it runs may be left out.

        Confirmations stay behind: they compare what this database knew.
        """
        ...

    def import_(self, lines: Iterable[str]) -> Imported:
        """Store trials from lines of JSON as `export` gives them; blank lines are skipped.

        Raises StoreError that names the line where one is not such a trial. The lines before it are stored, so
        importing the mended file again is safe.
        """
        ...

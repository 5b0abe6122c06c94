"""Store: the contract of what keeps tasks, targets, trials and confirmations.

Whoever tunes, looks up or shows results imports this module; no SQL is in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .jobs import Lease, NewEvent


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
    first one stored under it stays; one that an import brings of the same schedule is kept beside it, for `best` and
    `export` alone, as is one that was imported before the schedule was timed here. Confirmations are added likewise; of
    a task on a target the newest one counts. What is newer is told by the moments of creation: what is stored here is
    always newer than the confirmations that are there.

    Trust. What `record` and `confirm` store was timed here. What `import_` stores was not: it is a hint for jobs, and
    the best of a task only while nothing was timed here. What is taken back (`voids`) counts as failed.

    Errors. Every method may raise StoreError; it then has changed nothing, `import_` excepted. Further ones are named
    where they occur.
    """

    def add_task(self, task: Task) -> bool:
        """Make a task known. Whether it was new."""
        ...

    def add_tasks(self, tasks: Iterable[Task]) -> int:
        """Make several tasks known, all or none of them. How many were new."""
        ...

    def add_target(self, target: Target) -> bool:
        """Make a target known. Whether it was new."""
        ...

    def task(self, task_key: str) -> Task:
        """Raises NotFound."""
        ...

    def tasks(self, task_keys: Iterable[str]) -> dict[str, Task]:
        """Those of the tasks that are known."""
        ...

    def task_keys(self, prefix: str = "") -> list[str]:
        """Keys of the tasks whose key begins with `prefix`, ascending."""
        ...

    def target(self, target_key: str) -> Target:
        """Raises NotFound."""
        ...

    def targets(self, kind: str | None = None) -> list[Target]:
        """The targets of a kind, or all of them, by key."""
        ...

    def record(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> bool:
        """Store a trial. False where the same schedule had been stored before, which stays as it is.

        `lease` is that of the job that measured it. `events` of the job are stored with the trial, and not where the
        trial was known. Raises LeaseLost, NotFound where task or target is unknown, and ValueError for a measurement
        that contradicts itself (OK without a positive time, a time that is no number).
        """
        ...

    def records(self, task_key: str, target_key: str, statuses: Collection[Status] | None = None) -> list[Record]:
        """The trials of a task on a target that were timed here, or taken back, in order of storing.

        Only those that ended as `statuses` where given.
        """
        ...

    def best(self, task_key: str, target_key: str) -> Record | None:
        """What to use: the fastest of the newest confirmation and the OK trials created after it.

        The trials before it are superseded: they took part in the choice or lost against those that did. Without a
        confirmation all OK trials count. The first of equals, the confirmation before the trials; None where nothing
        is left. First of all that was timed here; where nothing of that is left, of what was imported and is a legal
        point of a sketch of this version, unless that schedule failed here.
        """
        ...

    def best_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """`best` of each task that has one."""
        ...

    def confirm(self, record: Record, lease: Lease | None = None, events: Sequence[NewEvent] = ()) -> None:
        """Store what came of comparing the best trials of a task: the chosen schedule with its time beside the others.

        One that is not OK says that no schedule tried so far holds: `best` then knows only later trials. `lease` and
        `events` are of the job that compared them. Raises LeaseLost, NotFound where task or target is unknown, and
        ValueError as `record` does.
        """
        ...

    def confirmed_many(self, task_keys: Iterable[str], target_key: str) -> dict[str, Record]:
        """The newest confirmation of each task that has one, however it ended: of those made here, if there are any."""
        ...

    def measured(self, task_key: str, target_key: str) -> set[str]:
        """Keys of the schedules that were tried here, however they ended, or taken back."""
        ...

    def hints(self, task_key: str, target_key: str, limit: int = 6) -> list[Schedule]:
        """The schedules of the fastest good trials that were imported and not timed here yet, the fastest first."""
        ...

    def examples(
        self, target_kind: str, after: int = 0, through: int | None = None
    ) -> Iterator[tuple[Candidate, Measurement]]:
        """The trials on targets of a kind, the newest first, so that a reader can stop when it has enough.

        Those with ids above `after`, up to `through`; see `newest_trial`. None that was taken back is among them. Tasks
        and targets are the same objects
        throughout. Of what was measured the numbers are told: not the samples, the error, the object and the
        provenance. Trials stored while it runs may be left out.
        """
        ...

    def newest_trial(self) -> int:
        """The highest id of a trial; 0 without trials. Some below it may be of transactions that are yet to commit."""
        ...

    def counts(self) -> dict[str, int]:
        """How many "tasks", "targets", "jobs" and "trials" are stored."""
        ...

    def export(self) -> Iterator[dict[str, Any]]:
        """Every trial, then every confirmation, as JSON data that stands alone: see `exchange`.

        What is stored while it runs may be left out.
        """
        ...

    def import_(self, lines: Iterable[str]) -> Imported:
        """Store what `export` gave, from lines of JSON; blank lines are skipped. Nothing stored is changed or removed.

        Importing again what is known does nothing. Raises BadLine where a line is no such record, from the future, or
        of what can't be (see `admission`); the lines before it are stored, so importing the mended file is safe.
        """
        ...

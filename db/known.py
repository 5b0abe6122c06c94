"""Known: the contract of what lookups ask, many tasks at a time and with a few queries, whatever the number of trials.

What is best for a task on a target follows from trials and confirmations (see `Store.best`). It is kept beside them, in
the transactions that change it, so that nobody who looks it up has to walk through trials.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Best:
    """What to use for a task on a target. Texts of JSON are as they were stored, so that they can be passed on."""

    task_key: str
    target_key: str
    op: str  # the task's label
    sketch: str
    sketch_version: int
    schedule_json: str
    median_s: float
    low_s: float | None
    high_s: float | None
    provenance_json: str
    is_confirmed: bool  # it won a comparison in fresh processes
    is_imported: bool  # it was measured elsewhere, and nothing here

    @property
    def schedule(self) -> Schedule:
        return Schedule.from_json(json.loads(self.schedule_json))

    @property
    def measurement(self) -> Measurement:
        """Without what lookups don't tell: samples, errors, the object."""
        return Measurement(
            Status.OK,
            median_s=self.median_s,
            low_s=self.low_s,
            high_s=self.high_s,
            provenance=json.loads(self.provenance_json),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: what to use for a task on a target, and of what shape and when."""

    best: Best
    shape: str  # `Task.shape`; empty: an older version stored the task
    created_at: datetime  # UTC, of the trial or confirmation; in 1970: an older version stored it

    @property
    def place(self) -> str:
        """Where it is among all that can be found: `after` of `search` begins behind it."""
        return f"{self.created_at.isoformat()} {self.best.target_key} {self.best.task_key}"


@dataclass(frozen=True, slots=True)
class Gap:
    """A task that nothing is known to use for, on a target that a job asked for it on."""

    task_key: str
    target_key: str
    op: str
    shape: str
    job_id: int  # the newest job that did


class Marks(NamedTuple):
    """How far a database has grown: the newest trial, repeat, confirmation and void. Equal marks: the same answers."""

    trial_id: int
    repeat_id: int
    confirmation_id: int
    void_id: int


class Known(Protocol):
    """Every method may raise StoreError."""

    def best(self, task_keys: Iterable[str], target_keys: Collection[str]) -> dict[tuple[str, str], Best]:
        """(task key, target key) -> `Store.best`, of those that have one."""
        ...

    def best_on(self, target_key: str, after: str = "", limit: int = 500) -> list[Best]:
        """`Store.best` of the tasks that have one on a target, by task key, from the one after `after` on."""
        ...

    def search(
        self,
        *,
        op: str | None = None,
        shape: str | None = None,
        target_key: str | None = None,
        since: datetime | None = None,
        is_oldest_first: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Found]:
        """`Store.best` of all tasks on all targets, the newest first or last; or of those that meet all conditions.

        `op` and `shape` stand somewhere in the text of that name, in small letters or large ones. It was created at
        `since` or later. Raises ValueError where `after` is no `Found.place`.
        """
        ...

    def covered(self) -> dict[str, int]:
        """Target key -> how many tasks have a `Store.best` there, of those where any has."""
        ...

    def coverage(self, jobs: int = 200, limit: int = 100) -> list[Gap]:
        """What no `Store.best` is known for, of the tasks of the newest jobs on their targets, the newest first.

        At most `limit` of the tasks of at most so many jobs, each once for a target.
        """
        ...

    def fastest(
        self, task_keys: Iterable[str], target_key: str, sketches: Collection[tuple[str, int]], limit: int = 8
    ) -> dict[str, list[Best]]:
        """Task key -> its OK trials on a target by one of these (sketch, version), the fastest first.

        Those timed here come before those imported.
        """
        ...

    def failures(self, task_keys: Iterable[str], target_key: str) -> dict[str, set[str]]:
        """Task key -> keys of the schedules that failed there, in trials or the newest confirmation, or are taken back.

        What was imported counts only where nothing of the task was timed here.
        """
        ...

    def relatives(self, families: Iterable[str], target_keys: Collection[str], limit: int) -> dict[str, list[str]]:
        """Family -> keys of at most `limit` of its tasks that have a best on one of the targets, by key.

        Those that have one that was timed here come first.
        """
        ...

    def definitions(self, task_keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Task key -> `Task.to_json`, of those that are known."""
        ...

    def ops(self, task_keys: Iterable[str]) -> dict[str, str]:
        """Task key -> what the task is, for people (`Task.op`), of those that are known."""
        ...

    def shapes(self, task_keys: Iterable[str]) -> dict[str, str]:
        """Task key -> its shapes, for people, of those that are known; empty where an older version stored the task."""
        ...

    def marks(self) -> Marks:
        """How far the database has grown."""
        ...

    def changed(self, since: Marks) -> set[tuple[str, str]]:
        """(task key, target key) of what came after. Transactions that were under way at `since` may be missed."""
        ...

"""Trials: the contract of what shows them to people, a page or a sample at a time, however many there are.

`Store.records` and `Jobs.trials` give all of them with everything measured. Here a trial is a line of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from tunewright.search_space.measurement import Record, Status
from tunewright.search_space.schedule import Schedule

LONGEST_ERROR = 500
"""Characters of an error in a line; `TrialDetail` has all of it."""


class Order(StrEnum):
    """How the trials of a task are put in a row. Failed ones have no time: they come last, the newest first."""

    NEWEST = "newest"  # by the moment of creation
    OLDEST = "oldest"
    FASTEST = "fastest"  # by the median
    SLOWEST = "slowest"


@dataclass(frozen=True, slots=True)
class TrialLine:
    """What a table shows of a trial: no samples, no provenance."""

    id: int  # ascends in order of storing
    job_id: int | None  # the job that measured it; None: it was imported
    ordinal: int | None  # 0, 1, 2, ... within the job
    schedule: Schedule
    status: Status
    median_s: float | None  # this and the next two: None where it has no time
    low_s: float | None
    high_s: float | None
    samples: int  # how many there are
    max_rel_err: float | None
    error: str  # its begin; hostile text is possible
    build_s: float
    created_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class TrialDetail:
    """A trial with all that was measured."""

    line: TrialLine
    record: Record


@dataclass(frozen=True, slots=True)
class TrialPage:
    """A part of the trials of a task on a target."""

    trials: list[TrialLine]
    next: str | None  # the `cursor` of the page behind this one; None on the last
    total: int  # trials on all pages
    counts: Mapping[Status, int]  # how those of the task, or of the job, ended; also ways that were not asked for


class TrialLog(Protocol):
    """The trials, by task or by job. A job's are on the job's target.

    Each method is one transaction, and may raise StoreError. What is stored meanwhile is there or not. However many
    trials there are, little of them is read, but in an index, where they are counted and those of a job looked for.
    """

    def counts(self, job_id: int) -> dict[str, dict[Status, int]]:
        """Task key -> how the job's trials of it ended: how many each way, only tasks and ways that occurred."""
        ...

    def page(
        self,
        task_key: str,
        target_key: str,
        *,
        job_id: int | None = None,
        statuses: Collection[Status] | None = None,
        order: Order = Order.NEWEST,
        cursor: str | None = None,
        limit: int = 50,
    ) -> TrialPage:
        """The trials of a task on a target in an order, from behind the place `cursor` on, at most `limit` of them.

        Only those that a job measured, or that ended in some ways, where given. Page by page each trial comes once;
        of those that are stored meanwhile, those do that belong behind what was shown. Raises ValueError for what is
        no cursor of that order.
        """
        ...

    def sample(self, task_key: str, target_key: str, count: int) -> list[TrialLine]:
        """`count` of the trials of a task on a target, or all where there are fewer.

        Those with the least schedule keys: they are digests, so no trial is preferred, and those that were chosen
        stay so unless new ones displace them.
        """
        ...

    def fastest(self, task_key: str, target_key: str, count: int) -> list[TrialLine]:
        """The `count` OK trials of a task on a target that took least, the fastest first."""
        ...

    def one(self, task_key: str, target_key: str, schedule_key: str) -> TrialDetail | None:
        """The trial of a schedule; None where there is none."""
        ...

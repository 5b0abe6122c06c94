"""Trial: lines of a table of trials, and pages of those.

`Store.records` and `Jobs.trials` return whole records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tunewright.search_space.measurement import Record, Status, told_interval
from tunewright.search_space.schedule import Schedule

LONGEST_ERROR = 500
"""Characters of an error or a note in a line; `TrialDetail` has all of it."""


class TrialOrder(StrEnum):
    """An order of the trials of a task. Failed ones have no time: they come last, the newest first."""

    NEWEST = "newest"  # by the moment of creation
    OLDEST = "oldest"
    FASTEST = "fastest"  # by the median
    SLOWEST = "slowest"


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial as a line of a table: no samples, no provenance."""

    id: int  # ascends in order of storing
    job_id: int | None  # the job that measured it; None: none did, as of what was imported
    ordinal: int | None  # 0, 1, 2, ... within the job
    schedule: Schedule
    status: Status
    median_s: float | None  # this and the next two: None where it has no time
    low_s: float | None
    high_s: float | None
    samples: int  # their number
    max_rel_err: float | None
    error: str  # its begin; hostile text is possible
    build_s: float
    created_at: datetime  # UTC
    is_imported: bool  # it was not timed here
    noise: str  # the begin of the note why its time can't be relied on; hostile text is possible, here and below
    drift: str  # the begin of what its provenance has as `DRIFT`

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95% interval of the median: see `told_interval`."""
        return told_interval(self.low_s, self.high_s, self.samples)


def distinct(lines: Iterable[TrialLine]) -> list[TrialLine]:
    """Each trial once, as of a sample and the fastest beside it."""
    return list({line.id: line for line in lines}.values())


@dataclass(frozen=True, slots=True)
class TrialDetail:
    """A trial with its whole record."""

    line: TrialLine
    record: Record


@dataclass(frozen=True, slots=True)
class TrialPage:
    """A page of the trials of a task on a target."""

    trials: list[TrialLine]
    next: str | None  # the `cursor` of the page behind this one; None on the last
    total: int  # trials on all pages
    counts: Mapping[Status, int]  # of the task, or of the job; also of statuses that were not asked for


@dataclass(frozen=True, slots=True)
class JobTrial:
    """A trial of a job, and of which task it is."""

    task_key: str
    line: TrialLine


@dataclass(frozen=True, slots=True)
class JobTrialPage:
    """A page of the trials of a job."""

    trials: list[JobTrial]
    next: str | None  # the `cursor` of the page behind this one; None on the last

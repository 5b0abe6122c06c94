"""What is known of a task at best: results of `Catalog` and `Store`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tunewright.search_space.measurement import SPREAD, Measurement, Record, Status, told_interval
from tunewright.search_space.schedule import Schedule

from .errors import read_stored


@dataclass(frozen=True, slots=True)
class TaskComparisons:
    """The newest confirmations of a task on a target that were made here."""

    standing: Record | None  # the newest whose winner was not taken back, of any status; None: there is none
    newest: Record  # of all, as it was made: what it tells of the default holds whatever becomes of the winner


@dataclass(frozen=True, slots=True)
class TaskStanding:
    """What a database has of a task on a target, as searches go on from it."""

    comparisons: TaskComparisons | None = None  # None: it was never compared here
    best: Record | None = None  # `Store.best`


@dataclass(frozen=True, slots=True)
class Best:
    """The schedule to use for a task on a target. JSON texts are as they were stored, so that they can be passed on."""

    task_key: str
    target_key: str
    op: str  # the task's label
    sketch: str
    sketch_version: int
    schedule_json: str
    median_s: float
    low_s: float | None
    high_s: float | None
    samples: int  # their number; 0 also: an older version stored it
    provenance_json: str
    is_confirmed: bool  # it won a comparison in fresh processes
    is_imported: bool  # it was imported, and no trial here worked

    @property
    def is_confirmed_here(self) -> bool:
        """Whether it won a comparison here. What was imported is still to be compared, whatever it says."""
        return self.is_confirmed and not self.is_imported

    @property
    def schedule(self) -> Schedule:
        return read_stored(lambda: Schedule.from_json(json.loads(self.schedule_json)), "bests", "schedule")

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95% interval of the median: see `told_interval`."""
        return told_interval(self.low_s, self.high_s, self.samples)

    @property
    def spread(self) -> float | None:
        """How far its samples lie apart, as a part of the median, where they are too few for an interval."""
        if self.interval_s is not None or self.low_s is None or self.high_s is None or not self.median_s:
            return None
        return (self.high_s - self.low_s) / self.median_s or None

    @property
    def measurement(self) -> Measurement:
        """The measurement without what lookups don't return: samples, errors, the object."""
        low_s, high_s = self.interval_s or (None, None)
        spread = {} if self.spread is None else {SPREAD: repr(self.spread)}
        return Measurement(
            Status.OK,
            median_s=self.median_s,
            low_s=low_s,
            high_s=high_s,
            provenance=json.loads(self.provenance_json) | spread,
        )


@dataclass(frozen=True, slots=True)
class Hit:
    """A result of a search, with its shape and moment."""

    best: Best
    shape: str  # `Task.shape`; empty: an older version stored the task
    created_at: datetime  # UTC, of the trial or confirmation; in 1970: an older version stored it

    @property
    def place(self) -> str:
        """Its position in the order of the search, for `after` of `search`."""
        return f"{self.created_at.isoformat()} {self.best.target_key} {self.best.task_key}"


@dataclass(frozen=True, slots=True)
class Gap:
    """A task of a job of which nothing that can be used was timed here on the job's target."""

    task_key: str
    target_key: str
    op: str
    shape: str
    job_id: int  # the newest job with it
    is_imported: bool  # something was imported of it


class TaskCounts(NamedTuple):
    """Numbers of tasks with a best on a target."""

    timed: int  # here
    imported: int  # the others


class Marks(NamedTuple):
    """Newest trial, repeat, confirmation and void of a database. Equal marks mean equal answers."""

    trial_id: int
    repeat_id: int
    confirmation_id: int
    void_id: int

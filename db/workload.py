"""Workload: the contract of what tuner processes had to do: who was at work on which job, and what waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Shift:
    """A time in which a process had a job leased."""

    job_id: int
    holder: str  # the process, for people: host and process; hostile text is possible
    begun_at: datetime  # UTC; it may be long before what was asked for
    ended_at: datetime | None  # UTC; None: it goes on


@dataclass(frozen=True, slots=True)
class Shifts:
    """The shifts of a period, the first begun first."""

    since: datetime  # UTC, by the clock that all processes share
    until: datetime  # the moment of asking
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """The unfinished jobs for a target."""

    target_key: str  # empty: those that wait for any device
    queued: int
    running: int
    paused: int
    lost: int  # running ones whose lease is over: another process takes them up
    oldest_at: datetime | None  # UTC; since when the queued job that waits longest does; None where none waits


class Workload(Protocol):
    """Each method reads at one moment, and may raise StoreError."""

    def shifts(self, last_s: float) -> Shifts:
        """Who was at work in the last seconds, as the events of the jobs tell.

        A process that went away without a word was at work until its lease was over, or another one took the job up.
        """
        ...

    def queues(self) -> list[Queue]:
        """The targets that there are unfinished jobs for, those with the most queued ones first."""
        ...

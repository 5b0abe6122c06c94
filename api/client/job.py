"""Jobs as the API returns them: `Job`, and its events as `JobEvent`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tunewright.codegen.codec import to_json
from tunewright.graph.numerics import Precision

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job never leaves."""


@dataclass(frozen=True, slots=True)
class JobTask:
    """A task of a job."""

    key: str
    op: str  # what it is, for people
    occurrences: int  # how often the model runs it


@dataclass(frozen=True, slots=True)
class OwnerKey:
    """The API key that submitted a job."""

    id: str
    name: str  # hostile text


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A tuning job, as the API returned it."""

    id: int
    state: str  # queued, running, paused, succeeded, failed or cancelled
    model: str  # SHA-256 of what was sent
    label: str  # hostile text
    tags: tuple[str, ...] = ()  # words to find it by
    notes: str = ""  # hostile text
    owner: OwnerKey | None = None  # None: a local command submitted it
    target: str  # key; empty while it waits for a device
    target_name: str = ""  # for people; likewise
    tasks: tuple[JobTask, ...]
    trials: int | None  # most of them; None: no limit
    minutes: float | None
    until: float | None = None
    settings: Mapping[str, Any]
    dims: Mapping[str, int] = field(default_factory=dict)  # of the model's open dimensions, and values of inputs
    precision: str = Precision.AS_GIVEN.value  # that products are computed in
    priority: int
    spent_s: float
    before_s: float = 0.0  # of these, before its minutes count: a command spent them
    attempts: int  # processes that took it up since the last new trial
    holder: str  # the process at work on it
    wish: str | None
    waits_for: str = ""  # the kind of device that a queued job without a target waits for, in words
    progress: Mapping[str, Any] | None
    result: Mapping[str, Any] | None  # of one that succeeded
    outcome: str | None = None  # for the model as a whole: faster, defaults_kept, too_noisy, vendor or untimed
    speedup: float | None = None  # how many times as fast as by default a run is on our kernels
    vendor: str = ""  # what a run takes in a vendor's runtime, and what came of that, in words
    speedup_of: str = ""  # what that was measured of: the model, its tasks, or trials, which nothing has confirmed
    speedup_interval: tuple[float, float] | None = None  # 95%
    noise: str = ""  # why the machine was too busy to rely on the times
    error: str  # of one that failed
    created_at: datetime
    updated_at: datetime
    is_new: bool | None = None  # whether the submission or extension made it; None where neither was answered

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state in FINAL_STATES

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data: dict[str, Any] = to_json(self)
        return data


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job. Numbers ascend from 1 on, without a gap while the job goes on.

    A server removes most of the progress of a job that finished long ago.
    """

    job: int
    number: int
    kind: str  # as db.jobs.EventKind
    data: Mapping[str, Any]
    created_at: datetime

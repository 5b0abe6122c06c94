"""Candidates, and the measurements and records of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunewright.codegen.codec import from_json, to_json
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .schedule import Schedule

NOISE = "noise"
"""The entry of a provenance that says, for people, why the machine was too busy for the times to be relied on."""

DRIFT = "pace"
"""The entry with the drift: how many times its noted time the schedule took that a trial was timed in turn with."""

SPREAD = "spread"
"""The entry in lookups with how far samples that are too few for an interval lie apart, as a part of their median."""

DEFAULT_INTERVAL = "default_interval_s"
"""The entry of a confirmation with the 95% interval of the default beside it: both ends, with a space between."""


SAMPLES_OF_INTERVAL = 5
"""Fewest samples whose interval is told: the range of two holds the median with a chance of a half only."""


def told_interval(low_s: float | None, high_s: float | None, samples: int) -> tuple[float, float] | None:
    """The 95% interval of the median of so many samples, as all that shows a time tells it.

    None where it is not known, where they are too few, and where it has no width: no time is known without doubt. The
    clock is too coarse then, or the samples were divided by themselves, as older versions did.
    """
    if low_s is None or high_s is None or low_s == high_s or samples < SAMPLES_OF_INTERVAL:
        return None
    return low_s, high_s


class Status(StrEnum):
    """How a candidate ended. Everything but OK is a failure that is stored and learned from."""

    OK = "ok"
    BUILD_ERROR = "build_error"  # the compiler refused it
    WRONG_RESULT = "wrong_result"  # it ran, but its output differs from the oracle
    CRASH = "crash"  # it killed its process
    TIMEOUT = "timeout"  # it was stopped at its time limit
    OUT_OF_MEMORY = "out_of_memory"  # it passed its memory limit
    VOIDED = "voided"  # whatever it was, people took it back: it is kept, and searches take it for a failure


FAILED = tuple(status for status in Status if status not in (Status.OK, Status.VOIDED))
"""How candidates fail. Those that people took back are told apart: they need not have failed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One schedule of one task on one target."""

    task: Task
    target: Target
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened to one candidate. A failure is a measurement too."""

    status: Status
    # Seconds of one run, one a sample; empty unless OK. Of a trial that was timed in turn with another one they are as
    # if the machine were as fast as when `incumbent_s` was noted of that, and so are the figures below; `DRIFT` in the
    # provenance is how many times as long it took now. Of one that was compared in turn with others they are as if
    # every round, in one process after the other, had been as fast as the middle one.
    samples_s: tuple[float, ...] = ()
    median_s: float | None = None
    low_s: float | None = None  # 95% interval of the median; of few samples their range, which `interval_s` leaves out
    high_s: float | None = None
    max_rel_err: float | None = None  # largest error against the oracle, relative to its largest magnitude
    error: str = ""  # one line for people; empty if OK
    build_s: float = 0.0  # time spent lowering and compiling
    object_sha256: str = ""  # of the object code that was timed
    provenance: dict[str, str] = field(default_factory=dict)  # machine, compiler and library versions
    # Noted of what this one was timed in turn with: of a trial the fastest one, or its anchor; of a confirmation the
    # default, whose interval is `DEFAULT_INTERVAL` in the provenance. Its noise is in that of this one, as a gain is of
    # both.
    incumbent_s: float | None = None
    warm_s: float | None = None  # median with all operands in the caches; the other figures are with constants cold
    warm_samples_s: tuple[float, ...] = ()  # what that is the median of, as comparisons give it: not stored

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95% interval of the median, by the samples: see `told_interval`."""
        return told_interval(self.low_s, self.high_s, len(self.samples_s))

    def to_json(self) -> dict[str, Any]:
        """Plain data of all that is stored."""
        data: dict[str, Any] = to_json(self)
        del data["warm_samples_s"]
        return data

    @staticmethod
    def from_json(data: Any) -> Measurement:
        """The inverse of `to_json`. Raises ValueError on other data."""
        return from_json(Measurement, data)


@dataclass(frozen=True, slots=True)
class Record:
    """A stored trial: the schedule that was tried for a task on a target, and what came of it."""

    task_key: str
    target_key: str
    schedule: Schedule
    measurement: Measurement

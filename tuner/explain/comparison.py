"""Comparison: what became slower or faster for a task or a model from one job to another, and why.

Read `task_change` first. Whether a time is slower is decided by the rule of regressions (`ConfirmedTime`), on the same
target: all else is told as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tunewright.search_space.measurement import Measurement, Record
from tunewright.search_space.schedule import Schedule

from ..confirmed_time import ConfirmedTime
from ..known_times import GPU_VERSIONS, VERSIONS, default_interval
from ..search.regression import changed_origins
from ..text import change, ratio
from . import values
from .regression import origin_texts, replaced_texts


class TimeFinding(StrEnum):
    """What a comparison of two times comes to."""

    SLOWER = "slower"  # beyond both intervals
    FASTER = "faster"  # likewise
    EQUAL = "equal"  # the intervals meet: the two are not told apart
    REPEATED = "repeated"  # both are of one comparison: it was not timed again
    UNSURE = "unsure"  # they may not be compared
    MISSING = "missing"  # one side has no such task


class ChangeCause(StrEnum):
    """What differs besides the time, of what became slower or faster."""

    SCHEDULE = "schedule"  # another one won
    SKETCH = "sketch"  # the version of its sketch, so that the same values may be another kernel
    VERSIONS = "versions"  # of Tunewright, compiler or driver; the schedule is the same
    MACHINE = "machine"  # nothing of these
    UNKNOWN = "unknown"  # the schedule is the same, and its versions were not noted


CAUSES = {
    ChangeCause.SCHEDULE: "another schedule won",
    ChangeCause.SKETCH: "the sketch of its schedule has another version",
    ChangeCause.VERSIONS: "the same schedule, built by",  # ... what instead of what
    ChangeCause.MACHINE: "the same schedule, built by the same versions: that leaves the machine",
    ChangeCause.UNKNOWN: "the same schedule; which versions built it was not noted",
}
"""These in words."""

BUILDERS = frozenset(VERSIONS + GPU_VERSIONS)
"""Entries of a provenance with the versions that decide what becomes of a schedule."""

MOST_ORIGINS = 6
"""What differs besides the time is told of so many entries of a provenance."""

OTHER_TARGETS = "they are of different targets"
NOT_CONFIRMED = "not confirmed: its time is of a trial"
NOT_STORED = "its confirmation is not stored here"
NOT_TIMED = "it has no time"
TAKEN_BACK = "it failed, or was taken back"


@dataclass(frozen=True, slots=True)
class TaskSide:
    """What is known of a task on one side of a comparison."""

    target_key: str
    record: Record | None  # the confirmation that its time is of
    default_key: str  # of the default schedule that was timed beside it; empty: not known
    why_unconfirmed: str = ""  # where there is no record


@dataclass(frozen=True, slots=True)
class TimeChange:
    """What became of a time: `why` says what keeps it from being compared, `cause` what else differs."""

    finding: TimeFinding
    why: str = ""
    cause: ChangeCause | None = None
    versions: tuple[str, ...] = ()  # which others built it, where they are the cause
    origins: tuple[str, ...] = ()  # what else its times came of, where that differs
    default_factor: float | None = None  # how many times as long its default takes, where that changed likewise

    @property
    def is_flagged(self) -> bool:
        """Whether it is slower or faster for certain."""
        return self.finding in (TimeFinding.SLOWER, TimeFinding.FASTER)

    @property
    def cause_brief(self) -> str:
        """The cause for people, in short; empty where nothing is flagged."""
        return " ".join(filter(None, [CAUSES[self.cause], ", ".join(self.versions)])) if self.cause else ""

    @property
    def cause_text(self) -> str:
        """The same with all else that differs."""
        if self.cause is None:
            return ""
        default = f"its default changed too: {change(self.default_factor)}" if self.default_factor else ""
        more = len(self.origins) - MOST_ORIGINS
        others = [*self.origins[:MOST_ORIGINS], *([f"and {more} more"] if more > 0 else [])]
        return "; ".join(filter(None, [self.cause_brief, default, *others]))


def finding_of(before: ConfirmedTime, now: ConfirmedTime) -> TimeChange:
    """What became of a time that was confirmed twice on one target."""
    if why := now.why_incomparable(before):
        return TimeChange(TimeFinding.UNSURE, why)
    if now.is_slower_than(before):
        return TimeChange(TimeFinding.SLOWER)
    return TimeChange(TimeFinding.FASTER if before.is_slower_than(now) else TimeFinding.EQUAL)


def task_change(before: TaskSide | None, now: TaskSide | None) -> TimeChange:
    """What became of a task; None on a side that does not have it."""
    if before is None or now is None:
        return TimeChange(TimeFinding.MISSING)
    if before.target_key != now.target_key:
        return TimeChange(TimeFinding.UNSURE, OTHER_TARGETS)
    if before.record is None or now.record is None:
        return TimeChange(TimeFinding.UNSURE, before.why_unconfirmed or now.why_unconfirmed)
    if before.record == now.record:
        return TimeChange(TimeFinding.REPEATED)
    times = ConfirmedTime.of(before.record.measurement), ConfirmedTime.of(now.record.measurement)
    if times[0] is None or times[1] is None:
        return TimeChange(TimeFinding.UNSURE, TAKEN_BACK)
    found = finding_of(times[0], times[1])
    return _explained(found.finding, before, before.record, now, now.record) if found.is_flagged else found


def _explained(
    finding: TimeFinding, before: TaskSide, record_before: Record, now: TaskSide, record_now: Record
) -> TimeChange:
    """A change that is certain, with what else differs."""
    measured = record_before.measurement, record_now.measurement
    origins = changed_origins(*measured)
    cause = _cause(record_before.schedule, record_now.schedule, measured, origins)
    is_same_default = bool(before.default_key) and before.default_key == now.default_key
    factor = _default_factor(finding, *measured) if is_same_default else None
    builders, others = (
        [{name: origin[name] for name in origin if (name in BUILDERS) is are_builders} for origin in origins]
        for are_builders in (True, False)
    )
    if cause is ChangeCause.VERSIONS:
        return TimeChange(
            finding, "", cause, tuple(replaced_texts(*builders)), tuple(origin_texts(*others)), default_factor=factor
        )
    texts = (*origin_texts(*builders), *origin_texts(*others))
    return TimeChange(finding, "", cause, origins=texts, default_factor=factor)


def _cause(
    before: Schedule,
    now: Schedule,
    measured: tuple[Measurement, Measurement],
    origins: tuple[Mapping[str, str], Mapping[str, str]],
) -> ChangeCause:
    if before != now:
        is_version = (before.sketch, before.values) == (now.sketch, now.values)
        return ChangeCause.SKETCH if is_version else ChangeCause.SCHEDULE
    if not BUILDERS.isdisjoint(origins[0].keys() | origins[1].keys()):
        return ChangeCause.VERSIONS
    is_noted = not BUILDERS.isdisjoint(measured[0].provenance)
    return ChangeCause.MACHINE if is_noted else ChangeCause.UNKNOWN


def _default_factor(finding: TimeFinding, before: Measurement, now: Measurement) -> float | None:
    """How many times as long the default takes that was timed beside both; None unless it changed the same way."""
    times = [_default_time(measured) for measured in (before, now)]
    if times[0] is None or times[1] is None or finding_of(times[0], times[1]).finding is not finding:
        return None
    return ratio(times[1].time, times[0].time)


def _default_time(confirmed: Measurement) -> ConfirmedTime | None:
    """The time of the default beside a confirmation, which is as warm, and as noisy."""
    of_best = ConfirmedTime.of(confirmed)
    if of_best is None or confirmed.incumbent_s is None:
        return None
    return ConfirmedTime(confirmed.incumbent_s, default_interval(confirmed), of_best.noise, of_best.is_warm)


# The whole model


@dataclass(frozen=True, slots=True)
class RunSide:
    """What a job tells of a run of its whole model."""

    identity: tuple[str, Mapping[str, int]]  # the model's digest, and the sizes that it was timed for
    target_key: str
    time: ConfirmedTime | None  # in milliseconds, as it is run from then on; None: it was not timed

    @staticmethod
    def of_result(
        identity: tuple[str, Mapping[str, int]], target_key: str, result: Mapping[str, Any] | None
    ) -> RunSide:
        """By the result of a job, if it has one."""
        tuned_ms = values.number(result, "tuned_ms")
        interval, noise = values.interval(result, "tuned_interval_ms"), values.word(result, "noise")
        return RunSide(identity, target_key, None if tuned_ms is None else ConfirmedTime(tuned_ms, interval, noise))


def run_change(before: RunSide, now: RunSide) -> TimeChange:
    """What became of a run of the whole model."""
    if not before.identity[0] or before.identity[0] != now.identity[0]:
        return TimeChange(TimeFinding.UNSURE, "they are of different models")
    if before.identity[1] != now.identity[1]:
        return TimeChange(TimeFinding.UNSURE, "they are of different sizes of the model")
    if before.target_key != now.target_key:
        return TimeChange(TimeFinding.UNSURE, OTHER_TARGETS)
    if before.time is None or now.time is None:
        return TimeChange(TimeFinding.UNSURE, "a run of the whole model was not timed in both")
    return finding_of(before.time, now.time)

"""Regression: a task whose best was confirmed to be slower than the one before it, on the same target.

`ConfirmedTime` has the one rule by which two times are told apart, wherever they are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunewright.codegen.codec import to_json
from tunewright.db.best import TaskComparisons
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, PACE, Measurement, Status

from ..known_times import is_warm
from ..noise import noise_of_measurement
from ..text import Interval
from ..units import Time, TimeInterval

OF_TIMES = frozenset({DEFAULT_INTERVAL, NOISE, PACE})
"""Entries of a measurement's provenance that are about its times: they differ each time."""


@dataclass(frozen=True, slots=True)
class ConfirmedTime:
    """A time that was confirmed, in any unit, with what tells whether another may be compared with it."""

    time: float
    interval: Interval | None  # 95%, of the median
    noise: str = ""  # why the machine was too busy to rely on it; empty where it was not
    is_warm: bool = False  # whether constants were found in the caches

    @staticmethod
    def of(confirmed: Measurement) -> ConfirmedTime | None:
        """That of a confirmation, in seconds; None where it is not OK, or was taken back."""
        if confirmed.status is not Status.OK or confirmed.median_s is None:
            return None
        noise = noise_of_measurement(confirmed)
        return ConfirmedTime(confirmed.median_s, confirmed.interval_s, noise, is_warm(confirmed))

    def why_incomparable(self, other: ConfirmedTime) -> str:
        """Why neither of two times is slower for certain, whatever they are; empty where they may be compared.

        Of times with warm caches and others neither is: constants are found in the caches in one model, and not in
        another.
        """
        if noise := self.noise or other.noise:
            return f"too noisy: {noise}"
        if self.interval is None or other.interval is None:
            return "of too few samples for an interval"
        if self.is_warm != other.is_warm:
            return "one was timed with warm caches, the other with cold ones"
        return ""

    def is_slower_than(self, other: ConfirmedTime) -> bool:
        """Whether it is slower beyond both intervals, and the two may be compared."""
        if self.why_incomparable(other) or self.interval is None or other.interval is None:
            return False
        return self.interval[0] > other.interval[1]


def changed_origins(before: Measurement, now: Measurement) -> tuple[dict[str, str], dict[str, str]]:
    """What two measurements came of where that differs: versions above all, by the names in their provenance."""
    origins = before.provenance, now.provenance
    names = sorted((origins[0].keys() | origins[1].keys()) - OF_TIMES)
    changed = [name for name in names if origins[0].get(name) != origins[1].get(name)]
    old, new = ({name: origin[name] for name in changed if name in origin} for origin in origins)
    return old, new


@dataclass(frozen=True, slots=True)
class Regression:
    """The times of a task's best as it was confirmed before and now, and what they came of where that differs."""

    before_s: Time
    before_interval_s: TimeInterval
    now_s: Time
    now_interval_s: TimeInterval
    before: dict[str, str]  # entries of the provenance, versions above all
    now: dict[str, str]

    @staticmethod
    def between(compared: TaskComparisons | None, now: Measurement) -> Regression | None:
        """The regression from the newest confirmation of a task to one that is new; None where there is none.

        It must be beyond both intervals: see `ConfirmedTime`. None too where the one before was taken back.
        """
        if compared is None or compared.standing != compared.newest:
            return None
        before = compared.newest.measurement
        time_before, time_now = ConfirmedTime.of(before), ConfirmedTime.of(now)
        if time_before is None or time_now is None or not time_now.is_slower_than(time_before):
            return None
        edges = time_before.interval, time_now.interval
        return Regression(before.median_s, edges[0], now.median_s, edges[1], *changed_origins(before, now))

    def event(self, task_key: str, op: str) -> NewEvent:
        """The event that tells of it."""
        return NewEvent(EventKind.REGRESSED, {"task_key": task_key, "op": op} | self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds."""
        data: dict[str, Any] = to_json(self)
        return data

"""Regression: a task whose best was confirmed to be slower than the one before it, on the same target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunewright.codegen.codec import to_json
from tunewright.db.best import TaskComparisons
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import DEFAULT_INTERVAL, DRIFT, NOISE, Measurement

from ..confirmed_time import ConfirmedTime
from ..units import Time, TimeInterval

OF_TIMES = frozenset({DEFAULT_INTERVAL, NOISE, DRIFT})
"""Entries of a measurement's provenance that are about its times: they differ each time."""


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

"""Regression: a task whose best was confirmed to be slower than the one before it, on the same target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunewright.codegen.codec import to_json
from tunewright.db.best import TaskComparisons
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import DEFAULT_INTERVAL, NOISE, PACE, Measurement, Status

from ..known_times import is_warm
from ..noise import noise_of_measurement
from ..units import Time, TimeInterval

OF_TIMES = frozenset({DEFAULT_INTERVAL, NOISE, PACE})
"""Entries of a measurement's provenance that are about its times: they differ each time."""


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

        It must be beyond both intervals. None too where the one before was taken back or was not OK, where a machine
        was too busy to rely on either, and where they tell of different times: constants are found in the caches in one
        model, and not in another.
        """
        if compared is None or compared.standing != compared.newest:
            return None
        before = compared.newest.measurement
        edges_before, edges_now = before.interval_s, now.interval_s
        if before.status is not Status.OK or now.status is not Status.OK or edges_before is None or edges_now is None:
            return None
        if any(map(noise_of_measurement, (before, now))) or is_warm(before) != is_warm(now):
            return None
        if edges_now[0] <= edges_before[1]:
            return None
        origins = before.provenance, now.provenance
        names = sorted((origins[0].keys() | origins[1].keys()) - OF_TIMES)
        changed = [name for name in names if origins[0].get(name) != origins[1].get(name)]
        old, new = ({name: origin[name] for name in changed if name in origin} for origin in origins)
        return Regression(before.median_s, edges_before, now.median_s, edges_now, old, new)

    def event(self, task_key: str, op: str) -> NewEvent:
        """The event that tells of it."""
        return NewEvent(EventKind.REGRESSED, {"task_key": task_key, "op": op} | self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in milliseconds."""
        data: dict[str, Any] = to_json(self)
        return data

"""LookupResult: the schedule to use for a task, and the basis of that choice.

Nothing here needs a database, so a client of a server reads its answers with this module alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces

from ..units import in_ms

DRAWN = 64
"""Points of a space among which a replacement for a default that fails is looked for."""

LONGEST_TEXT = 1000
"""Letters of a text in an answer that was read: more is cut off."""

MOST_PROVENANCE = 64
"""Entries of a provenance that was read."""


class Pick(NamedTuple):
    """A schedule that was not measured, and its expected seconds."""

    schedule: Schedule
    time_s: float


class Match(StrEnum):
    """The rung of the ladder that an answer is from, the best first."""

    EXACT = "exact"  # the best known for this task on this target
    SIBLING = "sibling"  # the best known for this task on a similar target
    NEAREST = "nearest"  # the best known for a task of the same family, whose numbers are near
    PREDICTED = "predicted"  # the cost model's pick; nobody measured it
    DEFAULT = "default"  # nothing usable is known, or nothing that was found makes the model faster
    UNTRIED = "untried"  # the default is known to fail: a point of the space that nobody measured
    NONE = "none"  # the default is known to fail, and so is every replacement that was drawn


TRANSFERRED = frozenset({Match.SIBLING, Match.NEAREST, Match.PREDICTED})
"""Rungs whose schedules were not measured for the task on the target."""


class Basis(StrEnum):
    """The origin of a result's expected time."""

    MEASURED = "measured"  # of this schedule for this task on this target
    IMPORTED = "imported"  # the same by what another database said: it was not timed where it is known
    SIBLING = "sibling"  # of this schedule for this task on the target that `source` names
    SCALED = "scaled"  # measured for the task and target that `source` names, times the ratio of the work
    PREDICTED = "predicted"  # by the cost model: nobody measured it
    NONE = "none"  # not known


BASES = {
    Match.EXACT: Basis.MEASURED,
    Match.SIBLING: Basis.SIBLING,
    Match.NEAREST: Basis.SCALED,
    Match.PREDICTED: Basis.PREDICTED,
}
"""The basis of each rung; none for the others."""


@dataclass(frozen=True, slots=True)
class ResultSource:
    """The task and target that a schedule was measured for, where these are others."""

    task_key: str
    target_key: str
    target: str  # for people

    def to_json(self) -> dict[str, str]:
        return {"task": self.task_key, "target": self.target_key, "target_name": self.target}


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The schedule to use for a task, and why."""

    task: Task
    match: Match
    schedule: Schedule  # where `match` is NONE it must not be run
    measurement: Measurement | None  # of this schedule, if it was measured: for this task and target, or `source`
    confirmed: bool = False  # whether it won the comparison in fresh processes that ends a job; not where imported
    source: ResultSource | None = None
    scale: float = 1.0  # the work of this task among that of the one measured
    predicted_s: float | None = None  # by the cost model, where `match` is PREDICTED
    is_imported: bool = False  # whether it is by an imported record
    is_chosen: bool = True  # not where the model keeps its defaults, and these do without the task

    @property
    def is_kept(self) -> bool:
        """Whether it is the default as the model's job timed it, as the model keeps its defaults."""
        return self.match is Match.DEFAULT and self.measurement is not None

    @property
    def basis(self) -> Basis:
        """The origin of `expected_s`."""
        if self.match is Match.EXACT and self.is_imported:
            return Basis.IMPORTED
        if self.is_kept:
            return Basis.MEASURED
        return BASES.get(self.match, Basis.NONE)

    @property
    def expected_s(self) -> float | None:
        """Seconds that a run should take, see `basis`."""
        measured = self.measurement
        if measured is None:
            return self.predicted_s
        return None if measured.median_s is None else measured.median_s * self.scale

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95% interval of the median measured; of a scaled time none is known."""
        measured = self.measurement
        if measured is None or measured.low_s is None or measured.high_s is None or self.basis is Basis.SCALED:
            return None
        return measured.low_s, measured.high_s

    def to_json(self) -> dict[str, Any]:
        """Plain data; `read` inverts it as far as it goes."""
        interval_s = self.interval_s
        return {
            "key": self.task.key,
            "op": self.task.op,
            "match": self.match.value,
            "basis": self.basis.value,
            "confirmed": self.confirmed,
            "expected_ms": in_ms(self.expected_s),
            "interval_ms": None if interval_s is None else [1e3 * edge_s for edge_s in interval_s],
            "schedule": self.schedule.to_json(),
            "source": self.source.to_json() if self.source else None,
            "provenance": dict(self.measurement.provenance) if self.measurement else {},
        }


def measured_times_s(results: Mapping[str, LookupResult]) -> dict[str, float]:
    """Task key -> seconds measured for the task on the very target; infinite where its default is known to fail.

    Times of other targets and tasks are left out: they are not to be held against these. So are those of tasks that a
    model's defaults do without, as it keeps them, and imported ones where any was measured; else they are held against
    each other.
    """
    times_s = {key: inf for key, result in results.items() if result.match in (Match.UNTRIED, Match.NONE)}
    for basis in (Basis.MEASURED, Basis.IMPORTED):
        timed = [(key, result) for key, result in results.items() if result.basis is basis and result.is_chosen]
        if known := {key: result.expected_s for key, result in timed if result.expected_s is not None}:
            return times_s | known
    return times_s


def unmeasured_result(task: Task, target: Target, failed: Collection[str] = ()) -> LookupResult:
    """The default; where its key is in `failed`, the first point drawn that is not: the same one every time."""
    default = default_schedule(task, target)
    if default.key not in failed:
        return LookupResult(task, Match.DEFAULT, default, None)
    for space in spaces(task, target):
        for row in space.sample(DRAWN, np.random.default_rng(0)):
            schedule = space.schedule(row)
            if schedule.key not in failed:
                return LookupResult(task, Match.UNTRIED, schedule, None)
    return LookupResult(task, Match.NONE, default, None)


def read(task: Task, target: Target, data: Any) -> LookupResult:
    """The inverse of `to_json`, for untrusted data.

    Raises ValueError, in one line, where it is not an answer for this task, or its schedule is not legal for the task.
    Whatever it says is at worst slow: what is built is a point of this program's own space.
    """
    if not isinstance(data, Mapping) or data.get("key") != task.key:
        raise ValueError("it is no answer for this task")
    try:
        match = Match(data["match"])
        schedule = Schedule.from_json(data["schedule"])
        measurement, source = _measurement(data), _source(data.get("source"))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"it is no answer: {type(error).__name__}") from error
    if not holds(task, target, schedule):
        raise ValueError("its schedule is not legal for the task")
    if match is Match.PREDICTED:
        return LookupResult(task, match, schedule, None, predicted_s=measurement.median_s if measurement else None)
    if match in BASES and measurement is None:
        raise ValueError("it names no time")
    is_imported = data.get("basis") == Basis.IMPORTED
    return LookupResult(
        task, match, schedule, measurement, data.get("confirmed") is True, source, is_imported=is_imported
    )


def _measurement(data: Mapping[str, Any]) -> Measurement | None:
    if data["expected_ms"] is None:
        return None
    low_s, high_s = map(seconds, data["interval_ms"]) if data["interval_ms"] is not None else (None, None)
    entries = list(data["provenance"].items())[:MOST_PROVENANCE]
    provenance = {str(name)[:LONGEST_TEXT]: str(text)[:LONGEST_TEXT] for name, text in entries}
    return Measurement(
        Status.OK, median_s=seconds(data["expected_ms"]), low_s=low_s, high_s=high_s, provenance=provenance
    )


def seconds(value_ms: Any) -> float:
    """A time in milliseconds that was told, in seconds. Raises ValueError for what is none."""
    if isinstance(value_ms, bool) or not isinstance(value_ms, int | float) or not isfinite(value_ms) or value_ms < 0:
        raise ValueError("no time")
    return value_ms / 1e3


def _source(data: Any) -> ResultSource | None:
    if data is None:
        return None
    task_key, target_key, target = (str(data[name])[:LONGEST_TEXT] for name in ("task", "target", "target_name"))
    return ResultSource(task_key, target_key, target)

"""Lookup: what the database knows of a model's tasks on a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tunewright.codegen.target import Target
from tunewright.db.reading import NoDatabase, open_reader
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces

from .settings import settings

DRAWN = 64
"""Points of a space among which a replacement for a default that fails is looked for."""


class Match(StrEnum):
    """Where the schedule of a task comes from, the best first."""

    EXACT = "exact"  # the best known for this task and target
    DEFAULT = "default"  # nothing usable is known
    UNTRIED = "untried"  # the default is known to fail: a point of the space that nobody measured
    NONE = "none"  # the default is known to fail, and so is every replacement that was drawn


@dataclass(frozen=True, slots=True)
class Found:
    """The schedule to use for a task, and why."""

    task: Task
    match: Match
    schedule: Schedule  # where `match` is NONE it must not be run
    measurement: Measurement | None  # of this schedule, if it was measured
    confirmed: bool = False  # whether it won the comparison in a fresh process that ends a job

    @property
    def expected_s(self) -> float | None:
        """Seconds that a run should take."""
        return self.measurement.median_s if self.measurement else None

    def to_json(self) -> dict[str, Any]:
        measured = self.measurement
        return {
            "key": self.task.key,
            "op": self.task.op,
            "match": self.match.value,
            "confirmed": self.confirmed,
            "expected_ms": None if measured is None or measured.median_s is None else 1e3 * measured.median_s,
            "interval_ms": None
            if measured is None or measured.low_s is None or measured.high_s is None
            else [1e3 * measured.low_s, 1e3 * measured.high_s],
            "schedule": self.schedule.to_json(),
            "provenance": dict(measured.provenance) if measured else {},
        }


def lookup(store: Store, tasks: Iterable[Task], target: Target) -> dict[str, Found]:
    """Task key -> what to use for it, for each of the tasks."""
    by_key = {task.key: task for task in tasks}
    best = store.best_many(by_key, target.key)
    confirmed = store.confirmed_many(by_key, target.key)
    return {key: _found(store, task, target, best.get(key), confirmed.get(key)) for key, task in by_key.items()}


def _found(store: Store, task: Task, target: Target, best: Record | None, confirmed: Record | None) -> Found:
    if best is not None and holds(task, target, best.schedule):
        return Found(task, Match.EXACT, best.schedule, best.measurement, best == confirmed)
    records = store.records(task.key, target.key)
    if best is not None:  # found by an older version of its sketch
        usable = [r for r in records if r.measurement.status is Status.OK and holds(task, target, r.schedule)]
        if usable:
            best = min(usable, key=lambda record: record.measurement.median_s or float("inf"))
            return Found(task, Match.EXACT, best.schedule, best.measurement)
    tried = [*records, confirmed] if confirmed else records
    return _unmeasured(task, target, {r.schedule.key for r in tried if r.measurement.status is not Status.OK})


def _unmeasured(task: Task, target: Target, failed: set[str]) -> Found:
    """The default; where it is known to fail, the first point drawn that is not: the same one every time."""
    default = default_schedule(task, target)
    if default.key not in failed:
        return Found(task, Match.DEFAULT, default, None)
    for space in spaces(task, target):
        for row in space.sample(DRAWN, np.random.default_rng(0)):
            schedule = space.schedule(row)
            if schedule.key not in failed:
                return Found(task, Match.UNTRIED, schedule, None)
    return Found(task, Match.NONE, default, None)


def look_up_in(db: str | None, tasks: Sequence[Task], target: Target) -> dict[str, Found]:
    """`lookup` in the database of that URL. Where the default one is not there yet, nothing is known.

    Raises NoDatabase where one was named and is not there, StoreError where it can't be read.
    """
    try:
        with open_reader(db or settings().db) as store:
            return lookup(store, tasks, target)
    except NoDatabase:
        if db is not None:
            raise
    return {task.key: Found(task, Match.DEFAULT, default_schedule(task, target), None) for task in tasks}

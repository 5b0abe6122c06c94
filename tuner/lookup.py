"""Lookup: what the database knows of a model's tasks on a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tunewright.codegen.target import Target
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds


@dataclass(frozen=True, slots=True)
class Found:
    """The schedule to use for a task, and why."""

    task: Task
    match: str  # "exact": the fastest measured for this task and target; "default": nothing usable is known
    schedule: Schedule
    measurement: Measurement | None  # of this schedule, if it was measured

    @property
    def expected_s(self) -> float | None:
        """Seconds that a run should take."""
        return self.measurement.median_s if self.measurement else None

    def to_json(self) -> dict[str, Any]:
        measured = self.measurement
        return {
            "key": self.task.key,
            "op": self.task.op,
            "match": self.match,
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
    return {key: _found(store, task, target, best.get(key)) for key, task in by_key.items()}


def _found(store: Store, task: Task, target: Target, best: Record | None) -> Found:
    if best is not None and not holds(task, target, best.schedule):  # found by an older version of its sketch
        done = store.records(task.key, target.key, [Status.OK])
        usable = [record for record in done if holds(task, target, record.schedule)]
        best = min(usable, key=lambda record: record.measurement.median_s or float("inf"), default=None)
    if best is None:
        return Found(task, "default", default_schedule(task, target), None)
    return Found(task, "exact", best.schedule, best.measurement)

"""Collection of the base cost model's training data: some schedules of each task, stored as trials."""

from __future__ import annotations

from tunewright.bench.recorder import record_comparison, record_trials
from tunewright.codegen.target import Target
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.workers.pool import Pool

from .choice import choose_schedules


def collect(store: Store, pool: Pool, task: Task, target: Target, count: int, *, side_by_side: bool = False) -> int:
    """Measure and store `count` schedules of a task, if it has fewer. Returns how many were measured.

    `side_by_side` times are more comparable, at a few times the cost: where one is missing, all are measured.
    """
    store.add_target(target)
    store.add_task(task)
    stored = {record.schedule for record in store.records(task.key, target.key)}
    schedules = choose_schedules(task, target, count)
    missing = [schedule for schedule in schedules if schedule not in stored]
    if missing and side_by_side:
        return record_comparison(store, pool, [Candidate(task, target, schedule) for schedule in schedules])
    return record_trials(store, pool, [Candidate(task, target, schedule) for schedule in missing])

"""What people took back since a job has told of it: its report is marked, as it is read, and so the same everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.search_space.measurement import FAILED, Status
from tunewright.search_space.schedule import Schedule

from . import values

Voids = Collection[tuple[str, str]]
"""Task keys and schedule keys of what is taken back."""


def mark_taken_back(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """The jobs with their reports marked: `default_voided` and `best_voided` of tasks, and how many trials were.

    Raises StoreError.
    """
    keys_by_target: dict[str, set[str]] = {}
    for job in jobs:
        if job.result is not None:
            keys_by_target.setdefault(job.spec.target_key, set()).update(task.task_key for task in job.spec.tasks)
    voids = {target_key: store.voids.in_force(keys, target_key) for target_key, keys in keys_by_target.items()}
    return [_marked(store, job, voids.get(job.spec.target_key, ())) for job in jobs]


def _marked(store: Store, job: Job, voids: Voids) -> Job:
    keys = {task.task_key for task in job.spec.tasks}
    if job.result is None or not any(task_key in keys for task_key, _ in voids):
        return job
    statuses = store.jobs.statuses(job.id)
    failed = {status.value: count for status, count in statuses.items() if status in FAILED}
    tasks = [_marked_task(entry, voids) for entry in values.entries(job.result, "tasks")]
    result = job.result | {"tasks": tasks, "voided": statuses.get(Status.VOIDED, 0), "failed": failed}
    return replace(job, result=result)


def _marked_task(entry: Mapping[str, Any], voids: Voids) -> dict[str, Any]:
    """A task of a report; a schedule of another version, or none, is not known to be taken back.

    One without a time is not marked: that it was taken back already is why the report has none.
    """
    key = values.word(entry, "key")
    try:
        best_key = Schedule.from_json(entry["schedule"]).key
    except (KeyError, TypeError, ValueError):
        best_key = ""
    marks = (
        ("default_voided", "default_ms", values.word(entry, "default_schedule")),
        ("best_voided", "best_ms", best_key),
    )
    return {
        **entry,
        **{
            mark: True
            for mark, time, schedule_key in marks
            if (key, schedule_key) in voids and entry.get(time) is not None
        },
    }

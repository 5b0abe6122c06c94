"""Plans of what is to be re-timed of a target: a job for each model at hand, and jobs of tasks for all else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tunewright.codegen.target import Target
from tunewright.db.job import RETIME, UNFINISHED, JobSpec, SpecTask, search_settings
from tunewright.db.staleness import StaleBest
from tunewright.db.store import Store
from tunewright.graph.numerics import Precision

from ..known_times import present_versions

PAGE = 500
"""Stale tasks that are asked for at once."""

TASKS = 200
"""Most tasks of a job without a model: it holds all of their trials in memory."""

LABEL = "stale tasks"
"""The name of such a job, for people."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that is yet to be submitted."""

    spec: JobSpec
    label: str


def stale_bests(store: Store, target: Target) -> Iterator[StaleBest]:
    """The stale tasks of a target, by key. Raises StoreError."""
    versions, after = present_versions(target.kind), ""
    while page := store.staleness.tasks(target.key, versions, after=after, limit=PAGE):
        yield from page
        after = page[-1].task_key


def stale_counts(store: Store) -> Mapping[Target, int]:
    """The targets with stale tasks, and how many these are. Raises StoreError."""
    targets = {target.key: target for target in store.targets()}
    kinds = {target.kind for target in targets.values()}
    counts = store.staleness.counts({kind: present_versions(kind) for kind in kinds})
    return {target: counts[key] for key, target in targets.items() if key in counts}


def plan_jobs(store: Store, target: Target, schedules: int) -> Iterator[PlannedJob]:
    """Jobs that re-time so many schedules of each stale task of a target, but for tasks that such a job waits for.

    A model that was uploaded, the newest ones first, has a job as its last one was, so that it is timed as a whole.
    What is left is for jobs without a model. Raises StoreError.
    """
    left = dict.fromkeys(unplanned(store, target))
    while job_ids := store.staleness.model_jobs(left, target.key):
        for job in map(store.jobs.get, job_ids):
            keys = [task.task_key for task in job.spec.tasks]
            if left.keys().isdisjoint(keys):  # they are in a newer model
                continue
            yield PlannedJob(replace(job.spec, settings={**job.spec.settings, RETIME: schedules}), job.label)
            left = {key: None for key in left if key not in keys}
    yield from task_jobs(left, target, schedules)


def unplanned(store: Store, target: Target) -> list[str]:
    """Keys of the stale tasks of a target that no unfinished job re-times. Raises StoreError."""
    open_jobs = store.jobs.list(UNFINISHED, target_key=target.key)
    planned = {task.task_key for job in open_jobs if job.spec.retimed for task in job.spec.tasks}
    return [best.task_key for best in stale_bests(store, target) if best.task_key not in planned]


def task_jobs(task_keys: Iterable[str], target: Target, schedules: int) -> Iterator[PlannedJob]:
    """Jobs that re-time so many schedules of each of these tasks, without a model."""
    keys = list(task_keys)
    settings = search_settings(0, "evolutionary", {}, vendor=False, precision=Precision.AS_GIVEN, retime=schedules)
    for start in range(0, len(keys), TASKS):
        tasks = tuple(SpecTask(key, 1) for key in keys[start : start + TASKS])
        yield PlannedJob(JobSpec("", target.key, tasks, settings), LABEL)


def unfinished_task_job(store: Store, target: Target) -> PlannedJob | None:
    """A job of that kind that was begun for a target, if there is one. Raises StoreError."""
    jobs = store.jobs.list(UNFINISHED, model_sha256="", target_key=target.key)
    return next((PlannedJob(job.spec, job.label) for job in jobs if job.spec.retimed), None)

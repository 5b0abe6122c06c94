"""Settled: tasks that need no confirming, as nothing was found since that could change which schedule is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tunewright.codegen.target import Target
from tunewright.db.jobs import Job, JobState
from tunewright.search_space.measurement import Measurement, Record
from tunewright.search_space.schedule import Schedule

from .assignment import Assignment
from .report import Report, TaskReport
from .task_state import TaskState, is_current

Finalists = Callable[[TaskState, Schedule | None], Sequence[tuple[Schedule, Measurement]]]
"""Those of a task, of which the schedule confirmed last is one."""


def settled(assigned: Assignment, finalists: Finalists) -> dict[str, TaskReport]:
    """What the last job of the same model reported of such tasks, by key.

    The schedule that it reports is still the one that was confirmed last, no trial was faster since, and none of this
    job is a finalist. Tasks that may stand for each other are settled together or not at all: which of them the model
    runs is decided by times from side by side.
    """
    store, key = assigned.store, assigned.target.key
    job = store.jobs.get(assigned.tenure.lease.job_id)
    if (last := _last_report(assigned, job)) is None:
        return {}
    reported = {task.key: task for task in last.tasks}
    keys = [state.task.key for state in assigned.states]
    confirmed, best = store.confirmed_many(keys, key), store.best_many(keys, key)
    fresh = {(trial.record.task_key, trial.record.schedule.key) for trial in store.jobs.trials(job.id)}

    def is_settled(state: TaskState) -> bool:
        task = state.task.key
        if (
            task not in reported
            or task not in confirmed
            or not _stands(reported[task], confirmed[task], best.get(task), assigned.target)
        ):
            return False
        return not any((task, schedule.key) in fresh for schedule, _ in finalists(state, confirmed[task].schedule))

    open_tasks = {number for number, state in enumerate(assigned.states) if not is_settled(state)}
    while more := _coupled(assigned, open_tasks):
        open_tasks |= more
    return {
        state.task.key: _renewed(reported[state.task.key], state)
        for number, state in enumerate(assigned.states)
        if number not in open_tasks
    }


def _last_report(assigned: Assignment, job: Job) -> Report | None:
    """Of the last job of the model on this target that came to its end."""
    sha256, key = job.spec.model_sha256, assigned.target.key
    if not sha256:
        return None
    done = assigned.store.jobs.list([JobState.SUCCEEDED], model_sha256=sha256, target_key=key, limit=1)
    return Report.from_json(done[0].result) if done and done[0].result else None


def _stands(reported: TaskReport, confirmed: Record, best: Record | None, target: Target) -> bool:
    """Whether what was reported is what was confirmed last, by the compiler at hand, and the best still."""
    return (
        reported.best_s is not None
        and reported.schedule == confirmed.schedule.to_json()
        and best is not None
        and best.schedule == confirmed.schedule
        and is_current(confirmed.measurement.provenance, target)
    )


def _coupled(assigned: Assignment, open_tasks: set[int]) -> set[int]:
    """Tasks that are in one chain with any of these, and are not among them."""
    chains: list[set[int]] = [{part.task for part in chain.parts} for chain, _ in assigned.assembly.chains]
    return set().union(*(chain for chain in chains if chain & open_tasks)) - open_tasks


def _renewed(reported: TaskReport, state: TaskState) -> TaskReport:
    return replace(reported, occurrences=state.occurrences, chosen=state.occurrences, trials=len(state.measured))

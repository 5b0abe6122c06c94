"""The curves of a job: how its model, and each of its tasks, came to be faster."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from tunewright.db.job import Event, EventKind, Job
from tunewright.tuner.explain.curves import Improvement, Speedup, improvements, speedups
from tunewright.tuner.explain.gain import TaskSum
from tunewright.tuner.units import in_ms

from ...http.schemas.base import Answer
from ..views import Text
from .history import JobHistory, Times
from .tasks import TaskLine

MOST_STEPS = 40
"""Steps of a curve: of those with more, some between the first and the last are left out."""


class Abscissa(StrEnum):
    """What curves are drawn against."""

    TRIALS = "trials"
    SECONDS = "seconds"


class Step(Answer):
    """A point of a curve, which holds until the next one."""

    trial: int = Field(description="Trials of the job by then.")
    at_s: float = Field(description="Seconds by then in which a process was at work on the job.")
    speedup: float = Field(description="How many times as fast as by default.")
    is_noisy: bool = Field(description="Whether the machine was too busy to rely on it.")
    is_tried: bool = Field(description="Whether a trial is in it, which nothing has confirmed.")


class Curve(Answer):
    """How a task, or the whole model, came to be faster."""

    key: Text = Field(description="Of the task; empty for the whole model.")
    op: Text
    steps: list[Step]
    noise: Text = Field(description="Why the machine was too busy to rely on its end; empty where it was not.")


def model_curve(job: Job, history: JobHistory, end_s: float) -> Curve:
    """What its tasks came to as the search went on, and by now, or by its result: as that is told everywhere."""
    points, told = speedups(history.spine), TaskSum.of_job(job.progress, job.result)
    if told.speedup is None:  # older results have none
        told = TaskSum.of_job(job.progress, None)
    elif points and (job.result is not None or told.speedup != points[-1].speedup):
        points = [*points, Speedup(history.trials, end_s, told.speedup, bool(told.noise), told.is_tried)]
    steps = [Step.show(point, trial=point.trials) for point in points]
    return Curve(key="", op="", steps=steps, noise=told.noise)


def task_curves(history: JobHistory, tasks: Sequence[TaskLine]) -> list[Curve]:
    """Curves of the tasks whose first time is known."""
    own = {task.key: history.of_tasks.get(task.key, ()) for task in tasks}
    events = sorted(
        (event for part in (history.spine, *own.values()) for event in part), key=lambda event: event.number
    )
    improvements_by_task = improvements(events)
    return [
        Curve(key=task.key, op=task.op, steps=steps, noise=tried.noise)
        for task in tasks
        if (tried := history.tried.get(task.key))
        and (steps := _steps(_first_times(own[task.key]) or tried, improvements_by_task.get(task.key, [])))
    ]


def _first_times(events: Sequence[Event]) -> Times | None:
    """The times that were told of a task first: as confirmed before the job, or of its default."""
    first = next((event for event in events if event.kind is EventKind.DEFAULT), None)
    return None if first is None else Times().by_event(first)


def _steps(start: Times, task_improvements: Sequence[Improvement]) -> list[Step]:
    if not start.default_ms:
        return []
    speedup, is_tried = start.default_ms / (start.best_ms or start.default_ms), not start.is_confirmed
    first = [Step(trial=0, at_s=0.0, speedup=speedup, is_noisy=bool(start.noise), is_tried=is_tried)]
    later = [
        Step.show(improvement, speedup=(in_ms(improvement.default_s) or start.default_ms) / best_ms, is_tried=True)
        for improvement in task_improvements
        if (best_ms := in_ms(improvement.best_s))
    ]
    stride = -(-len(later) // MOST_STEPS) or 1
    return [*first, *later[(len(later) - 1) % stride :: stride]]  # the last one is what it came to

"""KnownReport: the report of a task from before, and the event by which a job tells that a task is confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tunewright.db.job import Event, EventKind, NewEvent
from tunewright.search_space.schedule import Schedule

from ..known_times import TIME_FIELDS, KnownTimes
from .context import JobContext
from .report import TaskReport
from .task_state import TaskState

EVENT_FIELDS = ("op", *TIME_FIELDS)
"""Fields of a task's report in the event of its confirmation."""

RETIMED = "retimed"
"""Another one, where the task was stale."""


@dataclass(frozen=True, slots=True)
class KnownReport:
    """The report of a task from before."""

    report: TaskReport
    at: datetime | None  # when this job confirmed it, before it was interrupted; None: another one did

    @property
    def is_news(self) -> bool:
        """Whether this job is yet to tell that it is confirmed."""
        return self.at is None and self.report.is_confirmed


def task_report(state: TaskState, schedule: Schedule, times: KnownTimes, is_confirmed: bool) -> TaskReport:
    """The report of a task that is to have this schedule, without its share of the machine's peak."""
    return TaskReport(
        key=state.task.key,
        op=state.task.op,
        occurrences=state.occurrences,
        chosen=state.occurrences,
        trials=len(state.measured),
        flops=state.task.flops,
        default_s=times.default_s,
        best_s=times.best_s,
        fraction_of_peak=None,
        schedule=schedule.to_json(),
        default_interval_s=times.default_interval_s,
        best_interval_s=times.best_interval_s,
        noise=times.noise,
        is_confirmed=is_confirmed,
        default_key=state.default.key,
    )


def confirmed_event(report: TaskReport) -> NewEvent:
    """The event that tells of a task's confirmation."""
    data = report.to_json()
    told = {name: data[name] for name in EVENT_FIELDS} | ({RETIMED: data[RETIMED]} if report.retimed else {})
    return NewEvent(EventKind.CONFIRMED, {"task_key": report.key} | told)


def confirmed_events(context: JobContext) -> dict[str, Event]:
    """The last event of each task that this job has confirmed so far, by task key."""
    events = context.store.jobs.events(context.job.id, limit=None, kinds=[EventKind.CONFIRMED])
    return {str(event.data.get("task_key")): event for event in events}

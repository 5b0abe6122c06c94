"""Assignment: what a job works on and with, all of its stages alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tunewright.codegen.target import Target
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import Pool

from ..models.assembly import Assembly
from ..text import counted, short
from .claims import Claims
from .task_state import TaskState
from .tenure import Tenure

_timing_log, _schedule_log = logging.getLogger("tunewright.timing"), logging.getLogger("tunewright.schedule")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a job works on and with."""

    store: SqlStore
    pool: Pool
    target: Target
    tenure: Tenure
    claims: Claims
    states: Sequence[TaskState]
    assembly: Assembly  # of the states, by their number


def log_trial(what: str, task: Task, schedule: Schedule, measurement: Measurement) -> None:
    """Tell those who listen what a trial came to."""
    if not (_timing_log.isEnabledFor(logging.DEBUG) or _schedule_log.isEnabledFor(logging.DEBUG)):
        return
    outcome = measurement.status.value
    if measurement.median_s is not None:
        outcome = f"{1e3 * measurement.median_s:.4g} ms, {counted(len(measurement.samples_s), 'sample')}"
    _timing_log.debug(
        "%s %s, schedule %s: %s %s", what, short(task.key), short(schedule.key), outcome, measurement.error
    )
    _schedule_log.debug("schedule %s: %s", short(schedule.key), schedule)

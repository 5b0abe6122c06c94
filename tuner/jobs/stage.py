"""Stage: what a tuning job is at."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The stages of a job, in their order."""

    READING = "reading"
    WAITING = "waiting"  # for another process that has the job
    SEARCHING = "searching"
    LEARNING = "learning"  # what later jobs shall know
    CONFIRMING = "confirming"
    RUNNING = "running"
    DONE = "done"

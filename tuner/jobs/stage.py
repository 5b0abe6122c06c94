"""Stage: what a tuning job is at."""

from __future__ import annotations

from collections.abc import Mapping
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


STAGES: Mapping[str, str] = {
    Stage.READING: "reading the model",
    Stage.WAITING: "another process is at work on the same job",
    Stage.SEARCHING: "searching",
    Stage.LEARNING: "learning from the trials",
    Stage.CONFIRMING: "timing default and best schedules side by side",
    Stage.RUNNING: "timing the whole model",
    Stage.DONE: "done",
}
"""The same for people."""

"""JobStage: the stages of a tuning job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..text import counted


class JobStage(StrEnum):
    """The stages of a job, in their order."""

    READING = "reading"
    WAITING = "waiting"  # for another process that has the job
    SEARCHING = "searching"
    LEARNING = "learning"  # what later jobs shall know
    CONFIRMING = "confirming"
    RUNNING = "running"
    DONE = "done"


STAGES: Mapping[str, str] = {
    JobStage.READING: "reading the model",
    JobStage.WAITING: "another process is at work on the same job",
    JobStage.SEARCHING: "searching",
    JobStage.LEARNING: "learning from the trials",
    JobStage.CONFIRMING: "timing default and best schedules side by side",
    JobStage.RUNNING: "timing the whole model",
    JobStage.DONE: "done",
}
"""The stages in words."""


AFTER_SEARCH: Mapping[str, str] = {
    JobStage.LEARNING: "timing side by side is left",
    JobStage.CONFIRMING: "timing side by side is left",
    JobStage.RUNNING: "timing the whole model is left",
    JobStage.DONE: "nothing is left",
}
"""The stages in which the search is over, and what is left then."""


def stage_words(stage: str, confirmed: int, to_confirm: int) -> str:
    """A stage in words, and how much of it is done where that is known; one of another version as it was told."""
    words = STAGES.get(stage, stage)
    if stage != JobStage.CONFIRMING or not to_confirm:
        return words
    return f"{words}: {confirmed} of {counted(to_confirm, 'task')}"

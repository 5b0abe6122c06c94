"""PrunedOfJob: what was removed of a job. It is stored with the job's progress, of which nobody else is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import func

from tunewright.search_space.measurement import Status

from .tables import JobRow

ENTRY = "pruned"
"""The entry of a job's stored progress. `Job.progress` has none."""

TRIALS, THINNED = "trials", "is_thinned"
"""What the entry has."""

IS_THINNED = func.coalesce(JobRow.progress[(ENTRY, THINNED)].as_boolean(), False)
"""Whether of a job's progress a sample is left."""


@dataclass(frozen=True, slots=True)
class PrunedOfJob:
    """What was removed of a job."""

    trials: Mapping[str, Mapping[Status, int]] = field(default_factory=dict)  # task key -> their numbers by status
    is_thinned: bool = False  # of its progress a sample is left

    @classmethod
    def of(cls, progress: Mapping[str, Any] | None) -> PrunedOfJob:
        """That of a job, by its stored progress."""
        entry: Mapping[str, Any] = (progress or {}).get(ENTRY) or {}
        trials: Mapping[str, Mapping[str, int]] = entry.get(TRIALS) or {}
        by_status = {key: {Status(status): count for status, count in of.items()} for key, of in trials.items()}
        return cls(by_status, bool(entry.get(THINNED)))

    def with_trials(self, task_key: str, status: Status, count: int) -> PrunedOfJob:
        """With so many more trials of a task."""
        of_task = self.trials.get(task_key, {})
        of_task = {**of_task, status: of_task.get(status, 0) + count}
        return replace(self, trials={**self.trials, task_key: of_task})

    def store(self, row: JobRow) -> None:
        """Store it with a locked job."""
        trials = {key: {str(status): count for status, count in of.items()} for key, of in self.trials.items()}
        row.progress = (row.progress or {}) | {ENTRY: {TRIALS: trials, THINNED: self.is_thinned}}


def told_progress(progress: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The progress of a job that its holder told, of what is stored; None where it told none."""
    if progress is None or ENTRY not in progress:
        return None if progress is None else dict(progress)
    return {name: value for name, value in progress.items() if name != ENTRY} or None

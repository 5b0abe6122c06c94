"""ComparisonRule: what a confirmation compares. A search has one, and what times stale tasks again has another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tunewright.search_space.measurement import Measurement
from tunewright.search_space.schedule import Schedule

from .known_report import KnownReport
from .report import TaskReport
from .task_state import TaskState

Comparison = list[tuple[Schedule, Measurement]]


class ComparisonRule(Protocol):
    """What is settled already, what is compared of each other task, and what is to be told of it."""

    def settled(self) -> Mapping[str, KnownReport]:
        """The reports of tasks that need not be compared, by key."""
        ...

    def settled_since(self, state: TaskState) -> TaskReport | None:
        """The report of a task, now claimed, that others have settled since `settled`; None where it is compared."""
        ...

    def finalists(self, state: TaskState, confirmed: Schedule | None) -> Comparison:
        """What is compared of a task, the schedule that was confirmed last among it."""
        ...

    def has_rivals(self, finalists: Comparison, confirmed: Schedule | None) -> bool:
        """Whether there is something to compare."""
        ...

    def judge(self, state: TaskState, report: TaskReport) -> TaskReport:
        """The report of a task that was compared, with what the rule has to say of it."""
        ...

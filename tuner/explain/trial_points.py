"""Trials of a task, grouped by the space of their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces


@dataclass(frozen=True, slots=True)
class SpaceTrials:
    """Trials whose schedules lie in one space."""

    trials: Trials
    lines: tuple[TrialLine, ...]  # the same, in the same order


def trials_by_space(task: Task, target: Target, lines: Sequence[TrialLine]) -> list[SpaceTrials]:
    """The trials grouped by space; those of other versions of a sketch are in none, and left out."""
    groups = []
    for space in spaces(task, target):
        rows, numbers = space.rows([line.schedule for line in lines])
        space_lines = tuple(lines[number] for number in numbers)
        if space_lines:
            groups.append(SpaceTrials(Trials.at(task, target, space, rows, space_lines), space_lines))
    return groups

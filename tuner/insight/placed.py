"""Placed: trials of a task in the spaces that they are points of, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials
from tunewright.db.trials import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces


@dataclass(frozen=True, slots=True)
class Placed:
    """Trials whose schedules lie in one space."""

    trials: Trials
    lines: tuple[TrialLine, ...]  # the same, in the same order


def placed(task: Task, target: Target, lines: Sequence[TrialLine]) -> list[Placed]:
    """The trials by the spaces that are searched; those of other versions of a sketch are in none, and left out."""
    found = []
    for space in spaces(task, target):
        rows, places = space.rows([line.schedule for line in lines])
        here = tuple(lines[place] for place in places)
        if here:
            found.append(Placed(Trials.at(task, target, space, rows, here), here))
    return found

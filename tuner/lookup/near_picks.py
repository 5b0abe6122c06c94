"""NearPicks: picks for a model at one size, taken over at others near to it."""

from __future__ import annotations

from typing import NamedTuple

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.graph.task_family import TaskFamily
from tunewright.search_space.sketches import holds

from .result import Pick

NEAR = 1.5
"""Ratio of work up to which a pick is taken over. A model's sizes are seldom further apart than a few of these."""


class NearPick(NamedTuple):
    """What was picked for a task; None: its default."""

    task: Task
    pick: Pick | None


class NearPicks:
    """Picks of one process for one model. What they were made for differs from what they serve in sizes alone."""

    def __init__(self) -> None:
        self._picks: dict[tuple[str, str], list[NearPick]] = {}  # by family and target

    def find(self, task: Task, target: Target) -> NearPick | None:
        """The pick for a task with the same constants whose work is about as much, if it is legal for this one too."""
        for other, pick in self._picks.get((task.family, target.key), []):
            ratio = work_ratio(task, other)
            if not 1 / NEAR <= ratio <= NEAR or (pick is not None and not holds(task, target, pick.schedule)):
                continue
            if task.key == other.key or TaskFamily.of(other, task) is not None:
                return NearPick(task, None if pick is None else Pick(pick.schedule, pick.time_s * ratio))
        return None

    def add(self, task: Task, target: Target, pick: Pick | None) -> None:
        """Keep what was picked for a task."""
        self._picks.setdefault((task.family, target.key), []).append(NearPick(task, pick))


def work_ratio(task: Task, measured: Task) -> float:
    """The work of a task among that of a task of its family: by operations, or by bytes where there are none."""
    if task.flops and measured.flops:
        return task.flops / measured.flops
    return task.traffic_bytes / max(measured.traffic_bytes, 1)

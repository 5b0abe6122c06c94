"""The plan of a collection: tasks and schedules to time, chosen ahead on any machine, as time on a GPU is dear."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tunewright.bench.files import write_whole
from tunewright.bench.training.choice import choose_schedules
from tunewright.bench.training.tasks import is_held_out_or_reserved
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule

from .tasks import reserved_loops

SCHEDULES, JUDGED_SCHEDULES = 16, 40
"""Schedules of a task to learn from, and of one to judge by, of which the fastest should be near the best there is."""


class PlannedTask(NamedTuple):
    """A task and the schedules of it to time: first the default of each sketch."""

    task: Task
    schedules: tuple[Schedule, ...]


def plan(tasks: Mapping[str, Task], target: Target) -> Iterator[PlannedTask]:
    """The plan of tasks, in their order."""
    reserved = reserved_loops()
    for task in tasks.values():
        count = JUDGED_SCHEDULES if is_held_out_or_reserved(task, reserved) else SCHEDULES
        yield PlannedTask(task, tuple(choose_schedules(task, target, count)))


def write_plan(path: Path, planned_tasks: Iterator[PlannedTask]) -> int:
    """Write a plan, a line of JSON a task. Returns the number of schedules."""
    lines, count = [], 0
    for task, schedules in planned_tasks:
        data = {"task": task.to_json(), "schedules": [schedule.to_json() for schedule in schedules]}
        lines.append(json.dumps(data, separators=(",", ":")))
        count += len(schedules)
    write_whole(path, lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    return count


def read_plan(path: Path) -> list[PlannedTask]:
    """The inverse of `write_plan`. Raises OSError, LZMAError, ValueError for other files."""
    planned_tasks = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            data = json.loads(line)
            schedules = tuple(map(Schedule.from_json, data["schedules"]))
            planned_tasks.append(PlannedTask(Task.from_json(data["task"]), schedules))
    return planned_tasks

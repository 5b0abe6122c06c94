"""Definitions: the targets and tasks that requests describe, checked before anything is made of them."""

from __future__ import annotations

from typing import Any

from tunewright.codegen.target import Target
from tunewright.db.admission import check_size
from tunewright.graph.task import Task

from ..problems import invalid
from ..schemas import LookupAsked


def target_of(asked: LookupAsked) -> tuple[str, Target | None]:
    """The key of the target that a lookup is for, and the target itself where it was sent. Raises Problem."""
    if isinstance(asked.target, str):
        return asked.target, None
    try:
        target = Target.from_json(asked.target)
    except ValueError as error:
        raise invalid("body", ["target"], str(error)) from error
    return target.key, target


def task_of(key: str, data: Any) -> Task:
    """The task that a request defines. Raises Problem where it is none, too large, or another one than its key says."""
    try:
        task = Task.from_json(data)
        check_size(task)
        if task.key != key:
            raise ValueError(f"its key is {task.key}")
    except RecursionError as error:
        raise invalid("body", ["definitions", key], "it is not this task: it is nested too deeply") from error
    except ValueError as error:
        raise invalid("body", ["definitions", key], f"it is not this task: {error}") from error
    return task

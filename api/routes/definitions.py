"""Definitions: the targets and tasks that requests describe, checked before anything is made of them."""

from __future__ import annotations

from typing import Any

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..problems import invalid
from ..schemas import LookupAsked

MOST_STAGES, MOST_TENSORS, LARGEST_RANK, LARGEST_EXTENT = 64, 128, 16, 1 << 40
"""Bounds of a task that is sent; those of models are far smaller."""


def target_of(asked: LookupAsked) -> tuple[str, Target | None]:
    """The key of the target that a lookup is for, and the target itself where it was sent. Raises Problem."""
    if isinstance(asked.target, str):
        return asked.target, None
    try:
        target = Target.from_json(asked.target)
    except (TypeError, ValueError) as error:
        raise invalid("body", ["target"], str(error)) from error
    return target.key, target


def task_of(key: str, data: Any) -> Task:
    """The task that a request defines. Raises Problem where it is none, too large, or another one than its key says."""
    try:
        task = Task.from_json(data)
        tensors = [*task.inputs, *task.outputs, *task.temporaries]
        extents = [extent for tensor in tensors for extent in tensor.shape]
        extents += [axis.extent for stage in task.stages for axis in stage.axes + stage.reduce]
        if len(task.stages) > MOST_STAGES or len(tensors) > MOST_TENSORS or max(extents, default=1) > LARGEST_EXTENT:
            raise ValueError("it is too large")
        if any(len(tensor.shape) > LARGEST_RANK for tensor in tensors):
            raise ValueError("a tensor has too many dimensions")
        if task.key != key:
            raise ValueError(f"its key is {task.key}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        said = f"it is not this task: {type(error).__name__}: {error}"
        raise invalid("body", ["definitions", key], said) from error
    return task

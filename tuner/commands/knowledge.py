"""`tunewright tasks` and `tunewright lookup`: what a model consists of, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tunewright.graph.task import Tensor
from tunewright.search_space.schedule import Schedule

from ..text import duration, large, printable, shape, slow_nodes
from . import subject
from .tables import WIDE, key_letters, new_table, print_table

SCHEDULE_COLUMNS = 40
"""Room that a schedule needs beside the rest of a table."""


def tasks(model: Path, db: str | None, dims: Mapping[str, int], threads: int | None) -> dict[str, Any]:
    """The tasks of a model, and how many of its nodes they cover."""
    read = subject.read(model, db, dims, threads)
    rows = [
        {
            "key": key,
            "op": task.op,
            "inputs": [_tensor(tensor) for tensor in task.inputs],
            "outputs": [_tensor(tensor) for tensor in task.outputs],
            "flops": task.flops,
            "traffic_bytes": task.traffic_bytes,
            "occurrences": count,
            "best_ms": None if (best_s := read.found[key].expected_s) is None else 1e3 * best_s,
        }
        for key, (task, count) in read.model.tasks.items()
    ]
    return {
        "model": read.model.label,
        "target": str(read.target),
        "tasks": rows,
        "flops": sum(task.flops * count for task, count in read.model.tasks.values()),
        "coverage": {
            "native": read.model.native_nodes,
            "fallback": read.model.fallback_ops,
            "reasons": read.model.fallback_reasons,
        },
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "constant": tensor.constant}


def render_tasks(console: Console, data: Mapping[str, Any]) -> None:
    """A line a task, in the order of the model."""
    table = new_table(console, ("task", "op", "shapes"), ("FLOPs", "times", "best"))
    for task in data["tasks"]:
        table.add_row(
            task["key"][: key_letters(console)],
            Text(printable(task["op"])),
            f"{_shapes(task['inputs'])} -> {_shapes(task['outputs'])}",
            large(task["flops"]),
            str(task["occurrences"]),
            duration(task["best_ms"]),
        )
    if data["tasks"]:
        print_table(console, table)
    coverage = data["coverage"]
    console.print(
        f"{printable(data['model'])}: {large(data['flops'], 'FLOP')} a run, {coverage['native']} native nodes"
    )
    if coverage["fallback"]:
        console.print(slow_nodes(coverage["fallback"], coverage["reasons"]))


def _shapes(tensors: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(shape(tensor["shape"]) for tensor in tensors)


def lookup(model: Path, db: str | None, dims: Mapping[str, int], threads: int | None) -> dict[str, Any]:
    """The schedule to use for each task, which rung of the ladder it is from, and what it should take."""
    read = subject.read(model, db, dims, threads)
    return {
        "model": read.model.label,
        "target": str(read.target),
        "tasks": [{**found.to_json(), "occurrences": read.model.tasks[key][1]} for key, found in read.found.items()],
    }


def render_lookup(console: Console, data: Mapping[str, Any]) -> None:
    """A line a task, in the order of the model."""
    roomy = console.width >= WIDE + SCHEDULE_COLUMNS
    table = new_table(console, ("task", "op", "match"), ("expected",))
    if roomy:
        table.add_column("schedule", overflow="fold")
    for task in data["tasks"]:
        row = [
            task["key"][: key_letters(console)],
            Text(printable(task["op"])),
            task["match"],
            duration(task["expected_ms"]),
        ]
        table.add_row(*row, *([Text(printable(Schedule.from_json(task["schedule"])))] if roomy else []))
    if data["tasks"]:
        print_table(console, table)
    exact = sum(task["match"] == "exact" for task in data["tasks"])
    console.print(f"{exact} of {len(data['tasks'])} tasks are tuned for {data['target']}")
    if data["tasks"] and not roomy:
        console.print("the schedules: tunewright lookup --json, or tunewright show TASK")

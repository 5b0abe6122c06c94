"""`tunewright tasks`, `lookup` and `lock`: what a model consists of, what is known of it, and pinning that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tunewright.graph.task import Task, Tensor
from tunewright.search_space.measurement import NOISE
from tunewright.search_space.schedule import Schedule

from ..errors import Refused
from ..lookup import Basis, Found
from ..lookup.lockfile import write_lock
from ..lookup.place import Place, download
from ..text import TRIED, counted, duration, large, printable, rough, shape, slow_nodes, uses
from ..units import in_ms
from .tables import WIDE, key_letters, new_table, print_table

SCHEDULE_COLUMNS = 40
"""Room that a schedule needs beside the rest of a table."""


def tasks(
    model: Path, db: str | None, dims: Mapping[str, int], threads: int | None, target: str = "auto"
) -> dict[str, Any]:
    """The tasks of a model, and how many of its nodes they cover."""
    prepared = Place(db).prepare(model, dims, threads, target)
    chosen = prepared.chosen.tasks
    rows = [
        {
            "key": key,
            "op": task.op,
            "inputs": [_tensor(tensor) for tensor in task.inputs],
            "outputs": [_tensor(tensor) for tensor in task.outputs],
            "flops": task.flops,
            "traffic_bytes": task.traffic_bytes,
            "occurrences": count,
            "chosen": _uses(chosen, key),
            "best_ms": _best_ms(prepared.best[key]),
            "confirmed": prepared.best[key].confirmed,
            "noise": _noise(prepared.best[key]),
        }
        for key, (task, count) in prepared.model.tasks.items()
    ]
    return {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "tasks": rows,
        "flops": sum(task.flops * count for task, count in chosen.values()),
        "coverage": {
            "native": prepared.model.native_nodes,
            "fallback": prepared.model.fallback_ops,
            "reasons": prepared.model.fallback_reasons,
        },
    }


def _uses(chosen: Mapping[str, tuple[Task, int]], key: str) -> int:
    """How often a model, by its tasks as they are run, runs one of them."""
    return chosen[key][1] if key in chosen else 0


def _best_ms(found: Found) -> float | None:
    """What was measured for the task on this target, be it elsewhere."""
    return in_ms(found.expected_s) if found.basis in (Basis.MEASURED, Basis.IMPORTED) else None


def _noise(found: Found) -> str:
    """Why the machine was too busy to rely on that; empty where it was not."""
    return found.measurement.provenance.get(NOISE, "") if found.measurement else ""


def _tried(time_ms: float | None, is_confirmed: bool) -> str:
    """The mark behind a time that is of a trial."""
    return "" if is_confirmed or time_ms is None else TRIED


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
            uses(task["chosen"], task["occurrences"]),
            rough(duration(task["best_ms"]), task["noise"]) + _tried(task["best_ms"], task["confirmed"]),
        )
    if data["tasks"]:
        print_table(console, table)
    coverage = data["coverage"]
    native = counted(coverage["native"], "native node")
    console.print(f"{printable(data['model'])}: {large(data['flops'], 'FLOP')} a run, {native}")
    if coverage["fallback"]:
        console.print(slow_nodes(coverage["fallback"], coverage["reasons"]))


def _shapes(tensors: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(shape(tensor["shape"]) for tensor in tensors)


def lookup(
    model: Path,
    place: Place,
    dims: Mapping[str, int],
    threads: int | None,
    target: str = "auto",
    *,
    snapshot: bool = False,
) -> dict[str, Any]:
    """The schedule to use for each task, which rung of the ladder it is from, and what it should take.

    With `snapshot` everything is kept that the server knows of this machine. Raises Refused where that fails.
    """
    kept = download(place, threads, target) if snapshot else None
    prepared = place.prepare(model, dims, threads, target)
    chosen = prepared.chosen.tasks
    return {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "tasks": [
            {**found.to_json(), "occurrences": prepared.model.tasks[key][1], "chosen": _uses(chosen, key)}
            for key, found in prepared.found.items()
        ],
        "notes": list(prepared.notes),
        "kept": kept,
    }


def lock(
    model: Path,
    place: Place,
    dims: Mapping[str, int],
    threads: int | None,
    output: Path | None,
    target: str = "auto",
) -> dict[str, Any]:
    """Write a lock file of what is found for a model.

    Raises Refused where a task has no schedule that works, or nobody answered for it: its default would be pinned.
    """
    prepared = place.prepare(model, dims, threads, target)
    if prepared.unanswered:
        reason = next(iter(prepared.unanswered.values()))
        count = f"{len(prepared.unanswered)} of {counted(len(prepared.found), 'task')}"
        raise Refused(f"{place.server} could not be asked for {count}: {reason}; a lock pins, so nothing was written")
    path = output or model.with_name(f"{model.name}.lock.json")
    write_lock(path, prepared.model, prepared.target, prepared.dims, prepared.found)
    chosen = prepared.chosen.tasks
    matches = Counter(prepared.found[key].match.value for key in chosen)
    return {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "file": str(path),
        "tasks": len(chosen),
        "matches": dict(matches),
        "notes": list(prepared.notes),
    }


def render_lock(console: Console, data: Mapping[str, Any]) -> None:
    """Where the file is, and what it pins."""
    matches = ", ".join(f"{count} {match}" for match, count in data["matches"].items()) or "none"
    console.print(f"{printable(data['file'])} pins {counted(data['tasks'], 'task')} for {data['target']}: {matches}")


def _expected(task: Mapping[str, Any]) -> str:
    """The time, marked where it was not measured for this task on this target, or is of a trial."""
    text = duration(task["expected_ms"])
    if task["basis"] != Basis.MEASURED:
        return rough(text, task["basis"])
    return rough(text, task["provenance"].get(NOISE, "")) + _tried(task["expected_ms"], task["confirmed"])


def render_lookup(console: Console, data: Mapping[str, Any]) -> None:
    """A line a task, in the order of the model."""
    roomy = console.width >= WIDE + SCHEDULE_COLUMNS
    table = new_table(console, ("task", "op", "match"), ("times", "expected"))
    if roomy:
        table.add_column("schedule", overflow="fold")
    for task in data["tasks"]:
        row = [
            task["key"][: key_letters(console)],
            Text(printable(task["op"])),
            task["match"],
            uses(task["chosen"], task["occurrences"]),
            _expected(task),
        ]
        table.add_row(*row, *([Text(printable(Schedule.from_json(task["schedule"])))] if roomy else []))
    if data["tasks"]:
        print_table(console, table)
    run = [task for task in data["tasks"] if task["chosen"]]
    exact = sum(task["match"] == "exact" for task in run)
    console.print(f"{exact} of {counted(len(run), 'task is', 'tasks are')} tuned for {data['target']}")
    if data["kept"] is not None:
        console.print(f"{counted(data['kept'], 'answer is', 'answers are')} kept for when the server is away")
    if data["tasks"] and not roomy:
        console.print("the schedules: tunewright lookup --json, or tunewright show TASK")

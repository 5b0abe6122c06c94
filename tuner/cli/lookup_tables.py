"""The tasks of a model and what is known of them, in tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tunewright.search_space.schedule import Schedule

from ..lookup.result import Basis, Match
from ..noise import time_noise
from ..text import counted, duration, large, mark_noise, mark_trial, printable, shape, slow_nodes, uses
from .tables import WIDE, OpName, figures, key_letters, new_table, print_legends, print_table

NOT_MEASURED = {
    Basis.IMPORTED: "by another database, not measured here",
    Basis.SIBLING: "measured on a similar target",
    Basis.SCALED: "measured for a similar task, times the ratio of the operations",
    Basis.PREDICTED: "by the cost model, nobody measured it",
}
"""The origin of a time that was not measured for the task on this target."""

IMPORTED = "by what was imported"

KEPT = "on the default, as the model keeps its defaults"

UNTUNED = {
    Match.SIBLING: "as on a similar target",
    Match.NEAREST: "as a similar task",
    Match.PREDICTED: "as the cost model picks",
    Match.DEFAULT: "on the default, as nothing usable is known",
    Match.UNTRIED: "on a schedule nobody tried, as the default fails",
    Match.NONE: "without a schedule, as all that were looked at fail",
}
"""How a task runs that is not tuned, by its match, where neither `IMPORTED` nor `KEPT` is the case."""

SCHEDULE_COLUMNS = 40
"""Room that a schedule needs beside the rest of a table."""


def render_tasks(console: Console, data: Mapping[str, Any]) -> None:
    """Print a line a task, in the order of the model."""
    table = new_table(console, ("task", "op", "shapes"), ("FLOPs", "times", "best"))
    for task in data["tasks"]:
        table.add_row(
            task["key"][: key_letters(console)],
            OpName(task["op"]),
            f"{_shapes(task['inputs'])} -> {_shapes(task['outputs'])}",
            large(task["flops"]),
            uses(task["chosen"], task["occurrences"]),
            _time_text(task["best_ms"], task["basis"], task["noise"], is_confirmed=task["confirmed"]),
        )
    if data["tasks"]:
        print_table(console, table)
        bases = [task["basis"] for task in data["tasks"] if task["best_ms"] is not None]
        _print_legends(console, table, [task["noise"] for task in data["tasks"]], bases)
    coverage = data["coverage"]
    native = counted(coverage["native"], "native node")
    console.print(f"{printable(data['model'])}: {large(data['flops'], 'FLOP')} a run, {native}")
    if coverage["fallback"]:
        console.print(slow_nodes(coverage["fallback"], coverage["reasons"]))


def _time_text(value_ms: float | None, basis: str, noise: str, *, is_confirmed: bool) -> str:
    """A time with its marks, and its origin where it was not measured for the task on this target."""
    text = mark_trial(mark_noise(duration(value_ms), noise), basis == Basis.MEASURED and not is_confirmed)
    return f"{text}, {basis}" if value_ms is not None and basis in NOT_MEASURED else text


def _print_legends(console: Console, table: Table, reasons: Iterable[str], bases: Collection[str]) -> None:
    """Print the meanings of the marks and words behind times."""
    print_legends(console, figures(table), reasons)
    for basis, meaning in NOT_MEASURED.items():
        if basis in bases:
            console.print(f"{basis}: {meaning}")


def _shapes(tensors: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(shape(tensor["shape"]) for tensor in tensors)


def _origin(task: Mapping[str, Any]) -> str:
    """How a task runs that is not tuned; empty for one that is."""
    if task["basis"] == Basis.IMPORTED:
        return IMPORTED
    if task["match"] == Match.EXACT:
        return ""
    return KEPT if task["match"] == Match.DEFAULT and task["basis"] == Basis.MEASURED else UNTUNED[task["match"]]


def _noise(answer: Mapping[str, Any]) -> str:
    """Why the expected time of an answer can't be relied on; empty where it can."""
    low_ms, high_ms = answer["interval_ms"] or (None, None)
    return time_noise(answer["expected_ms"], low_ms, high_ms, answer["provenance"])


def render_lookup(console: Console, data: Mapping[str, Any]) -> None:
    """Print a line a task, in the order of the model."""
    roomy = console.width >= WIDE + SCHEDULE_COLUMNS
    table = new_table(console, ("task", "op", "match"), ("times", "expected"))
    if roomy:
        table.add_column("schedule", overflow="fold")
    for task in data["tasks"]:
        row = [
            task["key"][: key_letters(console)],
            OpName(task["op"]),
            task["match"],
            uses(task["chosen"], task["occurrences"]),
            _time_text(task["expected_ms"], task["basis"], _noise(task), is_confirmed=task["confirmed"]),
        ]
        table.add_row(*row, *([Text(printable(Schedule.from_json(task["schedule"])))] if roomy else []))
    if data["tasks"]:
        print_table(console, table)
        reasons = map(_noise, data["tasks"])
        _print_legends(console, table, reasons, [task["basis"] for task in data["tasks"]])
    run = [task for task in data["tasks"] if task["chosen"]]
    origins = Counter(map(_origin, run))
    text = f"{origins['']} of {counted(len(run), 'task is', 'tasks are')} tuned for {data['target']}"
    others = (f"{origins[how]} {how}" for how in (IMPORTED, KEPT, *UNTUNED.values()) if origins[how])
    console.print(", ".join((text, *others)), soft_wrap=True)
    if stale := sum(task["stale"] for task in data["tasks"]):
        count = counted(stale, "task was", "tasks were")
        how = "tunewright retime MODEL, or with a server submit MODEL --retime, times the best again"
        console.print(f"{count} tuned by other versions: {how}", soft_wrap=True)
    if data["kept"] is not None:
        console.print(f"{counted(data['kept'], 'answer is', 'answers are')} kept for when the server is away")
    if data["tasks"] and not roomy:
        console.print("the schedules: tunewright lookup --json, or tunewright show TASK")

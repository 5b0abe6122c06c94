"""`tunewright tune`: search for fast schedules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..progress import watching
from ..text import ms, printable, ratio, share, slow_nodes, times

KEY_LETTERS = 12
"""Letters of a task's key that are shown: enough to name it."""


def tune(console: Console, model: Path, live: bool | None = None, **settings: Any) -> dict[str, Any]:
    """The report of a tuning job as JSON data. `settings` are those of `tuning.tune`.

    Progress goes to `console`, as a live view if `live`, by default if it is a terminal.
    """
    with watching(console, live) as watch:
        from ..tuning import tune as run_job  # takes a while to import: the view is there before

        return run_job(model, watch=watch, **settings).to_json()


def render(console: Console, data: Mapping[str, Any]) -> None:
    """Each task's default and best time, then the model's."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("op", no_wrap=True, overflow="ellipsis", max_width=44)
    for name in ("times", "trials", "default ms", "tuned ms", "speedup", "GFLOP/s", "of peak"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in data["tasks"]:
        gflops = task["gflops"]
        table.add_row(
            task["key"][:KEY_LETTERS],
            Text(printable(task["op"])),
            str(task["occurrences"]),
            str(task["trials"]),
            ms(task["default_ms"]),
            ms(task["best_ms"]),
            times(ratio(task["default_ms"], task["best_ms"])),
            f"{gflops:.1f}" if gflops else "-",  # what only moves data has no operations to count
            share(task["fraction_of_peak"] or None),
        )
    console.print(table)
    console.print(
        f"{printable(data['model'])} on {data['target']}: {data['trials']} trials; "
        f"the peak measured on this machine is {data['peak_gflops']:.0f} GFLOP/s"
    )
    if data["failed"]:
        console.print("failed trials: " + ", ".join(f"{count} {name}" for name, count in data["failed"].items()))
    if data["fallback"]:
        console.print(slow_nodes(data["fallback"]))
    gain = times(ratio(data["default_ms"], data["tuned_ms"]))
    console.print(
        f"the whole model: {ms(data['default_ms'])} ms by default, {ms(data['tuned_ms'])} ms tuned: {gain} faster"
    )

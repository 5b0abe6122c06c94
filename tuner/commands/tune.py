"""`tunewright tune`: search for fast schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ..jobs.report import ENDINGS, Ended
from ..jobs.view import watching
from ..text import counted, duration, gain, is_clear, printable, ratio, share, slow_nodes, slow_share, times, uses
from .tables import is_wide, key_letters, new_table, print_table

if TYPE_CHECKING:
    from ..jobs.progress import Progress


def tune(console: Console, model: Path, **settings: Any) -> dict[str, Any]:
    """The report of a tuning job as JSON data. `settings` are those of `tuning.tune`. Progress goes to `console`.

    As soon as the model is read, so does what it has no kernels for.
    """
    with watching(console) as watch:
        from ..jobs.tuning import tune as run_job  # takes a while to import: the view is there before

        def tell(progress: Progress) -> None:
            if progress.fallback:
                console.print(slow_nodes(progress.fallback))
            watch(progress)

        return run_job(model, watch=tell, **settings).to_json()


def render(console: Console, data: Mapping[str, Any]) -> None:
    """Each task's default and best time, then the model's."""
    if data["tasks"]:
        _print_tasks(console, data["tasks"])
    else:
        console.print("nothing to tune: no node of the model has a kernel")
    peak = data["peak_gflops"]
    measured = "" if peak is None else f"; the peak measured on it is {peak:.0f} GFLOP/s"
    console.print(f"{printable(data['model'])} on {data['target']}: {counted(data['trials'], 'trial')}{measured}")
    if (by := data.get("ended_by")) in ENDINGS and data["tasks"]:  # a job of before that was told has none
        again = "; tuning again goes on from there" if by == Ended.MINUTES else ""
        console.print(f"the search ended: {ENDINGS[by]}{again}")
    if data["failed"]:
        console.print("failed trials: " + ", ".join(f"{count} {name}" for name, count in data["failed"].items()))
    _print_whole(console, data)
    if data["fallback"]:
        console.print(slow_share(data["fallback"], data.get("fallback_share")))  # a job of before that was known


def _print_whole(console: Console, data: Mapping[str, Any]) -> None:
    if data["whole_model"]:
        console.print(f"the whole model was not timed: {printable(data['whole_model'])}")
        return
    default, tuned = duration(data["default_ms"]), duration(data["tuned_ms"])
    factor = ratio(data["default_ms"], data["tuned_ms"]) if data["tasks"] else None
    came_of_it = "" if factor is None else f": {times(factor)} as fast" if is_clear(factor) else ": no gain"
    console.print(f"the whole model: {default} by default, {tuned} tuned{came_of_it}")


def _print_tasks(console: Console, tasks: Sequence[Mapping[str, Any]]) -> None:
    rates = ("GFLOP/s", "of peak") if is_wide(console) else ()
    table = new_table(console, ("task", "op"), ("times", "trials", "default", "tuned", "speedup", *rates))
    for task in tasks:
        gflops = task["gflops"]
        numbers = [
            uses(task.get("chosen", task["occurrences"]), task["occurrences"]),
            str(task["trials"]),
            duration(task["default_ms"]),
            duration(task["best_ms"]),
            gain(ratio(task["default_ms"], task["best_ms"])),
            f"{gflops:.1f}" if gflops else "-",  # what only moves data has no operations to count
            share(task["fraction_of_peak"] or None),
        ]
        shown = numbers[: len(table.columns) - 2]
        table.add_row(task["key"][: key_letters(console)], Text(printable(task["op"])), *shown)
    print_table(console, table)

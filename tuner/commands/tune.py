"""`tunewright tune`: search for fast schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ..insight.gain import Gain
from ..jobs.report import ENDINGS, Ended
from ..jobs.view import watching
from ..text import (
    TRIED,
    between,
    counted,
    duration,
    gain,
    is_clear,
    printable,
    ratio,
    rough,
    share,
    slow_nodes,
    slow_share,
    times,
    uses,
)
from .tables import is_wide, key_letters, new_table, print_table

if TYPE_CHECKING:
    from ..jobs.progress import Progress

ABOVE_PEAK = 1.02
"""A share of the peak beyond what a clock that changes with heat explains."""


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
    found = Gain.told(None, data)
    if found.why_untimed:
        console.print(f"the whole model was not timed: {printable(found.why_untimed)}")
    elif data["tasks"]:
        console.print(f"the whole model: {_came_of_it(found)}", soft_wrap=True)
    else:
        console.print(f"the whole model: {duration(found.default_ms)}")
    if found.noise or any(task.get("noise") for task in data["tasks"]):
        why = f": {printable(found.noise)}" if found.noise else ""
        console.print(f"the machine was too busy for some times, marked ~, to be relied on{why}", soft_wrap=True)


def _came_of_it(found: Gain) -> str:
    """What a run of the model takes, and how much less than by default."""
    default = rough(duration(found.default_ms), found.noise) + between(found.default_interval_ms, duration)
    begin = f"{default} by default"
    if found.is_kept and found.rejected_ms is None:
        return f"{begin}: nothing faster was found, so it keeps its defaults"
    if found.is_kept:
        other = rough(duration(found.rejected_ms), found.noise)
        told = f"{rough(times(found.rejected), found.noise)} as fast{between(found.rejected_interval)}"
        return f"{begin}, {other} with what was found: {told}, no gain for certain, so it keeps its defaults"
    tuned = rough(duration(found.tuned_ms), found.noise) + between(found.tuned_interval_ms, duration)
    if found.speedup is None:
        return f"{begin}, {tuned} tuned"
    if found.outcome is None and not is_clear(found.speedup):  # a job of before its gain had an interval
        return f"{begin}, {tuned} tuned: no gain"
    told = f"{rough(times(found.speedup), found.noise)} as fast{between(found.speedup_interval)}"
    return f"{begin}, {tuned} tuned: {told}"


def _print_tasks(console: Console, tasks: Sequence[Mapping[str, Any]]) -> None:
    rates = ("GFLOP/s", "of peak") if is_wide(console) else ()
    table = new_table(console, ("task", "op"), ("times", "trials", "default", "best", "speedup", *rates))
    for task in tasks:
        gflops = task["gflops"]
        noise, tried = task.get("noise", ""), "" if task.get("confirmed", True) else TRIED
        numbers = [
            uses(task.get("chosen", task["occurrences"]), task["occurrences"]),
            str(task["trials"]),
            rough(duration(task["default_ms"]), noise) + tried,
            rough(duration(task["best_ms"]), noise) + tried,
            rough(gain(ratio(task["default_ms"], task["best_ms"])), noise),
            f"{gflops:.1f}" if gflops else "-",  # what only moves data has no operations to count
            share(task["fraction_of_peak"] or None),
        ]
        shown = numbers[: len(table.columns) - 2]
        table.add_row(task["key"][: key_letters(console)], Text(printable(task["op"])), *shown)
    print_table(console, table)
    if any(not task.get("confirmed", True) for task in tasks):
        console.print(f"{TRIED} by its trial: there was nothing to compare it with")
    if rates and any((task["fraction_of_peak"] or 0.0) > ABOVE_PEAK for task in tasks):
        console.print("above 100% of peak: Winograd's method multiplies less often than is counted")

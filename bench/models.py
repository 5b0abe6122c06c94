"""Whole models beside their peers: `./dev bench models [NAME ...]`.

Every model of `suite` is tuned into a database of its own, build/bench/models.db, then timed in turn with all peers, on
one thread and on all. Results: bench/results/models.json, and a plot of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from tunewright.bench.campaign import Campaign, Extra, open_entries, panels, parse, run, wide_console
from tunewright.bench.entries import Entry, gain, geometric
from tunewright.bench.plot import draw_speeds
from tunewright.bench.suite import MODELS
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.text import duration, times

TRIALS, MINUTES, WITHIN_MINUTES = 2000, 0.6, 37.0
"""Less than 40 minutes for all models on two cores."""


def main() -> int:
    """Tune and measure the selected models. 1 if a case failed."""
    campaign = parse(
        "models",
        MODELS,
        "the models of bench/suite",
        trials=TRIALS,
        minutes=MINUTES,
        within_minutes=WITHIN_MINUTES,
        thorough=True,
    )
    return report(campaign)


Rows = Sequence[tuple[str, Entry]]
"""Cases in order, each with its measurement."""


def report(
    campaign: Campaign,
    summarise: Callable[[Rows], dict[str, Any]] | None = None,
    show: Callable[[Console, Mapping[str, Rows]], None] | None = None,
    extra: Extra | None = None,
) -> int:
    """Measure what is missing, then write and show all results. 1 if a case failed. `extra`: see `campaign.run`."""
    summarise, show = summarise or summary, show or show_speeds
    entries = open_entries(campaign)
    try:
        failed = run(campaign, entries, cli.messages(), extra)
    finally:  # also after an interrupt
        rows_by_heading = panels(campaign, entries)
        entries.write({heading: summarise(rows) for heading, rows in rows_by_heading.items()})
        draw_speeds(campaign.results.with_suffix(".svg"), rows_by_heading)
        show(wide_console(), rows_by_heading)
    print(f"\n{campaign.results} and .svg")
    return int(failed > 0)


def summary(rows: Rows) -> dict[str, Any]:
    """Our speed in units of the best peer's: the geometric mean, and the models where it is lowest and highest."""
    gains = {case: speedup for case, entry in rows if (speedup := gain(entry)) is not None}
    ordered = sorted(gains, key=lambda case: gains[case])
    return {
        "cases": len(gains),
        "geometric_mean": geometric(list(gains.values())),
        "lowest": {case: gains[case] for case in ordered[:3]},
        "highest": {case: gains[case] for case in ordered[-3:]},
        "largest_error": max((entry["max_rel_err"] or 0.0 for _, entry in rows), default=None),
    }


def show_speeds(console: Console, panels: Mapping[str, Rows]) -> None:
    """A table for each number of threads."""
    for heading, rows in panels.items():
        console.print(f"\n{heading}", highlight=False)
        print_table(console, _table(console, rows))
        figures = summary(rows)
        if figures["cases"]:
            many = f"{figures['cases']} model{'s' if figures['cases'] > 1 else ''}"
            speed = f"{times(figures['geometric_mean'])} as fast as the best peer (geometric mean)"
            console.print(f"over {many}: {speed}", highlight=False)


def _table(console: Console, rows: Rows) -> Any:
    peers = list(dict.fromkeys(name for _, entry in rows for name in entry["peers"]))
    table = new_table(console, ("model",), ("tunewright", *peers, "best / ours", "error"))
    for case, entry in rows:
        others = [duration(entry["peers"].get(name)) for name in peers]
        factor, error = gain(entry), entry["max_rel_err"]
        table.add_row(
            case, duration(entry["tunewright_ms"]), *others, times(factor), entry["mismatch"] or f"{error or 0:.0e}"
        )
    return table


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

"""Quantised models beside float32 and their peers: `./dev bench quantised [NAME ...]`.

Every model of `suite.quantised` runs on what the base cost model picks, without a database, in float32 and in eight
bits, in turn with its peers. Results: bench/results/quantised.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from tunewright.bench.campaign import open_entries, panels, parse, run, wide_console
from tunewright.bench.entries import Entry, gain, geometric
from tunewright.bench.suite.quantised import PAIRS, QUANTISED
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.text import duration, times

WITHIN_MINUTES = 20.0


def main() -> int:
    """Measure the selected models. 1 if a case failed."""
    subject = "quantised models, and the same in float32"
    campaign = parse("quantised", QUANTISED, subject, trials=0, minutes=0.0, within_minutes=WITHIN_MINUTES)
    entries = open_entries(campaign)
    try:
        failed = run(campaign, entries, cli.messages())
    finally:  # also after an interrupt
        rows_by_heading = {heading: dict(rows) for heading, rows in panels(campaign, entries).items()}
        entries.write({heading: summary(rows) for heading, rows in rows_by_heading.items()})
        for heading, rows in rows_by_heading.items():
            _show(wide_console(), heading, rows)
    print(f"\n{campaign.results}")
    return int(failed > 0)


def summary(rows: Mapping[str, Entry]) -> dict[str, Any]:
    """Our speed in eight bits in units of our own in float32, and of the best peer's in eight bits."""
    pairs = {model: (rows.get(model), rows.get(f"{model}_int8")) for model in PAIRS}
    over_floats = {
        model: floats["tunewright_ms"] / whole["tunewright_ms"]
        for model, (floats, whole) in pairs.items()
        if floats and whole
    }
    over_peers = {model: gain(whole) for model, (_, whole) in pairs.items() if whole}
    return {"over_float32": _figures(over_floats), "over_peers": _figures(over_peers)}


def _figures(factors: Mapping[str, float | None]) -> dict[str, Any]:
    known = [factor for factor in factors.values() if factor is not None]
    return {"geometric_mean": geometric(known), "models": dict(factors)}


def _show(console: Console, heading: str, rows: Mapping[str, Entry]) -> None:
    console.print(f"\n{heading}", highlight=False)
    peers = list(dict.fromkeys(peer for entry in rows.values() for peer in entry["peers"]))
    figures = summary(rows)
    columns = ("float32", "eight bits", *peers, "float32 / 8", "best / ours", "error")
    table = new_table(console, ("model",), columns)
    for model in PAIRS:
        if (entry := rows.get(f"{model}_int8")) is not None:
            table.add_row(model, *_cells(model, rows.get(model), entry, peers, figures))
    print_table(console, table)


def _cells(
    model: str, floats: Entry | None, entry: Entry, peers: Sequence[str], figures: Mapping[str, Any]
) -> list[str]:
    own = duration(floats["tunewright_ms"]) if floats else "-"
    others = [duration(entry["peers"].get(peer)) for peer in peers]
    factors = [times(figures[over]["models"].get(model)) for over in ("over_float32", "over_peers")]
    fault = entry["mismatch"] or f"{entry['max_rel_err'] or 0:.0e}"
    return [own, duration(entry["tunewright_ms"]), *others, *factors, fault]


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

"""Quantised models beside float32 and their peers: `./dev bench quantised [NAME ...]`.

Every model of `suite.quantised` runs on what the base cost model picks, without a database, in float32 and in eight
bits, each in turn with its peers. Results: bench/results/quantised.json, and a plot of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from tunewright.bench.campaign import parse
from tunewright.bench.entries import gain, geometric
from tunewright.bench.models import Rows, report, show_speeds
from tunewright.bench.suite.quantised import PAIRS, QUANTISED
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.text import times

WITHIN_MINUTES = 20.0


def main() -> int:
    """Measure the selected models. 1 if a case failed."""
    subject = "quantised models, and the same in float32"
    campaign = parse("quantised", QUANTISED, subject, trials=0, minutes=0.0, within_minutes=WITHIN_MINUTES)
    return report(campaign, summary, show)


def summary(rows: Rows) -> dict[str, Any]:
    """Our speed in eight bits in units of our own in float32, and of the best peer's in eight bits.

    The former is of two cases, which were measured one after the other.
    """
    entries = dict(rows)
    quantised = {model: entries[name] for model in PAIRS if (name := f"{model}_int8") in entries}
    floats = {model: entries[model] for model in quantised if model in entries}
    over_float32 = {
        model: entry["tunewright_ms"] / quantised[model]["tunewright_ms"] for model, entry in floats.items()
    }
    over_peers = {model: gain(entry) for model, entry in quantised.items()}
    return {"over_float32": _figures(over_float32), "over_peers": _figures(over_peers)}


def _figures(factors: Mapping[str, float | None]) -> dict[str, Any]:
    known = [factor for factor in factors.values() if factor is not None]
    return {"geometric_mean": geometric(known), "models": dict(factors)}


def show(console: Console, panels: Mapping[str, Rows]) -> None:
    """The speeds, and a table of what eight bits gain."""
    show_speeds(console, panels)
    for heading, rows in panels.items():
        figures = summary(rows)
        console.print(f"\n{heading}", highlight=False)
        table = new_table(console, ("model",), ("eight bits / float32", "eight bits / best peer"))
        for model in figures["over_peers"]["models"]:
            factors = (figures[over]["models"].get(model) for over in ("over_float32", "over_peers"))
            table.add_row(model, *(times(factor) for factor in factors))
        print_table(console, table)


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

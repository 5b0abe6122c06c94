"""Models of few bits beside float32 and their peers: `./dev bench quantised [NAME ...]`.

Every model of `suite.quantised` runs on what the base cost model picks, without a database, in turn with its peers. Of
products of bytes the share of the peak is told, which is measured on registers in the same minute, and of one row by
packed weights that of the time in which our own code streams as many bytes. Results: quantised.json in the folder of
the processor in bench/results, and a plot of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.bench.bandwidth import Traffic, level, streaming_s
from tunewright.bench.campaign import parse
from tunewright.bench.entries import gain, geometric
from tunewright.bench.files import results_of_processor
from tunewright.bench.models import Rows, report, show_speeds
from tunewright.bench.suite.quantised import BYTE_PRODUCTS, PACKED_ROWS, PAIRS, QUANTISED
from tunewright.codegen.host import detect
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.settings import settings
from tunewright.tuner.text import share, times
from tunewright.workers.lock import HostLock
from tunewright.workers.measure.rates import byte_peak_ops_s

WITHIN_MINUTES = 20.0


def main() -> int:
    """Measure the selected models. 1 if a case failed."""
    subject = "quantised models, and the same in float32"
    folder = results_of_processor()
    campaign = parse(
        "quantised", QUANTISED, subject, trials=0, minutes=0.0, within_minutes=WITHIN_MINUTES, folder=folder
    )
    return report(campaign, summary, show, limit_shares)


def limit_shares(
    case: str, path: Path, threads: int, report: Mapping[str, Any], times: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The share of its limit that the kernels of a product reach; nothing for models."""
    target, kernels_s = detect(threads), times["kernels_ms"] / 1e3
    if case in BYTE_PRODUCTS:
        peak_ops_s = byte_peak_ops_s(target, settings().objects)
        part = BYTE_PRODUCTS[case][1] / (peak_ops_s * kernels_s) if peak_ops_s else None
        return {"limit": "arithmetic", "peak_gops": peak_ops_s / 1e9, "share": part}
    if case in PACKED_ROWS:
        traffic = Traffic(PACKED_ROWS[case][1], 0)
        with HostLock(settings().objects).exclusive(), ThreadPool(threads) as pool:
            bound_s = streaming_s(traffic, target, pool)
        return {"limit": level(traffic, target), "limit_ms": 1e3 * bound_s, "share": bound_s / kernels_s}
    return {}


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
    shares = {name: entry["share"] for name, entry in rows if entry.get("share")}
    return {"over_float32": _figures(over_float32), "over_peers": _figures(over_peers), "shares": shares}


def _figures(factors: Mapping[str, float | None]) -> dict[str, Any]:
    known = [factor for factor in factors.values() if factor is not None]
    return {"geometric_mean": geometric(known), "models": dict(factors)}


def show(console: Console, panels: Mapping[str, Rows]) -> None:
    """The speeds, a table of what eight bits gain, and one of the shares of limits."""
    show_speeds(console, panels)
    for heading, rows in panels.items():
        figures = summary(rows)
        console.print(f"\n{heading}", highlight=False)
        table = new_table(console, ("model",), ("eight bits / float32", "eight bits / best peer"))
        for model in figures["over_peers"]["models"]:
            factors = (figures[over]["models"].get(model) for over in ("over_float32", "over_peers"))
            table.add_row(model, *(times(factor) for factor in factors))
        print_table(console, table)
        table = new_table(console, ("product",), ("of the limit",))
        for name, part in figures["shares"].items():
            table.add_row(name, share(part))
        print_table(console, table)


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

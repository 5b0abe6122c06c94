"""Single operators beside their peers, and beside the limits of the machine: `./dev bench ops [NAME ...]`.

Each is a model of its own, tuned into build/bench/ops.db and timed like whole models are: the call of a session, as its
user makes it. Shares are of what the kernels take of that. A share is of the longer of two times that the operator
takes at least: that of its instructions at the rate of multiply-adds (`arithmetic`), and that in which our own code
streams as many bytes in and out of memory of that size (`bandwidth`), which has a share of its own. Where the fastest
kernel is Winograd's, which multiplies less than is counted, the fastest other one has a share too: the direct one.
Results: bench/results/ops.json, and two plots of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import inf, prod
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from tunewright.bench import bandwidth
from tunewright.bench.arithmetic import computed_elements
from tunewright.bench.bandwidth import Traffic, level
from tunewright.bench.campaign import Campaign, open_entries, panels, parse, run, wide_console
from tunewright.bench.entries import Entry, gain, geometric
from tunewright.bench.plot import draw_shares, draw_speeds
from tunewright.bench.suite.operators import OPERATORS
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import detect
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target
from tunewright.db.store import Store, open_store
from tunewright.search_space.measurement import Status
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.models.model import Model, example_feeds, open_model
from tunewright.tuner.session.caches import object_cache
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.settings import settings
from tunewright.tuner.text import duration, share, times
from tunewright.workers.lock import HostLock

TRIALS, MINUTES, WITHIN_MINUTES = 400, 0.1, 37.0

LEFT_ON_THE_TABLE = ("conv 3x3", "depthwise", "softmax", "layer norm", "batched matmul", "fused chain")
"""Categories in which peers are far from the limits."""


def main() -> int:
    """Measure the selected operators, then show all results. 1 if a case failed."""
    cases = {name: operator.build for name, operator in OPERATORS.items()}
    campaign = parse("ops", cases, "single operators", trials=TRIALS, minutes=MINUTES, within_minutes=WITHIN_MINUTES)
    entries = open_entries(campaign)
    try:
        failed = run(campaign, entries, cli.messages(), lambda *arguments: limits_entry(campaign, *arguments))
    finally:  # also after an interrupt
        rows_by_heading = panels(campaign, entries)
        entries.write({heading: summary(rows) for heading, rows in rows_by_heading.items()})
        draw_speeds(campaign.results.with_suffix(".svg"), rows_by_heading)
        shares = {
            heading: [(case, entry["share"]) for case, entry in rows] for heading, rows in rows_by_heading.items()
        }
        draw_shares(campaign.results.with_name("ops_shares.svg"), shares)
        show(wide_console(), rows_by_heading)
    print(f"\n{campaign.results}, .svg and ops_shares.svg")
    return int(failed > 0)


def limits_entry(
    campaign: Campaign, case: str, path: Path, threads: int, report: Mapping[str, Any], times: Mapping[str, Any]
) -> Entry:
    """The shares of their limits that the kernels of an operator reach."""
    model, target = open_model(path), detect(threads)
    kernels_s = times["kernels_ms"] / 1e3
    traffic = model_traffic(model)
    streaming_s, arithmetic_s = _streaming_s(traffic, target), _arithmetic_s(model, target, report["peak_gflops"])
    limit_s = max(streaming_s, arithmetic_s)
    sketches = [task["schedule"]["sketch"] for task in report["tasks"] if task.get("chosen", task["occurrences"])]
    with open_store(campaign.database) as store:
        winograd_error = _winograd_error(store, model, target)
        direct_s = _direct_s(store, model, target) if any(map(is_winograd, sketches)) else kernels_s
    return {
        "category": OPERATORS[case].category,
        "limit": "arithmetic" if arithmetic_s > streaming_s else level(traffic, target),
        "limit_ms": 1e3 * limit_s,
        "share": limit_s / kernels_s,
        "bandwidth_share": streaming_s / kernels_s,
        "direct_share": limit_s / direct_s if direct_s else None,
        "sketches": sketches,
        "winograd_rel_err": winograd_error,
    }


def _streaming_s(traffic: Traffic, target: Target) -> float:
    with HostLock(settings().objects).exclusive(), ThreadPool(target.threads) as pool:
        return bandwidth.streaming_s(traffic, target, pool)


def _arithmetic_s(model: Model, target: Target, peak_gflops: float) -> float:
    """The least seconds of the instructions of all calls. A multiply-add is two operations of the peak."""
    tasks = model.merge(()).tasks.values()
    elements = sum(computed_elements(task, target.lanes(4)) * uses for task, uses in tasks)
    return elements / (peak_gflops * 1e9 / 2)


def model_traffic(model: Model) -> Traffic:
    """Bytes that a model must read and write: its inputs and constants, and its outputs."""
    graph = model.graph
    read = {name for node in graph.nodes for name in node.inputs if name in graph.constants}
    read |= {value.tensor for value in graph.inputs}
    return Traffic(_bytes(model, read), _bytes(model, {value.tensor for value in graph.outputs}))


def _bytes(model: Model, tensors: set[str]) -> int:
    kinds = [model.graph.type(name) for name in tensors]
    return sum(prod(kind.shape or ()) * DType(kind.dtype).size_bytes for kind in kinds)


def is_winograd(sketch: str) -> bool:
    """Whether a sketch multiplies less often than is counted."""
    return sketch.startswith("winograd")


def _winograd_error(store: Store, model: Model, target: Target) -> float | None:
    """The largest error of any measured Winograd kernel; None without one."""
    errors = [
        record.measurement.max_rel_err
        for task, _ in model.tasks.values()
        for record in store.records(task.key, target.key, {Status.OK})
        if is_winograd(record.schedule.sketch) and record.measurement.max_rel_err is not None
    ]
    return max(errors, default=None)


def _direct_s(store: Store, model: Model, target: Target) -> float | None:
    """The time of the fastest kernel that multiplies as often as it is counted; None without one.

    Only for a model of one task: the times of several are not known separately.
    """
    if len(model.tasks) != 1:
        return None
    [(task, _)] = model.tasks.values()
    records = store.records(task.key, target.key, {Status.OK})
    direct = [record for record in records if not is_winograd(record.schedule.sketch)]
    if not direct:
        return None
    best = min(direct, key=lambda record: record.measurement.median_s or inf)
    # Opened before the lock is held: others need not wait for its builds.
    with (
        InferenceSession.of(model, target, {task.key: best.schedule}, object_cache()) as session,
        HostLock(settings().objects).exclusive(),
    ):
        return session.kernels_s(example_feeds(model))


def summary(rows: Sequence[tuple[str, Entry]]) -> dict[str, Any]:
    """By category the median share of the limit, our speed in units of the best peer's, and the largest error."""
    categories = dict.fromkeys(entry["category"] for _, entry in rows)
    gains = {case: speedup for case, entry in rows if (speedup := gain(entry)) is not None}
    open_gains = [gains[case] for case, entry in rows if entry["category"] in LEFT_ON_THE_TABLE and case in gains]
    return {
        "categories": {
            name: _category_summary([row for row in rows if row[1]["category"] == name]) for name in categories
        },
        "left_on_the_table_geometric_mean": geometric(open_gains),
        "behind": {case: value for case, value in sorted(gains.items(), key=lambda item: item[1]) if value < 1},
    }


def _category_summary(rows: Sequence[tuple[str, Entry]]) -> dict[str, Any]:
    gains = [speedup for _, entry in rows if (speedup := gain(entry)) is not None]
    direct = [entry["direct_share"] for _, entry in rows if entry["direct_share"]]
    winograd = [entry["winograd_rel_err"] for _, entry in rows if entry["winograd_rel_err"] is not None]
    return {
        "cases": len(rows),
        "median_share": median(entry["share"] for _, entry in rows),
        "median_direct_share": median(direct) if direct else None,
        "median_bandwidth_share": median(entry["bandwidth_share"] for _, entry in rows),
        "geometric_mean": geometric(gains),
        "largest_error": max(entry["max_rel_err"] or 0.0 for _, entry in rows),
        "largest_winograd_error": max(winograd, default=None),
    }


def show(console: Console, panels: Mapping[str, Sequence[tuple[str, Entry]]]) -> None:
    """For each number of threads a table of the operators, and one of the categories."""
    for heading, rows in panels.items():
        console.print(f"\n{heading}", highlight=False)
        headings = ("call", "kernels", "limit", "of limit", "direct", "of bandwidth", "best / ours", "error")
        table = new_table(console, ("operator",), headings)
        for case, entry in rows:
            numbers = duration(entry["tunewright_ms"]), duration(entry["kernels_ms"]), entry["limit"]
            shares = (share(entry[name]) for name in ("share", "direct_share", "bandwidth_share"))
            error = entry["mismatch"] or f"{entry['max_rel_err'] or 0:.0e}"
            table.add_row(case, *numbers, *shares, times(gain(entry)), error)
        print_table(console, table)
        _show_categories(console, summary(rows))


def _show_categories(console: Console, figures: Mapping[str, Any]) -> None:
    headings = ("cases", "of limit", "direct", "of bandwidth", "best / ours", "error", "of Winograd")
    table = new_table(console, ("category",), headings)
    for name, category in figures["categories"].items():
        shares = (share(category[f"median_{name}"]) for name in ("share", "direct_share", "bandwidth_share"))
        winograd = category["largest_winograd_error"]
        errors = f"{category['largest_error']:.0e}", "-" if winograd is None else f"{winograd:.0e}"
        table.add_row(name, str(category["cases"]), *shares, times(category["geometric_mean"]), *errors)
    print_table(console, table)
    compared_names = {
        name for name, category in figures["categories"].items() if category["geometric_mean"] is not None
    }
    names = [name for name in LEFT_ON_THE_TABLE if name in compared_names]
    if names:
        speed = f"{times(figures['left_on_the_table_geometric_mean'])} as fast as the best peer (geometric mean)"
        console.print(f"over {', '.join(names)}: {speed}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

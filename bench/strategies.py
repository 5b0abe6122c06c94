"""Search strategies on recorded spaces: `./dev bench strategies [NAME ...] [--record]`.

Needs build/bench/replay.db, which --record fills: thinned spaces, every legal point of them measured once. Then nothing
is measured any more, and the same records and code give the same results, so what is there isn't compared again.
Results: bench/results/strategies.json, complete after each contender, and a plot.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from tunewright.bench.campaign import wide_console
from tunewright.bench.entries import base_model_sha256, code_sha256
from tunewright.bench.files import FOLDER, RESULTS, stay_in_folder, write_whole
from tunewright.bench.recorder import LIMITS
from tunewright.bench.selection import select_names
from tunewright.bench.tabular.cases import cases
from tunewright.bench.tabular.comparison import TRIALS, replay_search, summary
from tunewright.bench.tabular.contenders import RecordedCase, contenders
from tunewright.bench.tabular.plot import draw_curves
from tunewright.bench.tabular.records import missing_points, record_points
from tunewright.codegen.host import machine
from tunewright.db.store import open_store
from tunewright.tuner import cli
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.settings import settings
from tunewright.tuner.text import share
from tunewright.workers.local import LocalPool

TABULAR = ("bench/tabular",)
"""The folder of the comparison, which is in no digest of the product."""

DATABASE = f"sqlite:///{FOLDER / 'replay.db'}"

MARKS_SHOWN = (4, 8, 16, 32, 64)
"""Trials that have a column in the table."""


def main() -> int:
    """Record the missing points, or compare."""
    parser = argparse.ArgumentParser(prog="./dev bench strategies", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of contenders; default: all")
    parser.add_argument("--record", action="store_true", help="measure what is not recorded yet, compare nothing")
    parser.add_argument("--seconds", type=float, default=3600.0, help="record for so long (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="searches of each case by each contender (%(default)s)")
    parser.add_argument("--again", action="store_true", help="compare anew what is compared")
    arguments = parser.parse_args()
    names = select_names(parser, contenders([]), arguments.names)
    stay_in_folder()
    console = wide_console()
    if arguments.record:
        return _record(console, arguments.seconds)
    return _compare(console, names, arguments.seeds, again=arguments.again)


def _record(console: Console, seconds: float) -> int:
    """Record points for so many seconds. Returns 1 if some are left."""
    deadline_s = time.monotonic() + seconds
    remaining = 0
    with open_store(DATABASE) as store:
        for case in cases():
            schedules = missing_points(store, case)
            added = 0
            if schedules and time.monotonic() < deadline_s:
                with closing(LocalPool(case.target, settings().objects, LIMITS)) as pool:
                    added = record_points(store, pool, case, schedules, deadline_s)
            remaining += len(schedules) - added
            console.print(f"{case.name}: {len(schedules) - added} of {len(case.points)} points left", highlight=False)
    return int(remaining > 0)


def _compare(console: Console, names: Sequence[str], seeds: int, *, again: bool) -> int:
    """Compare the contenders of these names. Returns 1 if nothing is recorded.

    Summaries of another `_state` are dropped.
    """
    recorded = _recorded_cases(console)
    if not recorded:
        console.print("nothing is recorded: ./dev bench strategies --record")
        return 1
    path = RESULTS / "strategies.json"
    state = _state(recorded, seeds)
    results = json.loads(path.read_text()) if path.exists() else {}
    summaries: dict[str, Any] = results["contenders"] if state.items() <= results.items() else {}
    contenders_by_name = contenders(recorded)
    for name, contender in contenders_by_name.items():
        if name not in names or (name in summaries and not again):
            continue
        curves = {
            recorded_case.case.name: [
                replay_search(recorded_case.case, recorded_case.records, contender, seed) for seed in range(seeds)
            ]
            for recorded_case in recorded
        }
        summaries[name] = summary(curves)
        summaries = {name: summaries[name] for name in contenders_by_name if name in summaries}
        write_whole(path, f"{json.dumps(state | {'contenders': summaries}, indent=1)}\n".encode())
    draw_curves(path.with_suffix(".svg"), {name: entry["curve"] for name, entry in summaries.items()})
    show(console, summaries)
    return 0


def _state(recorded: Sequence[RecordedCase], seeds: int) -> dict[str, Any]:
    """The settings that a comparison depends on."""
    return {
        "points": {recorded_case.case.name: len(recorded_case.records) for recorded_case in recorded},
        "seeds": seeds,
        "trials": TRIALS,
        "machine": machine(),
        "code_sha256": code_sha256(),
        "replay_sha256": code_sha256(TABULAR),
        "base_model_sha256": base_model_sha256(),
    }


def _recorded_cases(console: Console) -> list[RecordedCase]:
    """The cases of which every point is recorded."""
    recorded = []
    with open_store(DATABASE) as store:
        for case in cases():
            if missing_count := len(missing_points(store, case)):
                console.print(f"left out: {case.name}, {missing_count} points are not recorded", highlight=False)
                continue
            points = {schedule.key for schedule in case.points}
            records = store.records(case.task.key, case.target.key)
            point_records = [record for record in records if record.schedule.key in points]
            recorded.append(RecordedCase(case, sorted(point_records, key=lambda record: record.schedule.key)))
    return recorded


def show(console: Console, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line for each contender."""
    headings = [f"@{mark}" for mark in MARKS_SHOWN] + ["to 95%", "p90", "to 98%", "p90"]
    table = new_table(console, ("contender",), headings)
    for name, entry in summaries.items():
        trials = (entry[key] for key in ("median_trials", "p90_trials", "mean_trials_nearer", "p90_trials_nearer"))
        speeds = (share(entry["speed"][str(mark)]) for mark in MARKS_SHOWN)
        table.add_row(name, *speeds, *(f"{count:.3g}" for count in trials))
    print_table(console, table)


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

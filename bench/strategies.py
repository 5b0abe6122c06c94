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

from tunewright.bench.asked import asked
from tunewright.bench.campaign import wide_console
from tunewright.bench.entries import base_model_sha256, code_sha256
from tunewright.bench.files import FOLDER, RESULTS, stay_in_folder, write_whole
from tunewright.bench.keeping import LIMITS
from tunewright.bench.replay.cases import cases
from tunewright.bench.replay.comparison import TRIALS, searched, summary
from tunewright.bench.replay.contenders import Recorded, contenders
from tunewright.bench.replay.plot import draw_curves
from tunewright.bench.replay.recording import missing, record
from tunewright.codegen.host import machine
from tunewright.db.sql_store import open_store
from tunewright.tuner import cli
from tunewright.tuner.commands.tables import new_table, print_table
from tunewright.tuner.settings import settings
from tunewright.tuner.text import share
from tunewright.workers.local import LocalPool

REPLAY = ("bench/replay",)
"""The folder of what compares, which no digest of the product has."""

DATABASE = f"sqlite:///{FOLDER / 'replay.db'}"

SHOWN = (4, 8, 16, 32, 64)
"""Trials at which the table looks."""


def main() -> int:
    """Record what is missing, or compare."""
    parser = argparse.ArgumentParser(prog="./dev bench strategies", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of contenders; default: all")
    parser.add_argument("--record", action="store_true", help="measure what is not recorded yet, compare nothing")
    parser.add_argument("--seconds", type=float, default=3600.0, help="record for so long (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="searches of each case by each contender (%(default)s)")
    parser.add_argument("--again", action="store_true", help="compare anew what is compared")
    given = parser.parse_args()
    names = asked(parser, contenders([]), given.names)
    stay_in_folder()
    console = wide_console()
    if given.record:
        return _record(console, given.seconds)
    return _compare(console, names, given.seeds, again=given.again)


def _record(console: Console, seconds: float) -> int:
    """1 if some points are left."""
    deadline_s = time.monotonic() + seconds
    left = 0
    with open_store(DATABASE) as store:
        for case in cases():
            wanted = missing(store, case)
            added = 0
            if wanted and time.monotonic() < deadline_s:
                with closing(LocalPool(case.target, settings().objects, LIMITS)) as pool:
                    added = record(store, pool, case, wanted, deadline_s)
            left += len(wanted) - added
            console.print(f"{case.name}: {len(wanted) - added} of {len(case.points)} points left", highlight=False)
    return int(left > 0)


def _compare(console: Console, names: Sequence[str], seeds: int, *, again: bool) -> int:
    """Compare the contenders of these names: 1 if nothing is recorded.

    What was compared before in another `_state` is dropped.
    """
    recorded = _recorded(console)
    if not recorded:
        console.print("nothing is recorded: ./dev bench strategies --record")
        return 1
    path = RESULTS / "strategies.json"
    state = _state(recorded, seeds)
    known = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = known["contenders"] if state.items() <= known.items() else {}
    ways = contenders(recorded)
    for name, contender in ways.items():
        if name not in names or (name in found and not again):
            continue
        curves = {
            each.case.name: [searched(each.case, each.records, contender, seed) for seed in range(seeds)]
            for each in recorded
        }
        found[name] = summary(curves)
        found = {name: found[name] for name in ways if name in found}
        write_whole(path, f"{json.dumps(state | {'contenders': found}, indent=1)}\n".encode())
    draw_curves(path.with_suffix(".svg"), {name: entry["curve"] for name, entry in found.items()})
    show(console, found)
    return 0


def _state(recorded: Sequence[Recorded], seeds: int) -> dict[str, Any]:
    """What a comparison depends on."""
    return {
        "points": {each.case.name: len(each.records) for each in recorded},
        "seeds": seeds,
        "trials": TRIALS,
        "machine": machine(),
        "code_sha256": code_sha256(),
        "replay_sha256": code_sha256(REPLAY),
        "base_model_sha256": base_model_sha256(),
    }


def _recorded(console: Console) -> list[Recorded]:
    """The cases of which every point is recorded."""
    found = []
    with open_store(DATABASE) as store:
        for case in cases():
            if left := len(missing(store, case)):
                console.print(f"left out: {case.name}, {left} points are not recorded", highlight=False)
                continue
            points = {schedule.key for schedule in case.points}
            records = store.records(case.task.key, case.target.key)
            kept = [record for record in records if record.schedule.key in points]
            found.append(Recorded(case, sorted(kept, key=lambda record: record.schedule.key)))
    return found


def show(console: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each contender."""
    headings = [f"@{mark}" for mark in SHOWN] + ["to 95%", "p90", "to 98%", "p90"]
    table = new_table(console, ("contender",), headings)
    for name, entry in found.items():
        trials = (entry[key] for key in ("median_trials", "p90_trials", "mean_trials_nearer", "p90_trials_nearer"))
        speeds = (share(entry["speed"][str(mark)]) for mark in SHOWN)
        table.add_row(name, *speeds, *(f"{count:.3g}" for count in trials))
    print_table(console, table)


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

"""What timing stale tasks again costs beside tuning them: `./dev bench retime [NAME ...]`.

Each model is tuned, then its database is copied, and the copy made to look as if an older compiler had made it all.
`retime` times the best of it again. As the code is the same, what paid should pay still, by the same schedules or by
some as fast: so the gains tell how far a comparison of few can be relied on.
Results: retime.json in the folder of the processor in bench/results.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import FOLDER, results_of_processor, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite import MODELS
from tunewright.codegen.host import detect, machine
from tunewright.tuner import cli
from tunewright.tuner.arguments import RETIMED
from tunewright.tuner.search.local_retiming import retime
from tunewright.tuner.search.report import Payoff, Report, Upgrade
from tunewright.tuner.search.tuning import tune

USUAL = ("mobilenet_v2", "squeezenet", "unet_small")
"""Small convolutional models: the ones that are measured where none is named."""

MOST_SHARE = 0.05
"""The most of the time of tuning that timing again may take."""

PRETEND = "UPDATE {} SET provenance = json_set(provenance, '$.llvmlite', '0.1.0', '$.llvm', '3.4.0')"
"""Makes a table of the copy be of older versions."""


def main() -> int:
    """Measure the selected models, then print the summary. 1 if one took more than `MOST_SHARE`."""
    parser = argparse.ArgumentParser(
        prog="./dev bench retime", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a part of {', '.join(MODELS)}; {', '.join(USUAL)}")
    parser.add_argument("--minutes", type=float, default=20.0, help="of searching for each (20)")
    parser.add_argument("--trials", type=int, help="most trials of each (no limit)")
    parser.add_argument("--best", type=int, default=RETIMED, help=f"schedules of each task to time again ({RETIMED})")
    parser.add_argument("--threads", type=int, default=detect().threads)
    parser.add_argument("--results", type=Path, default=results_of_processor() / "retime.json", metavar="FILE")
    arguments = parser.parse_args()
    names = select_names(parser, tuple(MODELS), arguments.names or USUAL)
    stay_in_folder()
    FOLDER.mkdir(parents=True, exist_ok=True)
    entries = Entries(arguments.results, tuple(MODELS))
    settings = {"minutes": arguments.minutes, "trials": arguments.trials, "best": arguments.best}
    for name in names:
        with TemporaryDirectory(prefix="retime-", dir=FOLDER) as folder:
            entry = measure(MODELS[name](), Path(folder), arguments.threads, **settings)
        entries.put(name, arguments.threads, entry | settings | {"machine": machine(), "code_sha256": code_sha256()})
        print(name, json.dumps(entry), flush=True)
    figures = summary([entry for _, entry in entries.of(arguments.threads)])
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return int((figures["largest_share"] or 0.0) > MOST_SHARE)


def measure(model: bytes, folder: Path, threads: int, *, minutes: float, trials: int | None, best: int) -> Entry:
    """Tune a model, pretend an upgrade, and time its best again."""
    tuned, upgraded = folder / "tuned.db", folder / "upgraded.db"
    start = time.monotonic()
    before = tune(model, db=f"sqlite:///{tuned}", minutes=minutes, trials=trials, threads=threads)
    tuning_s = time.monotonic() - start
    pretend_upgrade(tuned, upgraded)
    start = time.monotonic()
    after = retime(model, db=f"sqlite:///{upgraded}", threads=threads, schedules=best)
    retiming_s = time.monotonic() - start
    assert after.upgrade is not None
    return {
        "trials": before.trials,
        "tuning_s": tuning_s,  # with comparing what was found, and timing the whole model
        "searching_s": after.upgrade.tuning_s,
        "retiming_s": retiming_s,  # likewise
        "comparing_s": after.upgrade.seconds,
        "share": after.upgrade.share,
        "share_of_all": retiming_s / tuning_s,
        **_outcome(before, after, after.upgrade),
    }


def pretend_upgrade(path: Path, copy: Path) -> None:
    """Copy a database, as if all that is in it had been measured by older versions."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as connection:
        source.backup(connection)
        with connection:
            for table in ("trials", "repeats", "confirmations", "bests"):
                connection.execute(PRETEND.format(table))


def _outcome(before: Report, after: Report, upgrade: Upgrade) -> Entry:
    """What both say of the gains, of tasks and of the whole model."""
    winners = {task.key: task.schedule for task in before.tasks}
    same = sum(winners[task.key] == task.schedule for task in after.tasks if task.retimed is not None)
    return {
        "tasks": upgrade.tasks,
        "same_winners": same,
        "payoffs": {payoff.value: upgrade.payoffs.get(payoff, 0) for payoff in Payoff},
        "gain_before": upgrade.before_default_s and upgrade.before_s and upgrade.before_default_s / upgrade.before_s,
        "gain": upgrade.gain,
        "model_gain_before": before.speedup,
        "model_gain": after.speedup,
        "noise": before.noise or after.noise,
    }


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest share of the time of searching, and the mean gains before and after."""
    shares = [entry["share"] for entry in entries if entry["share"] is not None]
    gains = [(entry["gain_before"], entry["gain"]) for entry in entries if entry["gain_before"] and entry["gain"]]
    return {
        "models": len(entries),
        "largest_share": max(shares, default=None),
        "gain_before": geometric_mean(before for before, _ in gains) if gains else None,
        "gain": geometric_mean(after for _, after in gains) if gains else None,
    }


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

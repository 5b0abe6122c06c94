"""The base cost model: `./dev bench base_model [collect|keep|fit]`.

`collect` measures schedules of many tasks into build/bench/base_model.db, beside those that are kept of this
processor, and goes on where it was stopped; nothing else may run meanwhile. `keep` writes all of them into
bench/training/measured/. `fit` makes the model out of what is kept of all processors, and its data card, in
costmodel/base_model/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console

from tunewright.bench.files import FOLDER, ROOT, stay_in_folder
from tunewright.bench.keeping import LIMITS
from tunewright.bench.training.collecting import collect
from tunewright.bench.training.fitting import Sets, write
from tunewright.bench.training.kept import MEASURED, entries, keep, lines, told
from tunewright.bench.training.tasks import is_held_out_or_reserved, reserved, training_tasks
from tunewright.codegen.host import detect
from tunewright.costmodel.examples import grouped
from tunewright.db.exchange import Entry, Kind
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.tuner import cli
from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings
from tunewright.tuner.text import counted
from tunewright.workers.local import LocalPool

DATABASE = FOLDER / "base_model.db"
PACKAGE = ROOT / "costmodel" / "base_model"

STEPS = ("collect", "keep", "fit")


def main() -> int:
    """Some steps, or all."""
    parser = argparse.ArgumentParser(prog="./dev bench base_model", description=__doc__, allow_abbrev=False)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="collect, keep, fit; default: all")
    parser.add_argument("--tasks", type=int, default=1500, help="random tasks beside those of networks (%(default)s)")
    parser.add_argument("--trials", type=int, default=40, help="schedules of each task (%(default)s)")
    parser.add_argument("--within", type=float, default=60.0, metavar="MINUTES", help="of collecting (%(default)s)")
    given = parser.parse_args()
    if unknown := set(given.steps) - set(STEPS):
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    stay_in_folder()
    steps, here = given.steps or STEPS, MEASURED / f"{detect().cpu}.xz"
    if {"collect", "keep"} & set(steps):
        with open_store(f"sqlite:///{DATABASE}") as store:
            if not store.newest_trial() and here.exists():
                store.import_(lines(here))
            if "collect" in steps:
                _collect(store, given.tasks, given.trials, given.within)
            if "keep" in steps:
                _keep(store, here)
    if "fit" in steps:
        _fit()
    return 0


def _collect(store: SqlStore, tasks: int, trials: int, within_minutes: float) -> None:
    """Each task on one thread or on all, in turn, in an order that is random but always the same.

    What models are judged by has to be known better than what they learn from: its schedules are timed side by side.
    """
    console = Console()
    found = training_tasks(tasks)
    keys = np.random.default_rng(1).permutation(list(found))
    deadline_s = time.monotonic() + 60 * within_minutes
    targets = (detect(), detect(1))
    total = 0
    with ExitStack() as stack:
        reserved_loops = reserved()
        pools = [stack.enter_context(LocalPool(target, settings().objects, LIMITS)) for target in targets]
        for number, key in enumerate(keys):
            if time.monotonic() > deadline_s:
                console.print(f"{len(keys) - number} tasks are left for the next run: the time is over")
                return
            which = number % len(targets)
            is_judged_by = is_held_out_or_reserved(found[key], reserved_loops)
            total += collect(store, pools[which], found[key], targets[which], trials, side_by_side=is_judged_by)
            if number % 20 == 0:
                console.print(f"{number} of {len(keys)} tasks, {total} trials", highlight=False)


def _keep(store: SqlStore, path: Path) -> None:
    """Write the trials on this processor, by as many threads as may be."""
    cpu = detect().cpu
    kept = keep(path, (data for data in store.export() if data["kind"] == Kind.TRIAL and data["target"]["cpu"] == cpu))
    Console().print(f"{counted(kept, 'trial')}: {path}", highlight=False)


def _fit() -> None:
    measured = entries(MEASURED)
    if not measured:
        raise Refused(f"nothing is kept in {MEASURED}: ./dev bench base_model collect keep")
    trials, expected = (list(grouped(map(example, found))) for found in (measured, told()))
    sets = Sets.of(trials, expected, reserved())
    said = sorted({item for entry in measured for item in entry.record.measurement.provenance.items()})
    machine = {name: ", ".join(text for one, text in said if one == name) for name, _ in said}
    Console().print_json(json.dumps(write(PACKAGE, "cpu", sets, machine)))


def example(entry: Entry) -> tuple[Candidate, Measurement]:
    """As a cost model learns it."""
    return Candidate(entry.task, entry.target, entry.record.schedule), entry.record.measurement


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

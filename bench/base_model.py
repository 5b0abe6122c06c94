"""The base cost model: `./dev bench base_model [collect|fit]`.

`collect` measures schedules of many tasks into build/bench/base_model.db, and goes on where it was stopped; nothing
else may run meanwhile. `fit` makes the model out of them, and its data card, in costmodel/base_model/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
from rich.console import Console

from tunewright.bench.files import FOLDER, ROOT, stay_in_folder
from tunewright.bench.keeping import LIMITS
from tunewright.bench.training.collecting import collect
from tunewright.bench.training.fitting import Sets, write
from tunewright.bench.training.tasks import reserved, training_tasks
from tunewright.codegen.host import detect
from tunewright.costmodel.examples import grouped
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.tuner import cli
from tunewright.tuner.settings import settings
from tunewright.workers.local import LocalPool

DATABASE = FOLDER / "base_model.db"
PACKAGE = ROOT / "costmodel" / "base_model"

STEPS = ("collect", "fit")


def main() -> int:
    """Collect, fit, or both."""
    parser = argparse.ArgumentParser(prog="./dev bench base_model", description=__doc__, allow_abbrev=False)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="collect, fit; default: both")
    parser.add_argument("--tasks", type=int, default=1500, help="random tasks beside those of networks (%(default)s)")
    parser.add_argument("--trials", type=int, default=40, help="schedules of each task (%(default)s)")
    parser.add_argument("--within", type=float, default=60.0, metavar="MINUTES", help="of collecting (%(default)s)")
    given = parser.parse_args()
    if unknown := set(given.steps) - set(STEPS):
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    stay_in_folder()
    with open_store(f"sqlite:///{DATABASE}") as store:
        if "collect" in given.steps or not given.steps:
            _collect(store, given.tasks, given.trials, given.within)
        if "fit" in given.steps or not given.steps:
            _fit(store)
    return 0


def _collect(store: SqlStore, tasks: int, trials: int, within_minutes: float) -> None:
    """Each task on one thread or on all, in turn, in an order that is random but always the same."""
    console = Console()
    found = training_tasks(tasks)
    keys = np.random.default_rng(1).permutation(list(found))
    deadline_s = time.monotonic() + 60 * within_minutes
    targets = (detect(), detect(1))
    total = 0
    with ExitStack() as stack:
        pools = [stack.enter_context(LocalPool(target, settings().objects, LIMITS)) for target in targets]
        for number, key in enumerate(keys):
            if time.monotonic() > deadline_s:
                console.print(f"{len(keys) - number} tasks are left for the next run: the time is over")
                return
            which = number % len(targets)
            total += collect(store, pools[which], found[key], targets[which], trials)
            if number % 20 == 0:
                console.print(f"{number} of {len(keys)} tasks, {total} trials", highlight=False)


def _fit(store: SqlStore) -> None:
    statuses: Counter[str] = Counter()

    def examples() -> Iterator[tuple[Candidate, Measurement]]:
        for candidate, measurement in store.examples("cpu"):
            statuses[measurement.status.value] += 1
            yield candidate, measurement

    trials = list(grouped(examples()))
    card = write(PACKAGE, "cpu", Sets.of(trials, reserved()), statuses)
    Console().print_json(json.dumps(card))


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

"""The base cost model: `./dev bench base_model [collect|keep|fit]`.

`collect` measures schedules of many tasks into build/bench/base_model.db, beside those that are kept of this
processor, and goes on where it was stopped; nothing else may run meanwhile. `keep` writes all of them into
bench/training/measured/. `fit` makes the model out of what is kept of all processors, and its data card, in
costmodel/base_model/. Of GPUs: `gpu_trials`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console

from tunewright.bench.files import FOLDER, stay_in_folder
from tunewright.bench.recorder import LIMITS
from tunewright.bench.training.collection import collect
from tunewright.bench.training.fit import PACKAGE, Sets, write
from tunewright.bench.training.quantised import random_layers
from tunewright.bench.training.tasks import (
    is_held_out_or_reserved,
    reserved_loops,
    tasks_of_models,
    training_tasks,
)
from tunewright.bench.training.trial_files import MEASURED, read_lines, write_trials
from tunewright.codegen.host import detect
from tunewright.db.exchange import EntryKind
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Task
from tunewright.tuner import cli
from tunewright.tuner.settings import settings
from tunewright.tuner.text import counted
from tunewright.workers.local import LocalPool

DATABASE = FOLDER / "base_model.db"

STEPS = ("collect", "keep", "fit")


def main() -> int:
    """Run the steps that are named, or all."""
    parser = argparse.ArgumentParser(prog="./dev bench base_model", description=__doc__, allow_abbrev=False)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="collect, keep, fit; default: all")
    parser.add_argument("--tasks", type=int, default=1500, help="random tasks beside those of networks (%(default)s)")
    parser.add_argument("--layers", type=int, default=300, help="random quantised layers' tasks (%(default)s)")
    parser.add_argument("--only-layers", action="store_true", help="collect of these alone")
    parser.add_argument("--trials", type=int, default=40, help="schedules of each task (%(default)s)")
    parser.add_argument("--within", type=float, default=60.0, metavar="MINUTES", help="of collecting (%(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.steps) - set(STEPS):
        parser.error(f"no step is called {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    stay_in_folder()
    steps, trial_file = arguments.steps or STEPS, MEASURED / f"{detect().cpu}.xz"
    if {"collect", "keep"} & set(steps):
        with open_store(f"sqlite:///{DATABASE}") as store:
            if not store.newest_trial() and trial_file.exists():
                store.import_(read_lines(trial_file))
            if "collect" in steps:
                tasks = {} if arguments.only_layers else training_tasks(arguments.tasks)
                tasks = tasks_of_models(random_layers(np.random.default_rng(0)), arguments.layers, tasks)
                _collect(store, tasks, arguments.trials, arguments.within)
            if "keep" in steps:
                _keep(store, trial_file)
    if "fit" in steps:
        _fit()
    return 0


def _collect(store: Store, tasks_by_key: Mapping[str, Task], trials: int, within_minutes: float) -> None:
    """Measure tasks on one thread and on all, alternately, in a fixed random order.

    Schedules of tasks that are held out are timed side by side: models are judged by them.
    """
    console = Console()
    keys = np.random.default_rng(1).permutation(list(tasks_by_key))
    deadline_s = time.monotonic() + 60 * within_minutes
    targets = (detect(), detect(1))
    total = 0
    with ExitStack() as stack:
        reserved = reserved_loops()
        pools = [stack.enter_context(LocalPool(target, settings().objects, LIMITS)) for target in targets]
        for number, key in enumerate(keys):
            if time.monotonic() > deadline_s:
                console.print(f"{len(keys) - number} tasks are left for the next run: the time is over")
                return
            which = number % len(targets)
            is_judged_by = is_held_out_or_reserved(tasks_by_key[key], reserved)
            total += collect(store, pools[which], tasks_by_key[key], targets[which], trials, side_by_side=is_judged_by)
            if number % 20 == 0:
                console.print(f"{number} of {len(keys)} tasks, {total} trials", highlight=False)


def _keep(store: Store, path: Path) -> None:
    """Write the trials on this processor, with any number of threads."""
    cpu = detect().cpu
    count = write_trials(
        path, (data for data in store.export() if data["kind"] == EntryKind.TRIAL and data["target"]["cpu"] == cpu)
    )
    Console().print(f"{counted(count, 'trial')}: {path}", highlight=False)


def _fit() -> None:
    sets, machine = Sets.read("cpu", reserved_loops())
    Console().print_json(json.dumps(write(PACKAGE, "cpu", sets, machine)))


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

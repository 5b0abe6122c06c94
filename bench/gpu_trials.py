"""Trials for the base cost model of GPUs: `./dev bench gpu_trials [plan|collect|keep|fit]`.

`plan`, on any machine, chooses tasks and schedules. `collect`, on a machine with a GPU, builds them in one process less
than it has cores and times them in another, in an order that is always the same, until the time is over; another run
goes on behind it. `keep` writes what was collected into bench/training/measured/, by the name of the GPU. `fit` makes
the model out of what is kept of all GPUs, and its data card, in costmodel/base_model/.

`collect` takes CuPy, but no database and no XGBoost: `python -m tunewright.bench.gpu_trials collect`. A kernel that
hangs or crashes is a failed trial and costs a few seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunewright.bench.files import FOLDER
from tunewright.bench.gpus.collection import collect
from tunewright.bench.gpus.plan import PlannedTask, plan, read_plan, write_plan
from tunewright.bench.gpus.tasks import reserved_loops, training_tasks
from tunewright.bench.gpus.trial_device import TrialDevice
from tunewright.bench.training.fit import PACKAGE, Sets, write
from tunewright.bench.training.trial_files import MEASURED, write_trials
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import CUDA, Target
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.targets import local_target

PLAN, COLLECTED = FOLDER / "gpu" / "plan.xz", FOLDER / "gpu" / "collected.jsonl"

STEPS = ("plan", "collect", "keep", "fit")


def main() -> int:
    """Run a step."""
    parser = argparse.ArgumentParser(
        prog="./dev bench gpu_trials", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--plan", type=Path, default=PLAN, metavar="FILE", help="the plan (%(default)s)")
    parser.add_argument("--collected", type=Path, default=COLLECTED, metavar="FILE", help="(%(default)s)")
    parser.add_argument("--within", type=float, default=600.0, metavar="SECONDS", help="of collecting (%(default)s)")
    parser.add_argument("--arch", choices=list(KNOWN), default="sm_90a", help="to plan for (%(default)s)")
    arguments = parser.parse_args()
    arguments.collected.parent.mkdir(parents=True, exist_ok=True)
    match arguments.step:
        case "plan":
            target = Target.of_gpu(KNOWN[arguments.arch])
            schedules = write_plan(arguments.plan, plan(training_tasks(target), target))
            print(f"{schedules} schedules: {arguments.plan}")
        case "collect":
            _collect(arguments.plan, arguments.collected, arguments.within)
        case "keep":
            keep(arguments.collected)
        case _:
            sets, machine = Sets.read(CUDA, reserved_loops())
            print(json.dumps(write(PACKAGE, CUDA, sets, machine), indent=2))
    return 0


def _collect(plan_path: Path, path: Path, within_s: float) -> None:
    start_s, target = time.monotonic(), local_target(CUDA)
    planned_tasks = select_untried(read_plan(plan_path), read_trials(path), target)
    with TrialDevice() as device:
        count = collect(planned_tasks, target, device, path, within_s)
    print(f"{count} trials in {time.monotonic() - start_s:.0f} s: {path}")


def read_trials(path: Path) -> list[dict[str, Any]]:
    """What was collected, without a last line that is cut short, which is taken out of the file."""
    if not path.exists():
        return []
    whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        path.write_text(f"{whole}\n", encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def select_untried(
    planned_tasks: Sequence[PlannedTask], trials: Sequence[Mapping[str, Any]], target: Target
) -> Iterator[PlannedTask]:
    """What is planned but for trials on this target."""
    known: dict[str, set[Schedule]] = {}
    for trial in trials:
        if trial["target_key"] == target.key:
            known.setdefault(trial["task_key"], set()).add(Schedule.from_json(trial["schedule"]))
    for task, schedules in planned_tasks:
        yield PlannedTask(task, tuple(each for each in schedules if each not in known.get(task.key, ())))


def keep(path: Path) -> list[Path]:
    """Keep what was collected in files of the source, one for each GPU. Returns the files."""
    trials = read_trials(path)
    names = {trial["target_key"]: trial["provenance"]["gpu"] for trial in trials if "gpu" in trial["provenance"]}
    paths = []
    for key, name in names.items():
        paths.append(MEASURED / f"{name.replace(' ', '_').lower()}.xz")
        own = [trial for trial in trials if trial["target_key"] == key]
        write_trials(paths[-1], own)
        print(f"{dict(Counter(trial['status'] for trial in own))}: {paths[-1]}")
    return paths


if __name__ == "__main__":
    sys.exit(main())

"""Knowledge before a search: picks without a trial, the rate of scoring, and the worth of records.

Every search here begins with the shipped base model, as for any user. It has learned from no task with the loops of
`workloads`, but from most tasks of the networks in `suite`, also of both that `measure_transfer` tunes. A cold start
has an empty database and an empty object cache: it knows no record, but has that model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.suite import MODELS
from tunewright.workers.measure.sampling import remove_drift

from .plan import SearchPlan
from .searches import LOAD_LIMIT_S, TUNE_LIMIT_S, sample_in_processes, tune_fresh
from .workloads import UNSEEN, WORKLOADS

TASKS: Mapping[str, Callable[[], bytes]] = {name: workload.build for name, workload in WORKLOADS.items()} | dict(UNSEEN)
"""Models for whose tasks schedules are picked without any trial."""

SHARE = 0.1
"""The trials of a search that starts from records, as a share of those of a cold start."""

SEEDS = (1, 2, 3, 4, 5)
"""Seeds of `measure_transfer`: eight shares, of one seed each, by the same search, were 63 to 99%."""

TEACHER, LEARNER = "resnet50", "resnet18"

MODEL_LIMIT_S = 3600.0
"""Time limit of tuning a whole model."""


def measure_zero(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Time the schedule that is picked without any trial, the default, and the best of a search."""
    model = plan.model(name, TASKS[name])
    best = tune_fresh(plan, name, model, threads, "zero", trials=plan.budgets.whole_trials)
    with plan.ours(name, threads) as child:
        picked = child.request(
            "pick", LOAD_LIMIT_S, db=plan.empty_database(name, threads), model=model, threads=threads
        )
    schedules = [picked["schedule"], picked["default"], best["schedule"]]
    times_s = [median(samples_s) for samples_s in sample_in_processes(plan, name, model, threads, schedules)]
    return {
        "match": picked["match"],
        "picked_ms": 1e3 * times_s[0],
        "default_ms": 1e3 * times_s[1],
        "tuned_ms": 1e3 * times_s[2],
        "share": times_s[2] / times_s[0],
        "default_share": times_s[2] / times_s[1],
        "schedule": picked["schedule"],
    }


def measure_scoring(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Points that a model which has learned from a search samples, checks and scores a second."""
    plan.require_entry("ours", name, threads)
    database = plan.database(name, threads, "seconds")
    with plan.ours(name, threads) as child:
        model = plan.model(name, WORKLOADS[name].build)
        spaces = child.request("score", TUNE_LIMIT_S, model=model, db=database, threads=threads, seed=0)
    return {"spaces": spaces, "slowest": min(space["whole"] for space in spaces)}


def measure_transfer(plan: SearchPlan, name: str, threads: int) -> Entry:
    """A model tuned from the records of another, in a tenth of the trials of a cold start: the share of its gain.

    The worth of records is the difference between `share` and `share_short`, that of a cold start with as few trials:
    both have the base model, which has learned from tasks of either network. The median over several seeds counts, as
    the results of single searches are partly luck, that of the cold start too.
    """
    seeds = [_measure_seed(plan, name, threads, seed) for seed in SEEDS]
    return {"share": _median_share(seeds, "share"), "share_short": _median_share(seeds, "share_short"), "seeds": seeds}


def _median_share(seeds: Sequence[Entry], share: str) -> float | None:
    """The median share over the seeds; None where tuning gained nothing with one of them."""
    shares = [entry[share] for entry in seeds]
    return None if None in shares else median(shares)


def _measure_seed(plan: SearchPlan, name: str, threads: int, seed: int) -> Entry:
    """The shares of one seed.

    The three and the default are timed in turn, as whole models, in several processes one after the other: the
    addresses of weights in a process change a model's time by one or two percent, a tenth of the gain of tuning.
    """
    trials = plan.budgets.model_trials
    few = max(1, round(SHARE * trials))
    teacher, learner = (plan.model(network, MODELS[network]) for network in (TEACHER, LEARNER))
    plan.say(f"    seed {seed}: {TEACHER}, a cold start, {trials} trials")
    _tune_model(plan, name, teacher, threads, "teacher", trials, seed)
    plan.say(f"    seed {seed}: {LEARNER}, a cold start, {trials} trials")
    cold_report = _tune_model(plan, name, learner, threads, "cold", trials, seed)
    _copy(plan.database(name, threads, "teacher"), plan.database(name, threads, "taught", fresh=True))
    plan.say(f"    seed {seed}: {LEARNER} from the records of {TEACHER}, {few} trials")
    transfer_report = _tune_model(plan, name, learner, threads, "taught", few, seed, fresh=False)
    plan.say(f"    seed {seed}: {LEARNER}, a cold start, {few} trials")
    short_report = _tune_model(plan, name, learner, threads, "short", few, seed)
    reports = {"tuned": cold_report, "taught": transfer_report, "short": short_report}
    variants = {"default": {"schedules": {}, "times_s": {}}} | {key: variant(report) for key, report in reports.items()}
    times_s = _times_s(plan, name, learner, threads, variants)
    return {
        "trials": {key: report["trials"] for key, report in reports.items()},
        "seconds": {key: report["seconds"] for key, report in reports.items()},
        "times_ms": {key: 1e3 * value for key, value in times_s.items()},
        "share": gain_share(times_s, "taught"),
        "share_short": gain_share(times_s, "short"),
    }


def _times_s(
    plan: SearchPlan, name: str, model: str, threads: int, variants: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Seconds of a run of the model by variant: medians over processes, without drift."""
    samples_by_variant: dict[str, list[float]] = {key: [] for key in variants}
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child:
            times_s = child.request("time_whole", TUNE_LIMIT_S, model=model, threads=threads, variants=variants)
        for key, time_s in times_s.items():
            samples_by_variant[key].append(time_s)
    return {key: median(samples_s) for key, samples_s in remove_drift(samples_by_variant).items()}


def gain_share(times_s: Mapping[str, float], name: str) -> float | None:
    """The share of tuning's gain that one of the variants has; None where tuning gains nothing."""
    full_s = times_s["default"] - times_s["tuned"]
    return (times_s["default"] - times_s[name]) / full_s if full_s > 0 else None


def _tune_model(
    plan: SearchPlan, name: str, model: str, threads: int, label: str, trials: int, seed: int, *, fresh: bool = True
) -> dict[str, Any]:
    """The report of a job in a fresh process, with an empty object cache, and an empty database where it is `fresh`."""
    database = plan.database(name, threads, label, fresh=fresh)
    with plan.ours(name, threads, fresh=True) as child:
        arguments = {
            "model": model,
            "db": database,
            "threads": threads,
            "trials": trials,
            "minutes": None,
            "seed": seed,
        }
        return dict(child.request("tune", MODEL_LIMIT_S, lambda event: None, **arguments)["report"])


def _copy(source: str, target: str) -> None:
    """Copy a closed database with the files beside it."""
    path = Path(source.removeprefix("sqlite:///"))
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, target.removeprefix("sqlite:///") + file.name.removeprefix(path.name))


def variant(report: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules and times of a report as data of a `whole_model.Variant`."""
    tasks = report["tasks"]
    return {
        "schedules": {task["key"]: task["schedule"] for task in tasks},
        "times_s": {
            task["key"]: None if task["best_ms"] is None else task["best_ms"] / 1e3 for task in tasks if task["trials"]
        },
    }

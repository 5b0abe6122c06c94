"""How far what a search finds can be trusted: the same kernel twice, the same search twice, and no search at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.suite import MODELS

from .plan import Plan
from .searches import LOAD_S, TUNE_S, tuned
from .workloads import HELD_OUT, WORKLOADS

SEEDS = (1, 2, 3)
"""Of the searches that are to end alike."""

TASKS: Mapping[str, Callable[[], bytes]] = {name: one.build for name, one in WORKLOADS.items()} | dict(HELD_OUT)
"""What schedules are picked for without any trial."""

SHARE = 0.1
"""Of the trials of a cold start that a search has which starts from what is known."""

TEACHER, LEARNER = "resnet50", "resnet18"

MODEL_S = 3600.0
"""What tuning a whole model may take at most."""


def agreement(plan: Plan, name: str, threads: int) -> Entry:
    """One kernel as two candidates, and one task tuned with several seeds."""
    model = plan.model(name, WORKLOADS[name].build)
    tunes = [
        tuned(plan, name, model, threads, f"seed-{seed}", trials=plan.budgets.whole_trials, seed=seed) for seed in SEEDS
    ]
    with plan.ours(name, threads) as child:
        given: dict[str, Any] = {"model": model, "threads": threads}
        picked = child.request("picked", LOAD_S, db=plan.database(name, threads, "nothing", fresh=True), **given)
        schedules = [picked["default"], *(one["schedule"] for one in tunes)]
        beside = child.request("compare", TUNE_S, schedules=schedules, **given)
        twice = [
            child.request("compare", TUNE_S, schedules=[tunes[0]["schedule"]] * 2, **given)
            for _ in range(plan.budgets.rounds)
        ]
        alone = child.request("measure", TUNE_S, schedules=[tunes[0]["schedule"]] * plan.budgets.rounds, **given)
    return {"same_kernel": same_kernel(twice, alone), "same_task": same_task(beside, tunes)}


def same_kernel(twice: Sequence[Sequence[Mapping[str, Any]]], alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much two measurements of one kernel differ, beside each other, and each in a process of its own."""
    gaps = [abs(one["median_s"] / other["median_s"] - 1) for one, other in twice]
    disjoint = sum(one["high_s"] < other["low_s"] or other["high_s"] < one["low_s"] for one, other in twice)
    medians_s = [one["median_s"] for one in alone]
    middle_s = median(medians_s)
    return {
        "pairs": len(gaps),
        "disjoint": disjoint,
        "median_gap": median(gaps),
        "largest_gap": max(gaps),
        "alone": len(medians_s),
        "spread_alone": median(abs(one / middle_s - 1) for one in medians_s),
        "largest_alone": max(abs(one / middle_s - 1) for one in medians_s),
    }


def same_task(beside: Sequence[Mapping[str, Any]], tunes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What tunes of one task found, timed side by side with the default, which comes first."""
    default, *winners = beside
    times_s = [winner["median_s"] for winner in winners]
    best_s = min(times_s)
    return {
        "seeds": [one["seed"] for one in tunes],
        "trials": [one["curve"]["trials"] for one in tunes],
        "schedules": [one["schedule"] for one in tunes],
        "default_ms": 1e3 * default["median_s"],
        "best_ms": [1e3 * one for one in times_s],
        "apart": max(times_s) / best_s - 1,
        "regrets": [one / best_s - 1 for one in times_s],
        "slower_than_default": sum(winner["low_s"] > default["high_s"] for winner in winners),
    }


def zero(plan: Plan, name: str, threads: int) -> Entry:
    """What is picked without any trial, beside the default and the best that a search finds."""
    model = plan.model(name, TASKS[name])
    best = tuned(plan, name, model, threads, "zero", trials=plan.budgets.whole_trials)
    with plan.ours(name, threads) as child:
        given: dict[str, Any] = {"model": model, "threads": threads}
        picked = child.request("picked", LOAD_S, db=plan.database(name, threads, "nothing", fresh=True), **given)
        schedules = [picked["schedule"], picked["default"], best["schedule"]]
        times_s = [one["median_s"] for one in child.request("compare", TUNE_S, schedules=schedules, **given)]
    return {
        "match": picked["match"],
        "picked_ms": 1e3 * times_s[0],
        "default_ms": 1e3 * times_s[1],
        "tuned_ms": 1e3 * times_s[2],
        "share": times_s[2] / times_s[0],
        "default_share": times_s[2] / times_s[1],
        "schedule": picked["schedule"],
    }


def scoring(plan: Plan, name: str, threads: int) -> Entry:
    """Points that are sampled, checked and scored a second, by a model that has learned from a search."""
    plan.known("ours", name, threads)
    database = plan.database(name, threads, "seconds")
    with plan.ours(name, threads) as child:
        model = plan.model(name, WORKLOADS[name].build)
        spaces = child.request("score", TUNE_S, model=model, db=database, threads=threads, seed=0)
    return {"spaces": spaces, "slowest": min(one["whole"] for one in spaces)}


def transfer(plan: Plan, name: str, threads: int) -> Entry:
    """A model tuned from what another has taught, in a tenth of the trials, beside one that starts from nothing."""
    trials = plan.budgets.model_trials
    few = max(1, round(SHARE * trials))
    teacher, learner = (plan.model(one, MODELS[one]) for one in (TEACHER, LEARNER))
    plan.say(f"    {TEACHER}, {trials} trials")
    _tuned_model(plan, name, teacher, threads, "teacher", trials)
    plan.say(f"    {LEARNER} from nothing, {trials} trials")
    cold = _tuned_model(plan, name, learner, threads, "cold", trials)
    _copy(plan.database(name, threads, "teacher"), plan.database(name, threads, "taught", fresh=True))
    plan.say(f"    {LEARNER} from what {TEACHER} taught, {few} trials")
    taught = _tuned_model(plan, name, learner, threads, "taught", few, fresh=False)
    plan.say(f"    {LEARNER} from nothing, {few} trials")
    short = _tuned_model(plan, name, learner, threads, "short", few)
    reports = {"tuned": cold, "taught": taught, "short": short}
    variants = {"default": {"schedules": {}, "times_s": {}}} | {key: variant(one) for key, one in reports.items()}
    with plan.ours(name, threads) as child:
        times_s = child.request("time_whole", TUNE_S, model=learner, threads=threads, variants=variants)
    return {
        "trials": {key: one["trials"] for key, one in reports.items()},
        "seconds": {key: one["seconds"] for key, one in reports.items()},
        "times_ms": {key: 1e3 * value for key, value in times_s.items()},
        "share": gained(times_s, "taught"),
        "share_short": gained(times_s, "short"),
    }


def gained(times_s: Mapping[str, float], name: str) -> float | None:
    """The share of what tuning gains that one of the ways has; None where it gains nothing."""
    full_s = times_s["default"] - times_s["tuned"]
    return (times_s["default"] - times_s[name]) / full_s if full_s > 0 else None


def _tuned_model(
    plan: Plan, name: str, model: str, threads: int, label: str, trials: int, *, fresh: bool = True
) -> dict[str, Any]:
    """The report of a job in a fresh process, with an empty object cache, and an empty database where it is `fresh`."""
    database = plan.database(name, threads, label, fresh=fresh)
    with plan.ours(name, threads, fresh=True) as child:
        given = {"model": model, "db": database, "threads": threads, "trials": trials, "minutes": None, "seed": 0}
        return dict(child.request("tune", MODEL_S, lambda event: None, **given)["report"])


def _copy(source: str, target: str) -> None:
    """Copy a database that nobody has open, with what lies beside it."""
    path = Path(source.removeprefix("sqlite:///"))
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, target.removeprefix("sqlite:///") + file.name.removeprefix(path.name))


def variant(report: Mapping[str, Any]) -> dict[str, Any]:
    """How a report would have a model run: see `whole_model.Variant`."""
    tasks = report["tasks"]
    return {
        "schedules": {task["key"]: task["schedule"] for task in tasks},
        "times_s": {
            task["key"]: None if task["best_ms"] is None else task["best_ms"] / 1e3 for task in tasks if task["trials"]
        },
    }

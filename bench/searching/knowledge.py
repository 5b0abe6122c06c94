"""What is known before a search: what is picked with no trial, how fast points are scored, and what records are worth.

Every search here has the base model that is shipped, as that of any user has. It has learned of no task with the loops
of `workloads`, but of most tasks of the networks in `suite`, also of both that `transfer` tunes. A cold start is one
with an empty database and an empty object cache: it knows no record, but it does have that model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.suite import MODELS
from tunewright.workers.sampling import paced

from .plan import Plan
from .searches import LOAD_LIMIT_S, TUNE_LIMIT_S, placed, tuned
from .workloads import UNSEEN, WORKLOADS

TASKS: Mapping[str, Callable[[], bytes]] = {name: one.build for name, one in WORKLOADS.items()} | dict(UNSEEN)
"""What schedules are picked for without any trial."""

SHARE = 0.1
"""Of the trials of a cold start that a search has which starts from records."""

SEEDS = (1, 2, 3, 4, 5)
"""Of `transfer`: eight shares, of one seed each and by the same search, were 63 to 99%."""

TEACHER, LEARNER = "resnet50", "resnet18"

MODEL_LIMIT_S = 3600.0
"""What tuning a whole model may take."""


def zero(plan: Plan, name: str, threads: int) -> Entry:
    """What is picked without any trial, beside the default and the best that a search finds."""
    model = plan.model(name, TASKS[name])
    best = tuned(plan, name, model, threads, "zero", trials=plan.budgets.whole_trials)
    with plan.ours(name, threads) as child:
        picked = child.request("picked", LOAD_LIMIT_S, db=plan.empty(name, threads), model=model, threads=threads)
    schedules = [picked["schedule"], picked["default"], best["schedule"]]
    times_s = [median(taken) for taken in placed(plan, name, model, threads, schedules)]
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
        spaces = child.request("score", TUNE_LIMIT_S, model=model, db=database, threads=threads, seed=0)
    return {"spaces": spaces, "slowest": min(one["whole"] for one in spaces)}


def transfer(plan: Plan, name: str, threads: int) -> Entry:
    """A model tuned from the records of another, in a tenth of the trials of a cold start: the share of its gain.

    What records are worth is the difference between `share` and `share_short`, which is that of a cold start with as
    few trials: both have the base model, which has learned of tasks of either network. All of it with several seeds, of
    whose shares the middle one counts: what searches find for one task or another is partly luck, also that of the cold
    start which the others are held against.
    """
    seeds = [_transferred(plan, name, threads, seed) for seed in SEEDS]
    return {"share": _middle(seeds, "share"), "share_short": _middle(seeds, "share_short"), "seeds": seeds}


def _middle(seeds: Sequence[Entry], share: str) -> float | None:
    """None where tuning gained nothing with one of the seeds."""
    shares = [one[share] for one in seeds]
    return None if None in shares else median(shares)


def _transferred(plan: Plan, name: str, threads: int, seed: int) -> Entry:
    """The same with one seed.

    The three and the default are timed in turn, as whole models, in several processes one after the other: where
    weights lie in one of them makes a model faster or slower by one or two percent, which is a tenth of what tuning
    gains.
    """
    trials = plan.budgets.model_trials
    few = max(1, round(SHARE * trials))
    teacher, learner = (plan.model(one, MODELS[one]) for one in (TEACHER, LEARNER))
    plan.say(f"    seed {seed}: {TEACHER}, a cold start, {trials} trials")
    _tuned_model(plan, name, teacher, threads, "teacher", trials, seed)
    plan.say(f"    seed {seed}: {LEARNER}, a cold start, {trials} trials")
    cold = _tuned_model(plan, name, learner, threads, "cold", trials, seed)
    _copy(plan.database(name, threads, "teacher"), plan.database(name, threads, "taught", fresh=True))
    plan.say(f"    seed {seed}: {LEARNER} from the records of {TEACHER}, {few} trials")
    taught = _tuned_model(plan, name, learner, threads, "taught", few, seed, fresh=False)
    plan.say(f"    seed {seed}: {LEARNER}, a cold start, {few} trials")
    short = _tuned_model(plan, name, learner, threads, "short", few, seed)
    reports = {"tuned": cold, "taught": taught, "short": short}
    variants = {"default": {"schedules": {}, "times_s": {}}} | {key: variant(one) for key, one in reports.items()}
    times_s = _times_s(plan, name, learner, threads, variants)
    return {
        "trials": {key: one["trials"] for key, one in reports.items()},
        "seconds": {key: one["seconds"] for key, one in reports.items()},
        "times_ms": {key: 1e3 * value for key, value in times_s.items()},
        "share": gained(times_s, "taught"),
        "share_short": gained(times_s, "short"),
    }


def _times_s(
    plan: Plan, name: str, model: str, threads: int, variants: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Of one run of the model, by variant: medians of all processes, put at an even pace."""
    taken: dict[str, list[float]] = {key: [] for key in variants}
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child:
            times_s = child.request("time_whole", TUNE_LIMIT_S, model=model, threads=threads, variants=variants)
        for key, time_s in times_s.items():
            taken[key].append(time_s)
    return {key: median(samples_s) for key, samples_s in paced(taken).items()}


def gained(times_s: Mapping[str, float], name: str) -> float | None:
    """The share of what tuning gains that one of the ways has; None where it gains nothing."""
    full_s = times_s["default"] - times_s["tuned"]
    return (times_s["default"] - times_s[name]) / full_s if full_s > 0 else None


def _tuned_model(
    plan: Plan, name: str, model: str, threads: int, label: str, trials: int, seed: int, *, fresh: bool = True
) -> dict[str, Any]:
    """The report of a job in a fresh process, with an empty object cache, and an empty database where it is `fresh`."""
    database = plan.database(name, threads, label, fresh=fresh)
    with plan.ours(name, threads, fresh=True) as child:
        given = {"model": model, "db": database, "threads": threads, "trials": trials, "minutes": None, "seed": seed}
        return dict(child.request("tune", MODEL_LIMIT_S, lambda event: None, **given)["report"])


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

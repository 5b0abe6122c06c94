"""How far results agree: one kernel measured as two candidates, and one task tuned with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.turns import summary

from .plan import Plan
from .searches import LOAD_LIMIT_S, TUNE_LIMIT_S, placed, tuned
from .workloads import WORKLOADS

SEEDS = (1, 2, 3)
"""Of the tunes of a task."""


def agreement(plan: Plan, name: str, threads: int) -> Entry:
    """The winner of a search as two candidates, and the winners of several searches beside each other."""
    model = plan.model(name, WORKLOADS[name].build)
    tunes = [
        tuned(plan, name, model, threads, f"seed-{seed}", trials=plan.budgets.whole_trials, seed=seed) for seed in SEEDS
    ]
    first = tunes[0]["schedule"]
    with plan.ours(name, threads) as child:
        given: dict[str, Any] = {"model": model, "threads": threads}
        default = child.request("picked", LOAD_LIMIT_S, db=plan.empty(name, threads), **given)["default"]
        twice = [
            child.request("compare", TUNE_LIMIT_S, schedules=[first] * 2, **given) for _ in range(plan.budgets.rounds)
        ]
        alone = child.request("measure", TUNE_LIMIT_S, schedules=[first] * plan.budgets.rounds, **given)
    beside = placed(plan, name, model, threads, [default, *(one["schedule"] for one in tunes)])
    return {"same_kernel": same_kernel(twice, alone), "same_task": same_task(beside, tunes)}


def same_kernel(twice: Sequence[Sequence[Mapping[str, Any]]], alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much two measurements of one kernel differ, beside each other, and each in a process of its own."""
    gaps = [abs(one["median_s"] / other["median_s"] - 1) for one, other in twice]
    medians_s = [one["median_s"] for one in alone]
    middle_s = median(medians_s)
    return {
        "pairs": len(gaps),
        "disjoint": sum(is_surely_slower(one, other) or is_surely_slower(other, one) for one, other in twice),
        "median_gap": median(gaps),
        "largest_gap": max(gaps),
        "alone": len(medians_s),
        "spread_alone": median(abs(one / middle_s - 1) for one in medians_s),
        "largest_alone": max(abs(one / middle_s - 1) for one in medians_s),
    }


def same_task(beside: Sequence[Sequence[float]], tunes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What tunes of one task found, by samples in turn of the default, which comes first, and of each winner.

    A winner is slower than the default where its median is above that of the default, by however little. A winner that
    is the default has the same samples. How many of these are `surely_slower`, with intervals apart, is only told.
    """
    default, *winners = map(summary, beside)
    times_s = [winner["median_s"] for winner in winners]
    best_s = min(times_s)
    return {
        "seeds": [one["seed"] for one in tunes],
        "trials": [one["curve"]["trials"] for one in tunes],
        "schedules": [one["schedule"] for one in tunes],
        "default_ms": 1e3 * default["median_s"],
        "best_ms": [1e3 * one for one in times_s],
        "regrets": [one / best_s - 1 for one in times_s],
        "beside_default": max(times_s) / default["median_s"],
        "slower_than_default": sum(one > default["median_s"] for one in times_s),
        "surely_slower": sum(is_surely_slower(winner, default) for winner in winners),
    }


def is_surely_slower(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the interval of one time lies above that of the other."""
    return bool(one["low_s"] > other["high_s"])

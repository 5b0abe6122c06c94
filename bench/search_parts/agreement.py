"""Agreement of results: one kernel measured as two candidates, and one task tuned with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tunewright.bench.entries import Entry
from tunewright.bench.turns import summary

from .plan import SearchPlan
from .searches import LOAD_LIMIT_S, TUNE_LIMIT_S, sample_in_processes, tune_fresh
from .workloads import WORKLOADS

SEEDS = (1, 2, 3)
"""Seeds of the tunes of a task."""


def measure_agreement(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Measure the winner of a search as two candidates, and the winners of several searches beside each other."""
    model = plan.model(name, WORKLOADS[name].build)
    tunes = [
        tune_fresh(plan, name, model, threads, f"seed-{seed}", trials=plan.budgets.whole_trials, seed=seed)
        for seed in SEEDS
    ]
    schedule = tunes[0]["schedule"]
    with plan.ours(name, threads) as child:
        arguments: dict[str, Any] = {"model": model, "threads": threads}
        default = child.request("pick", LOAD_LIMIT_S, db=plan.empty_database(name, threads), **arguments)["default"]
        twice = [
            child.request("compare", TUNE_LIMIT_S, schedules=[schedule] * 2, **arguments)
            for _ in range(plan.budgets.rounds)
        ]
        alone = child.request("measure", TUNE_LIMIT_S, schedules=[schedule] * plan.budgets.rounds, **arguments)
    samples_s = sample_in_processes(
        plan, name, model, threads, [default, *(tune_entry["schedule"] for tune_entry in tunes)]
    )
    return {"same_kernel": same_kernel(twice, alone), "same_task": same_task(samples_s, tunes)}


def same_kernel(twice: Sequence[Sequence[Mapping[str, Any]]], alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Differences between measurements of one kernel: beside each other, and each in a process of its own."""
    gaps = [abs(first["median_s"] / second["median_s"] - 1) for first, second in twice]
    medians_s = [first["median_s"] for first in alone]
    middle_s = median(medians_s)
    return {
        "pairs": len(gaps),
        "disjoint": sum(is_surely_slower(first, second) or is_surely_slower(second, first) for first, second in twice),
        "median_gap": median(gaps),
        "largest_gap": max(gaps),
        "alone": len(medians_s),
        "spread_alone": median(abs(first / middle_s - 1) for first in medians_s),
        "largest_alone": max(abs(first / middle_s - 1) for first in medians_s),
    }


def same_task(samples_s: Sequence[Sequence[float]], tunes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The winners of several tunes of a task, by samples in turn of the default, which comes first, and of each.

    A winner is slower than the default where its median is above that of the default, by however little. A winner that
    is the default has the same samples. `surely_slower` counts those with disjoint intervals.
    """
    default, *winners = map(summary, samples_s)
    times_s = [winner["median_s"] for winner in winners]
    best_s = min(times_s)
    return {
        "seeds": [tune["seed"] for tune in tunes],
        "trials": [tune["curve"]["trials"] for tune in tunes],
        "schedules": [tune["schedule"] for tune in tunes],
        "default_ms": 1e3 * default["median_s"],
        "best_ms": [1e3 * time_s for time_s in times_s],
        "regrets": [time_s / best_s - 1 for time_s in times_s],
        "beside_default": max(times_s) / default["median_s"],
        "slower_than_default": sum(time_s > default["median_s"] for time_s in times_s),
        "surely_slower": sum(is_surely_slower(winner, default) for winner in winners),
    }


def is_surely_slower(slower: Mapping[str, Any], faster: Mapping[str, Any]) -> bool:
    """Whether the interval of one time lies above that of the other."""
    return bool(slower["low_s"] > faster["high_s"])

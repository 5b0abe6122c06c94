"""Goals of the search, each with its figure from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from statistics import fmean, median
from typing import Any

from tunewright.bench.entries import Entries, Entry, geometric

from .curve import SearchCurve
from .plan import Budgets, part_entries

RATE, AS_FAST, NEAR_TRIALS, NEAR_S = 25.0, 1.0, 20.0, 10.0
PAIRWISE, PEAK_1, PEAK_5 = 0.90, 0.90, 0.97
PICKED_SHARE, SCORED, APART, SLOWER, TRANSFER_SHARE = 0.85, 100_000.0, 0.03, 0, 0.90


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: `figure` is None where nothing is measured yet."""

    text: str
    figure: float | None
    wanted: str
    met: bool | None
    cases: int
    where: str = ""  # the case that decides it
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def goals(entries: Entries, threads: int, quality: Mapping[str, float] | None = None) -> list[Goal]:
    """All goals on that many cores. `quality` is that of the base model on tasks held out: `validation.Quality`."""
    parts = {
        name: part_entries(entries, name, threads)
        for name in ("ours", "metaschedule", "versus", "agreement", "zero", "scoring", "transfer")
    }
    return [
        _rates(parts["ours"], parts["metaschedule"]),
        *_versus(parts["versus"]),
        *_near(parts["ours"]),
        _zero(parts["zero"]),
        *_quality(quality or {}),
        _scoring(parts["scoring"]),
        *_agreement(parts["agreement"]),
        _transfer(parts["transfer"]),
    ]


def _rates(ours: Mapping[str, Entry], rival: Mapping[str, Entry]) -> Goal:
    rivals = {name: entry["trials_a_second"] for name, entry in rival.items() if entry["trials_a_second"]}
    seconds_entries = {name: entry["seconds"] for name, entry in ours.items() if name in rivals}
    ratios = {name: entry["trials_a_second"] / rivals[name] for name, entry in seconds_entries.items()}
    whole = [entry["trials_a_second_of_all"] / rivals[name] for name, entry in seconds_entries.items()]
    running = [
        entry["trials_a_second"] / rate
        for name, entry in seconds_entries.items()
        if (rate := SearchCurve.from_json(rival[name]["curve"]).running_trials_a_second)
    ]
    detail = f"of the whole job at least {min(whole):.1f}" if whole else ""
    detail += f", beside MetaSchedule's after its start at least {min(running):.1f}" if running else ""
    return _least("trials a second / MetaSchedule's, the lowest", ratios, RATE, detail)


def _versus(versus: Mapping[str, Entry]) -> Iterator[Goal]:
    ratios: dict[str, dict[str, float]] = {text: {} for text in _budget_texts(Budgets()).values() if not versus}
    for name, entry in versus.items():
        for label, text in _budget_texts(Budgets(**entry["budget"])).items():
            ratios.setdefault(text, {})[name] = entry["ratios"][label]
    for text, case_ratios in ratios.items():
        middle = geometric(list(case_ratios.values()))
        yield _least(text, case_ratios, AS_FAST, f"geometric mean {middle:.2f}" if middle else "")


def _budget_texts(spent: Budgets) -> dict[str, str]:
    """The texts of the goals after so many trials, and after so many seconds."""
    return {
        "trials": f"speed after {spent.trials} trials / after its {spent.rival_trials}, the lowest",
        "seconds": f"speed after {spent.seconds:g} s / after its {spent.rival_seconds:g} s, the lowest",
    }


def _near(ours: Mapping[str, Entry]) -> Iterator[Goal]:
    for field, text, bound in (
        ("trial", "trials to 95% of the own best, median", NEAR_TRIALS),
        ("at_s", "seconds to 95% of the own best, median", NEAR_S),
    ):
        values = [entry["near"][field] for entry in ours.values() if entry["near"]]
        yield _most(text, median(values) if values else None, bound, len(values))


def _zero(zero: Mapping[str, Entry]) -> Goal:
    shares = {name: entry["share"] for name, entry in zero.items()}
    middle = geometric(list(shares.values()))
    default = geometric([entry["default_share"] for entry in zero.values()])
    lowest = min(shares, key=lambda name: shares[name], default="")
    return Goal(
        "share of the tuned best with no trial, geometric mean",
        middle,
        f">= {PICKED_SHARE:g}",
        None if middle is None else middle >= PICKED_SHARE,
        len(shares),
        lowest,
        f"lowest {shares[lowest]:.2f}; the default {default:.2f}" if default else "",
    )


def _quality(quality: Mapping[str, float]) -> Iterator[Goal]:
    tasks = int(quality.get("tasks", 0))
    for name, text, bound in (
        ("pairwise", "pairs in the right order, of tasks held out", PAIRWISE),
        ("peak_1", "speed of the first pick, of tasks held out", PEAK_1),
        ("peak_5", "best speed of the first five picks, of tasks held out", PEAK_5),
    ):
        figure = quality.get(name)
        yield Goal(text, figure, f">= {bound:g}", None if figure is None else figure >= bound, tasks)


def _scoring(scoring: Mapping[str, Entry]) -> Goal:
    return _least(
        "candidates scored a second, the slowest space", {n: e["slowest"] for n, e in scoring.items()}, SCORED
    )


def _agreement(agreement: Mapping[str, Entry]) -> Iterator[Goal]:
    tasks = [entry["same_task"] for entry in agreement.values()]
    kernels = [entry["same_kernel"] for entry in agreement.values()]
    regrets = [regret for task in tasks for regret in task["regrets"]]
    pairs, disjoint = sum(kernel["pairs"] for kernel in kernels), sum(kernel["disjoint"] for kernel in kernels)
    detail = f"regret of a winner: median {median(regrets):.2%}, worst {max(regrets):.2%}; " if regrets else ""
    detail += f"of {pairs} pairs of one kernel {disjoint} had disjoint intervals" if pairs else ""
    if tasks:
        furthest = median(max(task["best_ms"]) / min(task["best_ms"]) - 1 for task in tasks)
        detail = f"all of a task: {furthest:.2%}; {detail}"
    apart = median(_mean_gap(task["best_ms"]) for task in tasks) if tasks else None
    yield _most("two tunes of a task apart, median of the tasks", apart, APART, len(tasks), detail)
    yield _never_slower(tasks)


def _mean_gap(times: Sequence[float]) -> float:
    """The relative difference of two times, as the mean of all pairs."""
    return fmean(max(pair) / min(pair) - 1 for pair in combinations(times, 2))


def _never_slower(tasks: Sequence[Mapping[str, Any]]) -> Goal:
    """Winners slower than the default by their medians, with no allowance: see `agreement.same_task`."""
    text = "winners whose median time is above the default's"
    if not tasks:
        return _most(text, None, SLOWER, 0)
    winners, surely = sum(len(task["best_ms"]) for task in tasks), sum(task["surely_slower"] for task in tasks)
    worst = max(task["beside_default"] for task in tasks)
    detail = f"of {winners}, {surely} with intervals apart; the slowest takes {worst:.4f} of the default's time"
    return _most(text, sum(task["slower_than_default"] for task in tasks), SLOWER, len(tasks), detail)


def _transfer(transfer: Mapping[str, Entry]) -> Goal:
    """The share of the gain of a cold start, which has the base model and no record."""
    entries = {name: entry for name, entry in transfer.items() if entry["share"] is not None}
    shares = {name: entry["share"] for name, entry in entries.items()}
    detail = ", ".join(f"a cold start with as few: {entry['share_short']:.0%}" for entry in entries.values())
    return _least("share of a cold start's gain in a tenth of its trials", shares, TRANSFER_SHARE, detail)


def _least(text: str, values: Mapping[str, float], bound: float, detail: str = "") -> Goal:
    """A goal that the lowest of the values decides."""
    name = min(values, key=lambda case: values[case], default="")
    figure = values[name] if values else None
    met = None if figure is None else figure >= bound
    return Goal(text, figure, f">= {bound:g}", met, len(values), name, detail)


def _most(text: str, figure: float | None, bound: float, cases: int, detail: str = "") -> Goal:
    met = None if figure is None or not isfinite(figure) else figure <= bound
    return Goal(text, figure, f"<= {bound:g}", met, cases, "", detail)


def lines(shown_goals: Sequence[Goal]) -> Iterator[str]:
    """The goals as lines of text."""
    for goal in shown_goals:
        state = {None: "not measured", True: "met", False: "NOT MET"}[goal.met]
        figure = "-" if goal.figure is None else f"{goal.figure:.4g}"
        rest = "; ".join(part for part in (goal.where, goal.detail) if part)
        yield f"{state:14} {goal.text}: {figure} ({goal.wanted}, cases: {goal.cases}{'; ' + rest if rest else ''})"

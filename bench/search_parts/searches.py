"""Searches without records: ours and a rival's, and the best kernels of both beside each other.

Ours begin with an empty database and an empty object cache, and with the base model that is shipped, which has learned
of no task with the loops of a workload. TVM's begin with a model that has learned nothing: it ships none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from tunewright.bench.entries import Entry
from tunewright.bench.rivals.process import RequestTimeout, ServedProcess
from tunewright.bench.turns import Sample, sample_in_turn
from tunewright.workers.measure.sampling import remove_drift

from .curve import CurvePoint, SearchCurve
from .plan import MissingEntry, NoKernel, SearchPlan
from .workloads import WORKLOADS

NEAR = 0.95
"""The share of its final best speed that a search is timed to."""

AFTER = ("trials", "seconds")
"""Budgets after which the best kernels of both are compared."""

PLACEMENTS, ROUNDS = 4, 5
"""Loads of a kernel in each process, each with arrays of its own, and samples of each load. Kernels of a whole model
have as many samples in each process."""

UNLIMITED = 1_000_000
"""Trials of a search that is ended by time."""

LOAD_LIMIT_S, SAMPLE_LIMIT_S, TUNE_LIMIT_S = 300.0, 120.0, 900.0
"""Time limits of requests; the last is added to the time of a search."""

LINE_S = 30.0
"""Seconds between two lines of progress."""


class Leader(NamedTuple):
    """A schedule that was faster than all before it, by the times of the search."""

    trial: int  # from 1 on
    at_s: float  # since the search began
    schedule: Mapping[str, Any]


class Listener:
    """Makes a curve of the events of a search and prints its progress."""

    def __init__(
        self, say: Callable[[str], None], is_over: Callable[[SearchCurve], bool] = lambda curve: False
    ) -> None:
        self.curve = SearchCurve()
        self.code_paths: dict[int, str] = {}  # by trial: paths of the built code of the fastest so far
        self.leaders: list[Leader] = []
        self.start_s = 0.0
        self._say, self._is_over = say, is_over
        self._printed_s = time.monotonic()

    def hear(self, event: Mapping[str, Any]) -> bool:
        """Take in an event. Returns whether the search is over."""
        if event.get("began"):
            self.start_s = float(event["at_s"])
            return False
        at_s = event["at_s"] - self.start_s
        is_fastest = self.curve.add(at_s, event["time_s"])
        if is_fastest and "built" in event:
            self.code_paths[self.curve.trials] = event["built"]
        if is_fastest and "schedule" in event:
            self.leaders.append(Leader(self.curve.trials, at_s, event["schedule"]))
        if time.monotonic() - self._printed_s > LINE_S:
            self._printed_s = time.monotonic()
            self._say(
                f"    {self.curve.trials} trials, {self.curve.seconds:.0f} s, best {1e6 * self.curve.best_s:.4g} us"
            )
        return self._is_over(self.curve)


def tune_fresh(
    plan: SearchPlan,
    name: str,
    model: str,
    threads: int,
    label: str,
    *,
    trials: int,
    seconds: float = inf,
    seed: int = 0,
) -> dict[str, Any]:
    """Run a job with an empty database and object cache in a fresh process. Returns its curve and figures."""
    database = plan.database(name, threads, label, fresh=True)
    listener = Listener(plan.say)
    start_s = time.monotonic()
    minutes = None if seconds == inf else seconds / 60
    with plan.ours(name, threads, fresh=True) as child:
        limit_s = TUNE_LIMIT_S + (0 if seconds == inf else seconds)
        arguments: dict[str, Any] = {"model": model, "db": database, "threads": threads, "trials": trials}
        arguments |= {"minutes": minutes, "seed": seed}
        answer = child.request("tune", limit_s, listener.hear, **arguments)
    whole_s = time.monotonic() - start_s
    report = answer["report"]
    [task] = report["tasks"]
    search_s = answer["ended_s"] - listener.start_s
    return {
        "curve": listener.curve.to_json(),
        "leaders": [leader._asdict() for leader in listener.leaders],
        "search_s": search_s,
        "whole_s": whole_s,
        "trials_a_second": listener.curve.trials / search_s,
        "trials_a_second_of_all": listener.curve.trials / whole_s,
        "default_ms": task["default_ms"],
        "best_ms": task["best_ms"],
        "schedule": task["schedule"],
        "failed": report["failed"],
        "seed": seed,
    }


def measure_ours(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Run a job of few trials, and one of a minute."""
    model, budgets = plan.model(name, WORKLOADS[name].build), plan.budgets
    few = tune_fresh(plan, name, model, threads, "trials", trials=budgets.trials)
    long = tune_fresh(plan, name, model, threads, "seconds", trials=UNLIMITED, seconds=budgets.seconds)
    return {"trials": few, "seconds": long, "near": time_near_best(plan, name, threads, model, long["leaders"])}


def time_near_best(
    plan: SearchPlan, name: str, threads: int, model: str, leaders: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """When a search came near its final best; None where nothing worked.

    Its leaders are timed again in turn: during a search the machine is faster and slower.
    """
    if not leaders:
        return None
    with plan.ours(name, threads) as child:
        samples_s = sample_kernels(child, model, threads, [leader["schedule"] for leader in leaders])
    times_s = list(map(median, samples_s))
    first = next(n for n, time_s in enumerate(times_s) if min(times_s) >= NEAR * time_s)
    return {"trial": leaders[first]["trial"], "at_s": leaders[first]["at_s"]}


def measure_metaschedule(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Run TVM's search: its best kernels after so many trials and seconds. It is killed then."""
    workload, budgets = WORKLOADS[name], plan.budgets
    arguments: dict[str, Any] = {"cpu": plan.cpu, "cores": threads}
    folder = plan.case_folder(name, threads) / "metaschedule"

    def is_over(curve: SearchCurve) -> bool:
        return curve.seconds >= budgets.rival_seconds and curve.trials >= budgets.rival_trials

    listener = Listener(plan.say, is_over)
    with plan.rival(name, threads) as child:
        about = child.request("about", LOAD_LIMIT_S, **arguments)
        limit_s = LOAD_LIMIT_S + 2 * budgets.rival_seconds
        try:
            child.request(
                "tune", limit_s, listener.hear, kind=workload.kind, sizes=workload.sizes, folder=str(folder),
                trials=UNLIMITED, seed=0, **arguments,
            )  # fmt: skip
            exhausted = True
        except RequestTimeout:
            exhausted = False
    curve = listener.curve
    after_trials = curve.best_after(trials=budgets.rival_trials)
    after_seconds = curve.best_after(seconds=budgets.rival_seconds)
    return {
        "about": about,
        "curve": curve.to_json(),
        "exhausted": exhausted,
        "trials_a_second": curve.trials_a_second,
        "after_trials": _point_entry(plan, listener, after_trials),
        "after_seconds": _point_entry(plan, listener, after_seconds),
    }


def _point_entry(plan: SearchPlan, listener: Listener, point: CurvePoint | None) -> dict[str, Any]:
    """A point of a curve with the path of its code. Raises NoKernel where nothing has worked."""
    if point is None:
        raise NoKernel("it found no kernel that runs")
    path = Path(listener.code_paths[point.trial]).relative_to(plan.folder)
    return {"trial": point.trial, "at_s": point.at_s, "best_s": point.best_s, "built": str(path)}


def measure_versus(plan: SearchPlan, name: str, threads: int) -> Entry:
    """Time the best kernels of both in turn on the same cores, after AFTER's budgets. Ours warm, and cold as well.

    The addresses of its arrays make a kernel that reads them from the last-level cache up to a third faster or slower.
    So both sides load it repeatedly, in several processes, and the mean over all placements counts.
    """
    own_entry, rival_entry = (
        plan.require_entry("ours", name, threads),
        plan.require_entry("metaschedule", name, threads),
    )
    model, kind = plan.model(name, WORKLOADS[name].build), WORKLOADS[name].kind
    built = {label: _code_path(plan, name, rival_entry[f"after_{label}"]) for label in AFTER}
    medians: dict[str, list[float]] = {}  # of each placement
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child, plan.rival(name, threads) as rival_child:
            samples: dict[tuple[str, int], Sample] = {}
            for label, placement in product(AFTER, range(PLACEMENTS)):
                rival_number = _load(rival_child, built=str(built[label]), kind=kind)
                samples[f"rival, {label}", placement] = _sample(rival_child, rival_number)
                own_number = _load(child, model=model, threads=threads, schedule=own_entry[label]["schedule"])
                samples[f"ours, {label}", placement] = _sample(child, own_number, warm=True)
                samples[f"ours cold, {label}", placement] = _sample(child, own_number, warm=False)
            for place, times_s in sample_in_turn(samples, ROUNDS).items():
                medians.setdefault(place[0], []).append(median(times_s))
    return {
        "times": {label: _spread(times_s) for label, times_s in medians.items()},
        "ratios": {label: mean(medians[f"rival, {label}"]) / mean(medians[f"ours, {label}"]) for label in AFTER},
    }


def _spread(medians_s: Sequence[float]) -> dict[str, Any]:
    """Mean, least and most of the placements' medians."""
    return {
        "mean_s": mean(medians_s),
        "least_s": min(medians_s),
        "most_s": max(medians_s),
        "placements": len(medians_s),
    }


def _code_path(plan: SearchPlan, name: str, point: Mapping[str, Any]) -> Path:
    """The path of the code of a rival's point. Raises MissingEntry."""
    path = plan.folder / str(point["built"])
    if not path.exists():
        raise MissingEntry(f"{path} is gone: ./dev bench search metaschedule '{name}' --again")
    return path


def _load(child: ServedProcess, **arguments: Any) -> int:
    """Load a kernel in a process. Returns its number there."""
    return int(child.request("load", LOAD_LIMIT_S, **arguments)["number"])


def _sample(child: ServedProcess, number: int, **arguments: Any) -> Sample:
    """A function that takes a sample of a loaded kernel."""
    return lambda: float(child.request("sample", SAMPLE_LIMIT_S, number=number, **arguments))


def sample_kernels(
    child: ServedProcess, model: str, threads: int, schedules: Sequence[Mapping[str, Any]]
) -> list[list[float]]:
    """Samples in turn of the kernels of a model of one task on each schedule: see `child.kernels`."""
    arguments: dict[str, Any] = {"model": model, "threads": threads, "schedules": schedules}
    return list(child.request("kernels", TUNE_LIMIT_S, **arguments, rounds=ROUNDS))


def sample_in_processes(
    plan: SearchPlan, name: str, model: str, threads: int, schedules: Sequence[Mapping[str, Any]]
) -> list[list[float]]:
    """As `sample_kernels`, in several processes one after the other, with other addresses of arrays in each.

    Drift between the processes is removed.
    """
    samples_by_schedule: dict[int, list[float]] = {n: [] for n in range(len(schedules))}
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child:
            for samples_s, child_samples_s in zip(
                samples_by_schedule.values(), sample_kernels(child, model, threads, schedules), strict=True
            ):
                samples_s += child_samples_s
    return list(remove_drift(samples_by_schedule).values())

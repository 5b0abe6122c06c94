"""Searches that know no record: ours and a rival's, and the best kernels of both beside each other.

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
from tunewright.bench.rivals.process import Served, TimeOver
from tunewright.bench.turns import Sample, in_turn
from tunewright.workers.sampling import paced

from .curve import Curve, Point
from .plan import Fruitless, Missing, Plan
from .workloads import WORKLOADS

NEAR = 0.95
"""The share of the own final best that a search is timed to."""

AFTER = ("trials", "seconds")
"""What bests of both sides are compared after."""

PLACEMENTS, ROUNDS = 4, 5
"""Times that a kernel is loaded in each process, with arrays of its own, and samples that are taken of each. So many
are taken of the kernels of a model in each process, too."""

UNLIMITED = 1_000_000
"""Trials of a search that time ends."""

LOAD_LIMIT_S, SAMPLE_LIMIT_S, TUNE_LIMIT_S = 300.0, 120.0, 900.0
"""What a request may take, the last beyond the time of the search itself."""

LINE_S = 30.0
"""Between two lines of progress."""


class Leader(NamedTuple):
    """A schedule that was faster than all before it, as a search of ours timed it."""

    trial: int  # from 1 on
    at_s: float  # since the search began
    schedule: Mapping[str, Any]


class Listener:
    """Makes a curve of the events of a search, and says now and then how it goes."""

    def __init__(self, say: Callable[[str], None], is_over: Callable[[Curve], bool] = lambda curve: False) -> None:
        self.curve = Curve()
        self.built: dict[int, str] = {}  # by trial: where what is the fastest so far is kept
        self.leaders: list[Leader] = []
        self.began_s = 0.0
        self._say, self._is_over = say, is_over
        self._said_s = time.monotonic()

    def hear(self, event: Mapping[str, Any]) -> bool:
        """Whether it is enough."""
        if event.get("began"):
            self.began_s = float(event["at_s"])
            return False
        at_s = event["at_s"] - self.began_s
        is_fastest = self.curve.add(at_s, event["time_s"])
        if is_fastest and "built" in event:
            self.built[self.curve.trials] = event["built"]
        if is_fastest and "schedule" in event:
            self.leaders.append(Leader(self.curve.trials, at_s, event["schedule"]))
        if time.monotonic() - self._said_s > LINE_S:
            self._said_s = time.monotonic()
            self._say(
                f"    {self.curve.trials} trials, {self.curve.seconds:.0f} s, best {1e6 * self.curve.best_s:.4g} us"
            )
        return self._is_over(self.curve)


def tuned(
    plan: Plan, name: str, model: str, threads: int, label: str, *, trials: int, seconds: float = inf, seed: int = 0
) -> dict[str, Any]:
    """A job from an empty database and an empty object cache in a fresh process: its curve and its report."""
    database = plan.database(name, threads, label, fresh=True)
    listener = Listener(plan.say)
    begun_s = time.monotonic()
    minutes = None if seconds == inf else seconds / 60
    with plan.ours(name, threads, fresh=True) as child:
        limit_s = TUNE_LIMIT_S + (0 if seconds == inf else seconds)
        given: dict[str, Any] = {"model": model, "db": database, "threads": threads, "trials": trials}
        given |= {"minutes": minutes, "seed": seed}
        done = child.request("tune", limit_s, listener.hear, **given)
    whole_s = time.monotonic() - begun_s
    report = done["report"]
    [task] = report["tasks"]
    search_s = done["ended_s"] - listener.began_s
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


def ours(plan: Plan, name: str, threads: int) -> Entry:
    """A job of few trials, and one of a minute."""
    model, budgets = plan.model(name, WORKLOADS[name].build), plan.budgets
    few = tuned(plan, name, model, threads, "trials", trials=budgets.trials)
    long = tuned(plan, name, model, threads, "seconds", trials=UNLIMITED, seconds=budgets.seconds)
    return {"trials": few, "seconds": long, "near": near(plan, name, threads, model, long["leaders"])}


def near(
    plan: Plan, name: str, threads: int, model: str, leaders: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """When a search had found what comes near the best that it found; None where nothing worked.

    All are timed in turn once more: the times of the search are of a minute in which a machine is faster and slower.
    """
    if not leaders:
        return None
    with plan.ours(name, threads) as child:
        taken = kernels(child, model, threads, [leader["schedule"] for leader in leaders])
    times_s = list(map(median, taken))
    first = next(n for n, time_s in enumerate(times_s) if min(times_s) >= NEAR * time_s)
    return {"trial": leaders[first]["trial"], "at_s": leaders[first]["at_s"]}


def metaschedule(plan: Plan, name: str, threads: int) -> Entry:
    """A search of TVM: what it had found after so many trials, and after so long. It is ended by force then."""
    workload, budgets = WORKLOADS[name], plan.budgets
    given: dict[str, Any] = {"cpu": plan.cpu, "cores": threads}
    folder = plan.place(name, threads) / "metaschedule"

    def is_over(curve: Curve) -> bool:
        return curve.seconds >= budgets.rival_seconds and curve.trials >= budgets.rival_trials

    listener = Listener(plan.say, is_over)
    with plan.rival(name, threads) as child:
        about = child.request("about", LOAD_LIMIT_S, **given)
        limit_s = LOAD_LIMIT_S + 2 * budgets.rival_seconds
        try:
            child.request(
                "tune", limit_s, listener.hear, kind=workload.kind, sizes=workload.sizes, folder=str(folder),
                trials=UNLIMITED, seed=0, **given,
            )  # fmt: skip
            exhausted = True
        except TimeOver:
            exhausted = False
    curve = listener.curve
    after_trials = curve.best_after(trials=budgets.rival_trials)
    after_seconds = curve.best_after(seconds=budgets.rival_seconds)
    return {
        "about": about,
        "curve": curve.to_json(),
        "exhausted": exhausted,
        "trials_a_second": curve.trials_a_second,
        "after_trials": _kept(plan, listener, after_trials),
        "after_seconds": _kept(plan, listener, after_seconds),
    }


def _kept(plan: Plan, listener: Listener, point: Point | None) -> dict[str, Any]:
    """A point of a curve, with where its code is kept. Raises Fruitless where nothing has worked."""
    if point is None:
        raise Fruitless("it found no kernel that runs")
    path = Path(listener.built[point.trial]).relative_to(plan.folder)
    return {"trial": point.trial, "at_s": point.at_s, "best_s": point.best_s, "built": str(path)}


def versus(plan: Plan, name: str, threads: int) -> Entry:
    """The best of both, in turn on the same cores: after few trials, and after a while. Ours warm, and cold as well.

    Where its arrays lie in memory makes a kernel that reads them from the last-level cache faster or slower, by up to a
    third. So both sides load it again and again, in several processes, and the mean over all these places counts.
    """
    own, rival = plan.known("ours", name, threads), plan.known("metaschedule", name, threads)
    model, kind = plan.model(name, WORKLOADS[name].build), WORKLOADS[name].kind
    built = {label: _built(plan, name, rival[f"after_{label}"]) for label in AFTER}
    medians: dict[str, list[float]] = {}  # of each placement
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child, plan.rival(name, threads) as other:
            samples: dict[tuple[str, int], Sample] = {}
            for label, placement in product(AFTER, range(PLACEMENTS)):
                theirs = _loaded(other, built=str(built[label]), kind=kind)
                samples[f"rival, {label}", placement] = _sample(other, theirs)
                loaded = _loaded(child, model=model, threads=threads, schedule=own[label]["schedule"])
                samples[f"ours, {label}", placement] = _sample(child, loaded, warm=True)
                samples[f"ours cold, {label}", placement] = _sample(child, loaded, warm=False)
            for place, times_s in in_turn(samples, ROUNDS).items():
                medians.setdefault(place[0], []).append(median(times_s))
    return {
        "times": {label: _spread(times_s) for label, times_s in medians.items()},
        "ratios": {label: mean(medians[f"rival, {label}"]) / mean(medians[f"ours, {label}"]) for label in AFTER},
    }


def _spread(medians_s: Sequence[float]) -> dict[str, Any]:
    """Of the medians of each placement."""
    return {
        "mean_s": mean(medians_s),
        "least_s": min(medians_s),
        "most_s": max(medians_s),
        "placements": len(medians_s),
    }


def _built(plan: Plan, name: str, point: Mapping[str, Any]) -> Path:
    """The code of a point of a rival's search. Raises Missing."""
    path = plan.folder / str(point["built"])
    if not path.exists():
        raise Missing(f"{path} is gone: ./dev bench search metaschedule '{name}' --again")
    return path


def _loaded(child: Served, **what: Any) -> int:
    """The number of what a process is ready to time."""
    return int(child.request("load", LOAD_LIMIT_S, **what)["number"])


def _sample(child: Served, number: int, **how: Any) -> Sample:
    """What takes a sample of what is loaded."""
    return lambda: float(child.request("sample", SAMPLE_LIMIT_S, number=number, **how))


def kernels(child: Served, model: str, threads: int, schedules: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Samples in turn of what the kernels of a model of one task take on each of the schedules: see `child.kernels`."""
    given: dict[str, Any] = {"model": model, "threads": threads, "schedules": schedules}
    return list(child.request("kernels", TUNE_LIMIT_S, **given, rounds=ROUNDS))


def placed(
    plan: Plan, name: str, model: str, threads: int, schedules: Sequence[Mapping[str, Any]]
) -> list[list[float]]:
    """As `kernels`, in several processes one after the other, in each of which arrays lie elsewhere.

    The machine may be at another pace in each: all samples are put at an even one.
    """
    taken: dict[int, list[float]] = {n: [] for n in range(len(schedules))}
    for _ in range(plan.budgets.starts):
        with plan.ours(name, threads) as child:
            for samples_s, more in zip(taken.values(), kernels(child, model, threads, schedules), strict=True):
                samples_s += more
    return list(paced(taken).values())

"""The search beside TVM's, and how far it can be trusted: `./dev bench search [PART] [NAME ...]`.

Parts, each measured for every workload and number of threads, on cores of their own:

  ours          a job of 64 trials and one of 60 s, from an empty database       2 min a case
  metaschedule  TVM's search, for 256 trials and 600 s, whichever is later       10 to 15 min a case
  versus        the best kernels of both in turn                                 2 min a case
  agreement     one kernel as two candidates, and tunes with several seeds       2 min a case
  zero          what is picked with no trial beside the tuned best, also for tasks held out    20 s a case, one thread
  scoring       candidates scored a second                                       15 s a case, one thread
  transfer      resnet18 from the records of resnet50 beside a cold start        25 min, all threads

Every search of ours begins with the base model that is shipped: an empty database holds no record, but a cold start is
not one from nothing.

All of it, 84 cases, takes three and a half to four hours, most of it TVM's. What is measured of these workloads with
this code, base model, machine and budget isn't measured again: after Ctrl-C or --within the same command goes on, and
at most one case is lost. What TVM did depends on its own versions, our program there and the processor alone. Results:
bench/results/search.json, and a plot for each number of threads.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from tunewright.bench.asked import ALL, asked_of_part
from tunewright.bench.entries import Entries, Entry, announced
from tunewright.bench.files import FOLDER, RESULTS, ROOT
from tunewright.bench.rivals.environment import PACKAGES, NoEnvironment
from tunewright.bench.rivals.process import ServedError, TimeOver
from tunewright.bench.searching.agreement import agreement
from tunewright.bench.searching.curve import Curve
from tunewright.bench.searching.goals import goals, lines
from tunewright.bench.searching.knowledge import TASKS, scoring, transfer, zero
from tunewright.bench.searching.plan import Budgets, Fruitless, Missing, Plan, case, of_part
from tunewright.bench.searching.plot import draw_curves
from tunewright.bench.searching.searches import metaschedule, ours, versus
from tunewright.bench.searching.workloads import WORKLOADS
from tunewright.codegen.host import available_cores
from tunewright.costmodel.base import base
from tunewright.tuner import cli

RIVAL_CODE = (ROOT / "bench" / "rivals" / "metaschedule.py", ROOT / "bench" / "rivals" / "serving.py")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the measurements. `budgets` are the names of those that it depends on."""

    measure: Callable[[Plan, str, int], Entry]
    names: Collection[str]
    budgets: tuple[str, ...]
    only: Callable[[Sequence[int]], int] | None = None  # which of the numbers of threads is measured; None: all
    is_rival: bool = False
    times_rival: bool = False  # beside ours


PARTS: Mapping[str, Part] = {
    "ours": Part(ours, WORKLOADS, ("trials", "seconds")),
    "agreement": Part(agreement, WORKLOADS, ("whole_trials", "rounds", "starts")),
    "zero": Part(zero, TASKS, ("whole_trials", "starts"), only=min),
    "scoring": Part(scoring, WORKLOADS, (), only=min),
    "transfer": Part(transfer, ("resnet18 after resnet50",), ("model_trials", "starts"), only=max),
    "metaschedule": Part(metaschedule, WORKLOADS, ("rival_trials", "rival_seconds"), is_rival=True),
    "versus": Part(
        versus, WORKLOADS, ("trials", "seconds", "rival_trials", "rival_seconds", "starts"), times_rival=True
    ),
}
"""In the order in which they are measured: what others need comes before, and what takes hours nearly last."""


def main() -> int:
    """Measure what is wanted, then show what there is. 1 if a case failed."""
    given = _parsed()
    plan = _plan(given)
    failed = 0
    try:
        if not given.summary:
            failed = run(plan, given)
    finally:  # an interrupt leaves what is measured so far
        conclude(plan.entries, given.results, sorted({1, 2, *given.threads}))
    return int(failed > 0)


def _parsed() -> argparse.Namespace:
    cores = len(available_cores())
    parser = argparse.ArgumentParser(
        prog="./dev bench search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("part", nargs="?", choices=[ALL, *PARTS], default=ALL, metavar="PART")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, min(2, cores)}), help="(%(default)s)")
    parser.add_argument("--within", type=float, default=inf, metavar="MINUTES", help="begin nothing after that long")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    parser.add_argument("--summary", action="store_true", help="only show what is measured")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "search.json", metavar="FILE", help="(bench/results/search.json)"
    )
    parser.add_argument(
        "--tvm-python", type=Path, metavar="PATH", help="an interpreter with TVM; default: one of build/bench/tvm, made"
    )
    for field in fields(Budgets):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help="(%(default)s)")
    given = parser.parse_args()
    if max(given.threads) > cores or min(given.threads) < 1:
        parser.error(f"there are {cores} cores")
    given.names = asked_of_part(parser, {part: one.names for part, one in PARTS.items()}, given.part, given.names)
    return given


def _plan(given: argparse.Namespace) -> Plan:
    order = [case(part, name) for part, one in PARTS.items() for name in one.names]
    budgets = Budgets(**{field.name: getattr(given, field.name) for field in fields(Budgets)})
    say = cli.messages()
    return Plan(
        FOLDER / "search",
        Entries(given.results, order),
        budgets,
        lambda line: say.print(line, markup=False, highlight=False, soft_wrap=True),
        given.tvm_python.absolute() if given.tvm_python else None,  # a link in it must stay one: it finds its packages
    )


def run(plan: Plan, given: argparse.Namespace) -> int:
    """Measure what is not measured yet; how many cases failed, or could not be measured."""
    failed = 0
    left = list(_left(plan, given))
    for part, name, threads in announced(
        left, lambda one: f"{case(*one[:2])}, threads: {one[2]}", plan.say, given.within
    ):
        begun_s = time.monotonic()
        try:
            entry = _entry(plan, part, name, threads)
        except (Missing, NoEnvironment) as lack:  # no fault of the case: what is kept of it stays
            failed += 1
            plan.say(f"  not measured: {lack}")
            continue
        plan.entries.put(case(part, name), threads, entry | settings(plan, part))
        failed += "error" in entry
        plan.say(f"  {_line(entry)}, {time.monotonic() - begun_s:.0f} s")
    return failed


def _left(plan: Plan, given: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for part, one in PARTS.items():
        if given.part not in (ALL, part):
            continue
        wanted = settings(plan, part)
        for name in one.names:
            if name not in given.names:
                continue
            for threads in [one.only(given.threads)] if one.only else sorted(given.threads):
                if given.again or not plan.entries.has(case(part, name), threads, wanted):
                    yield part, name, threads


def settings(plan: Plan, part: str) -> dict[str, Any]:
    """What an entry of a part depends on."""
    one = PARTS[part]
    found: dict[str, Any] = {"budget": {name: getattr(plan.budgets, name) for name in one.budgets}}
    if one.is_rival or one.times_rival:
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in RIVAL_CODE)).hexdigest()
        found |= {"packages": list(PACKAGES), "rival_sha256": digest}
    return found | (plan.hardware if one.is_rival else plan.settings)


def _entry(plan: Plan, part: str, name: str, threads: int) -> Entry:
    """A measurement, or a failure. Raises Missing and NoEnvironment."""
    entry = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        return entry | PARTS[part].measure(plan, name, threads)
    except (Fruitless, ServedError, TimeOver) as error:  # the other cases are worth having
        return entry | {"error": str(error).strip()}


def _line(entry: Mapping[str, Any]) -> str:
    if "error" in entry:
        return f"failed: {entry['error'].splitlines()[-1]}"
    return ", ".join(_figures(entry)) or "measured"


def _figures(entry: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The few numbers that tell most, out of any entry."""
    for name, value in entry.items():
        match value:
            case {"best_ms": float(), "trials_a_second": float()}:
                yield f"{name}: {value['best_ms']:.4g} ms, {value['trials_a_second']:.1f} trials a second"
            case dict() if name in ("ratios", "times_ms", "same_task", "near"):
                yield from _figures(value, f"{name} ")
            case float() if name not in ("default_ms",):
                yield f"{prefix}{name} {value:.4g}"


def conclude(entries: Entries, results: Path, counts: Sequence[int]) -> None:
    """Write what there is to say of all, draw it, and show it."""
    known = base("cpu")
    counts = [threads for threads in counts if any(True for _ in entries.of(threads))]
    every = {threads: goals(entries, threads, known.card["quality"] if known else None) for threads in counts}
    measured = {goal.text for shown in every.values() for goal in shown if goal.cases}
    found = {  # what is measured on one of the numbers of threads is not missing on the others
        f"threads: {threads}": [goal for goal in shown if goal.cases or goal.text not in measured]
        for threads, shown in every.items()
    }
    for threads in counts:
        draw_curves(results.with_name(f"{results.stem}_{threads}.svg"), _curves(entries, threads))
    if not found:
        print("nothing is measured yet")
        return
    entries.write({heading: [goal.to_json() for goal in shown] for heading, shown in found.items()})
    for heading, shown in found.items():
        print(f"\n{heading}")
        for line in lines(shown):
            print(f"  {line}")
    print(f"\n{results}, and a plot for each number of threads")


def _curves(entries: Entries, threads: int) -> dict[str, dict[str, Curve]]:
    own, rival = of_part(entries, "ours", threads), of_part(entries, "metaschedule", threads)
    curves: dict[str, dict[str, Curve]] = {}
    for name in WORKLOADS:
        found = {"tunewright": own[name]["seconds"]["curve"]} if name in own else {}
        found |= {"tvm": rival[name]["curve"]} if name in rival else {}
        curves[name] = {label: Curve.from_json(data) for label, data in found.items()}
    return curves


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

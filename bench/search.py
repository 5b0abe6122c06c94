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

from tunewright.bench.entries import Entries, Entry, announce
from tunewright.bench.files import FOLDER, RESULTS, ROOT
from tunewright.bench.rivals.environment import PACKAGES, NoEnvironment
from tunewright.bench.rivals.process import RequestTimeout, ServedProcessError
from tunewright.bench.search_parts.agreement import measure_agreement
from tunewright.bench.search_parts.curve import SearchCurve
from tunewright.bench.search_parts.goals import goals, lines
from tunewright.bench.search_parts.knowledge import TASKS, measure_scoring, measure_transfer, measure_zero
from tunewright.bench.search_parts.plan import Budgets, MissingEntry, NoKernel, SearchPlan, case_name, part_entries
from tunewright.bench.search_parts.plot import draw_curves
from tunewright.bench.search_parts.searches import measure_metaschedule, measure_ours, measure_versus
from tunewright.bench.search_parts.workloads import WORKLOADS
from tunewright.bench.selection import ALL, select_in_part
from tunewright.codegen.host import available_cores
from tunewright.costmodel.base import base
from tunewright.tuner import cli

RIVAL_CODE = (ROOT / "bench" / "rivals" / "metaschedule.py", ROOT / "bench" / "rivals" / "serving.py")


@dataclass(frozen=True, slots=True)
class SearchPart:
    """One of the measurements. `budgets` names the budgets that it depends on."""

    measure: Callable[[SearchPlan, str, int], Entry]
    names: Collection[str]
    budgets: tuple[str, ...]
    only: Callable[[Sequence[int]], int] | None = None  # selects one of the numbers of threads; None: all
    is_rival: bool = False
    times_rival: bool = False  # a kernel of the rival beside ours


PARTS: Mapping[str, SearchPart] = {
    "ours": SearchPart(measure_ours, WORKLOADS, ("trials", "seconds")),
    "agreement": SearchPart(measure_agreement, WORKLOADS, ("whole_trials", "rounds", "starts")),
    "zero": SearchPart(measure_zero, TASKS, ("whole_trials", "starts"), only=min),
    "scoring": SearchPart(measure_scoring, WORKLOADS, (), only=min),
    "transfer": SearchPart(measure_transfer, ("resnet18 after resnet50",), ("model_trials", "starts"), only=max),
    "metaschedule": SearchPart(measure_metaschedule, WORKLOADS, ("rival_trials", "rival_seconds"), is_rival=True),
    "versus": SearchPart(
        measure_versus, WORKLOADS, ("trials", "seconds", "rival_trials", "rival_seconds", "starts"), times_rival=True
    ),
}
"""Parts in the order of measurement: first those that others need, and the longest nearly last."""


def main() -> int:
    """Measure the selected cases, then show all results. 1 if a case failed."""
    arguments = _parse_arguments()
    plan = _plan(arguments)
    failed = 0
    try:
        if not arguments.summary:
            failed = run(plan, arguments)
    finally:  # also after an interrupt
        conclude(plan.entries, arguments.results, sorted({1, 2, *arguments.threads}))
    return int(failed > 0)


def _parse_arguments() -> argparse.Namespace:
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
    arguments = parser.parse_args()
    if max(arguments.threads) > cores or min(arguments.threads) < 1:
        parser.error(f"there are {cores} cores")
    arguments.names = select_in_part(
        parser, {part: search_part.names for part, search_part in PARTS.items()}, arguments.part, arguments.names
    )
    return arguments


def _plan(arguments: argparse.Namespace) -> SearchPlan:
    order = [case_name(part, name) for part, search_part in PARTS.items() for name in search_part.names]
    budgets = Budgets(**{field.name: getattr(arguments, field.name) for field in fields(Budgets)})
    say = cli.messages()
    tvm_python = arguments.tvm_python
    if tvm_python:  # not resolved: an environment finds its packages by its link
        tvm_python = tvm_python.absolute()
    return SearchPlan(
        FOLDER / "search",
        Entries(arguments.results, order),
        budgets,
        lambda line: say.print(line, markup=False, highlight=False, soft_wrap=True),
        tvm_python,
    )


def run(plan: SearchPlan, arguments: argparse.Namespace) -> int:
    """Measure the cases that are missing. Returns how many failed or could not be measured."""
    failed = 0
    pending = list(_pending_cases(plan, arguments))
    for part, name, threads in announce(
        pending,
        lambda pending_case: f"{case_name(*pending_case[:2])}, threads: {pending_case[2]}",
        plan.say,
        arguments.within,
    ):
        start_s = time.monotonic()
        try:
            entry = _entry(plan, part, name, threads)
        except (MissingEntry, NoEnvironment) as lack:  # not the case's failure: its old entry stays
            failed += 1
            plan.say(f"  not measured: {lack}")
            continue
        plan.entries.put(case_name(part, name), threads, entry | settings(plan, part))
        failed += "error" in entry
        plan.say(f"  {_line(entry)}, {time.monotonic() - start_s:.0f} s")
    return failed


def _pending_cases(plan: SearchPlan, arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for part, search_part in PARTS.items():
        if arguments.part not in (ALL, part):
            continue
        part_settings = settings(plan, part)
        for name in search_part.names:
            if name not in arguments.names:
                continue
            for threads in [search_part.only(arguments.threads)] if search_part.only else sorted(arguments.threads):
                if arguments.again or not plan.entries.has(case_name(part, name), threads, part_settings):
                    yield part, name, threads


def settings(plan: SearchPlan, part: str) -> dict[str, Any]:
    """The settings that an entry of a part depends on."""
    search_part = PARTS[part]
    values: dict[str, Any] = {"budget": {name: getattr(plan.budgets, name) for name in search_part.budgets}}
    if search_part.is_rival or search_part.times_rival:
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in RIVAL_CODE)).hexdigest()
        values |= {"packages": list(PACKAGES), "rival_sha256": digest}
    return values | (plan.hardware if search_part.is_rival else plan.settings)


def _entry(plan: SearchPlan, part: str, name: str, threads: int) -> Entry:
    """A measurement, or a failure. Raises MissingEntry and NoEnvironment."""
    entry = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        return entry | PARTS[part].measure(plan, name, threads)
    except (NoKernel, ServedProcessError, RequestTimeout) as error:  # the other cases go on
        return entry | {"error": str(error).strip()}


def _line(entry: Mapping[str, Any]) -> str:
    if "error" in entry:
        return f"failed: {entry['error'].splitlines()[-1]}"
    return ", ".join(_figures(entry)) or "measured"


def _figures(entry: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The most important numbers of an entry."""
    for name, value in entry.items():
        match value:
            case {"best_ms": float(), "trials_a_second": float()}:
                yield f"{name}: {value['best_ms']:.4g} ms, {value['trials_a_second']:.1f} trials a second"
            case dict() if name in ("ratios", "times_ms", "same_task", "near"):
                yield from _figures(value, f"{name} ")
            case float() if name not in ("default_ms",):
                yield f"{prefix}{name} {value:.4g}"


def conclude(entries: Entries, results: Path, counts: Sequence[int]) -> None:
    """Write, draw and print the goals."""
    base_model = base("cpu")
    counts = [threads for threads in counts if any(True for _ in entries.of(threads))]
    goals_by_threads = {
        threads: goals(entries, threads, base_model.card["quality"] if base_model else None) for threads in counts
    }
    measured_texts = {goal.text for shown_goals in goals_by_threads.values() for goal in shown_goals if goal.cases}
    goals_by_heading = {  # a goal measured on one number of threads is not missing on the others
        f"threads: {threads}": [goal for goal in shown_goals if goal.cases or goal.text not in measured_texts]
        for threads, shown_goals in goals_by_threads.items()
    }
    for threads in counts:
        draw_curves(results.with_name(f"{results.stem}_{threads}.svg"), _curves(entries, threads))
    if not goals_by_heading:
        print("nothing is measured yet")
        return
    entries.write(
        {heading: [goal.to_json() for goal in shown_goals] for heading, shown_goals in goals_by_heading.items()}
    )
    for heading, shown_goals in goals_by_heading.items():
        print(f"\n{heading}")
        for line in lines(shown_goals):
            print(f"  {line}")
    print(f"\n{results}, and a plot for each number of threads")


def _curves(entries: Entries, threads: int) -> dict[str, dict[str, SearchCurve]]:
    own_entries, rival_entries = part_entries(entries, "ours", threads), part_entries(entries, "metaschedule", threads)
    curves: dict[str, dict[str, SearchCurve]] = {}
    for name in WORKLOADS:
        curve_data = {"tunewright": own_entries[name]["seconds"]["curve"]} if name in own_entries else {}
        curve_data |= {"tvm": rival_entries[name]["curve"]} if name in rival_entries else {}
        curves[name] = {label: SearchCurve.from_json(data) for label, data in curve_data.items()}
    return curves


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

"""A campaign: tune each case into one database, or none, time it beside its peers, and keep the results.

A case is a model and a number of threads. Its peers are timed in a process of its own, in turn with ours, so that no
runtime meets what another case left behind, and one that crashes is left out of one case. What was measured on this
machine with this code and these settings is not measured again; after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.bench.entries import Entries, Entry, announce, base_model_sha256, code_sha256
from tunewright.bench.files import FOLDER, RESULTS, ROOT, model_file, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.codegen.host import detect, machine
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Status
from tunewright.tuner.cli import tune
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers.runtimes import PEERS, is_installed
from tunewright.tuner.text import duration
from tunewright.workers.sandbox.process import Child, ChildError, RequestFailed

TABLE_LETTERS = 112

MEASURE_S = 300.0
"""Time limit of opening all runtimes with a model and timing them. torch.compile needs the most of it."""

UNTUNED = "tvm"
"""The peer that is measured only if named: without its own search of hours, a large model takes seconds."""

Extra = Callable[[str, Path, int, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Further measurements of a case, by name, model, number of threads, report of its tuning, and times."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The cases to measure and the budget of each. `name` is that of the database and the results."""

    name: str
    folder: Path  # of the results
    cases: Mapping[str, Callable[[], bytes]]
    names: Sequence[str]
    threads: Sequence[int]
    peers: Sequence[str]
    trials: int  # 0: nothing is tuned
    minutes: float
    again: bool
    within_minutes: float = inf  # no case starts after that
    thorough: bool = False  # time default schedules and measure memory too

    @property
    def database(self) -> str:
        return f"sqlite:///{FOLDER / f'{self.name}.db'}"

    @property
    def results(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def counts(self) -> list[int]:
        """Numbers of threads to report on; one thread is always among them, for results of earlier runs."""
        return sorted({1, *self.threads})

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that an entry depends on."""
        budget = {"trials": self.trials, "minutes": self.minutes}
        product = {"code_sha256": code_sha256(), "base_model_sha256": base_model_sha256()}
        return {"against": list(self.peers), "budget": budget, "machine": machine()} | product


def parse(
    name: str,
    cases: Mapping[str, Callable[[], bytes]],
    subject: str,
    *,
    trials: int,
    minutes: float,
    within_minutes: float,
    thorough: bool = False,
    folder: Path = RESULTS,
) -> Campaign:
    """The campaign that the command line asks for. Numbers are the defaults of its options; 0 trials: it has none."""
    most = detect().threads
    tunes = f"Tunes {subject}, and times it" if trials else f"Times {subject}, untuned,"
    parser = argparse.ArgumentParser(
        prog=f"./dev bench {name}",
        description=f"{tunes} beside its peers. Results: {folder.relative_to(ROOT)}/{name}.json and .svg.",
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    if trials:
        _add_budget(parser, trials, minutes)
    else:
        parser.set_defaults(trials=0, minutes=0.0)
    parser.add_argument(
        "--within",
        type=float,
        default=within_minutes,
        metavar="MINUTES",
        help="begin nothing after that long: the same command goes on (%(default)s)",
    )
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, most}), help="(%(default)s)")
    parser.add_argument("--against", nargs="*", choices=PEERS, help="peers; default: all installed but tvm")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    arguments = parser.parse_args()
    names = select_names(parser, cases, arguments.names)
    peers = (
        [peer for peer in PEERS if is_installed(peer) and peer != UNTUNED]
        if arguments.against is None
        else arguments.against
    )
    return Campaign(
        name,
        folder,
        cases,
        names,
        arguments.threads,
        peers,
        arguments.trials,
        arguments.minutes,
        arguments.again,
        arguments.within,
        thorough,
    )


def _add_budget(parser: argparse.ArgumentParser, trials: int, minutes: float) -> None:
    each = "most trials to tune each with, 1 at least (%(default)s)"
    parser.add_argument("--trials", type=_number_of_trials, default=trials, metavar="TRIALS", help=each)
    parser.add_argument("--minutes", type=float, default=minutes, help="most minutes to tune each for (%(default)s)")


def _number_of_trials(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1; see ./dev bench untuned")
    return number


def open_entries(campaign: Campaign) -> Entries:
    """The entries that are measured already."""
    return Entries(campaign.results, list(campaign.cases))


def panels(campaign: Campaign, entries: Entries) -> dict[str, list[tuple[str, Entry]]]:
    """The measurements by heading, one for each number of threads that has any."""
    return {f"threads: {count}": rows for count in campaign.counts if (rows := list(entries.of(count)))}


def wide_console() -> Console:
    """Standard output, wide enough for tables of many columns."""
    console = Console()
    return Console(width=max(console.width, TABLE_LETTERS))


def run(campaign: Campaign, entries: Entries, console: Console, extra: Extra | None = None) -> int:
    """Measure the cases that are missing. Returns how many failed."""
    stay_in_folder()
    failed = 0
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    pending = list(_pending_cases(campaign, entries))
    for case, threads in announce(pending, lambda pair: f"{pair[0]}, threads: {pair[1]}", say, campaign.within_minutes):
        entry = _entry(campaign, console, case, threads, extra)
        entries.put(case, threads, entry | campaign.settings)
        failed += "error" in entry
        say(f"  {_line(entry)}")
    return failed


def _pending_cases(campaign: Campaign, entries: Entries) -> Iterator[tuple[str, int]]:
    """Cases on the most threads come first: their records are a start for those on fewer."""
    settings = campaign.settings
    for case in campaign.names:
        for threads in sorted(campaign.threads, reverse=True):
            if campaign.again or not entries.has(case, threads, settings):
                yield case, threads


def _entry(campaign: Campaign, console: Console, case: str, threads: int, extra: Extra | None) -> Entry:
    path = model_file(FOLDER / campaign.name, case, campaign.cases[case])
    entry = {"case": case, "threads": threads, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        report: Mapping[str, Any] = {}
        if campaign.trials:
            report = tune.tune_model(
                console, path, db=campaign.database, trials=campaign.trials, minutes=campaign.minutes, threads=threads
            )
            entry["tuning"] = _tuning_entry(report)
        else:
            open_store(campaign.database).close()  # knows nothing
        times = _time_beside_peers(campaign, path, threads)
        entry |= times
        return entry | dict(extra(case, path, threads, report, times)) if extra else entry
    except (ChildError, RequestFailed, Refused) as error:  # the other cases go on
        return entry | {"error": str(error).strip()}


def _time_beside_peers(campaign: Campaign, path: Path, threads: int) -> Entry:
    """Times of the tuned model and its peers. One whose process dies of a model is left out, and named."""
    try:
        return _time_beside(campaign, path, threads, campaign.peers)
    except RequestFailed as failure:
        for peer in campaign.peers if failure.status is Status.CRASH else ():
            with suppress(RequestFailed):
                others = [other for other in campaign.peers if other != peer]
                return _time_beside(campaign, path, threads, others) | {"died": [peer]}
        raise


def _time_beside(campaign: Campaign, path: Path, threads: int, peers: Sequence[str]) -> Entry:
    arguments: dict[str, Any] = {"model": str(path), "against": list(peers), "db": campaign.database}
    arguments |= {"threads": threads, "thorough": campaign.thorough}
    with closing(Child(calls="tunewright.bench.campaign_child")) as child:
        return dict(child.request("time_beside_peers", MEASURE_S, **arguments))


def _tuning_entry(report: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a tuning report that is kept; the database has the rest."""
    fields = ("key", "op", "occurrences", "chosen", "default_ms", "best_ms", "fraction_of_peak", "schedule")
    tasks = [{name: task[name] for name in fields if name in task} for task in report["tasks"]]
    numbers = {name: report[name] for name in ("trials", "seconds", "peak_gflops", "failed")}
    return numbers | {"tasks": tasks}


def _line(entry: Mapping[str, Any]) -> str:
    """An entry as a line of text, the fastest runtime first."""
    if "error" in entry:
        return f"failed: {entry['error'].splitlines()[-1]}"
    times = {"tunewright": entry["tunewright_ms"], **entry["peers"]}
    listing = ", ".join(f"{name} {duration(ms, 4)}" for name, ms in sorted(times.items(), key=lambda item: item[1]))
    fault = entry["mismatch"] or f"error {entry['max_rel_err']:.1e}"
    died = f"; {', '.join(entry['died'])} died of it" if "died" in entry else ""
    return f"{listing}; {fault}{died}"

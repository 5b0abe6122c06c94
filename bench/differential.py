"""Random models in ours, ONNX Runtime and ONNX's evaluator: `./dev bench differential [--minutes M | --seed S]`.

A model follows from its seed alone, so a finding is told by its seed, and `--seed S` shows it once more, made smaller.
Seeds that showed something in earlier runs are kept in bench/results/differential_seeds.json, and tried first. What is
compared with what, and what counts as a difference, is told in docs/bench.md. Exits with 1 if there is any finding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain, count, islice
from pathlib import Path

from tunewright.bench.files import RESULTS, stay_in_folder, write_whole
from tunewright.bench.fuzzing.crew import Result, work
from tunewright.bench.fuzzing.report import Report, keep, keep_seeds, kept_seeds
from tunewright.codegen.host import available_cores, machine
from tunewright.tuner import cli

SEEDS = RESULTS / "differential_seeds.json"

QUIET_S = 30.0
"""How often progress is told where it can't be written over."""


def main() -> int:
    """Print what was found. Returns the exit code."""
    given = _parsed()
    stay_in_folder()
    report, stop = Report(), threading.Event()
    earlier = kept_seeds(given.seeds)
    seeds = iter([given.seed]) if given.seed is not None else _seeds(given, list(earlier))
    began_s = time.monotonic()
    try:
        _run(seeds, given, report, stop)
    finally:  # an interrupt leaves what is found so far
        report.seconds = time.monotonic() - began_s
        print(*report.lines(), sep="\n")
        _leave(given, report)
    return int(bool(report.groups))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench differential",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="(%(default)s)")
    parser.add_argument("--models", type=int, help="end after so many models, beside those of earlier runs")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, metavar="SEED", help="seeds from this one on; default: from a random one")
    parser.add_argument("--workers", type=int, default=len(available_cores()), help="processes (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the smallest cases go; default: a fresh folder")
    parser.add_argument(
        "--seeds",
        type=Path,
        default=SEEDS,
        metavar="FILE",
        help="of earlier runs (bench/results/differential_seeds.json)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS / "differential.json",
        metavar="FILE",
        help="(bench/results/differential.json)",
    )
    given = parser.parse_args()
    if given.first is None:
        given.first = random.SystemRandom().randrange(10**9)
    return given


def _seeds(given: argparse.Namespace, earlier: list[int]) -> Iterator[int]:
    fresh = count(given.first)
    return chain(earlier, fresh if given.models is None else islice(fresh, given.models))


def _run(seeds: Iterator[int], given: argparse.Namespace, report: Report, stop: threading.Event) -> None:
    say = cli.messages()
    began_s = told_s = time.monotonic()
    say.print(f"seeds from {given.first} on, in {given.workers} processes")
    with say.status("") as status:

        def hear(result: Result) -> None:
            nonlocal told_s
            report.hear(result)
            finding = result.judged.verdict.finding
            if given.seed is None and finding is not None:
                say.print(f"seed {result.seed}: {finding.kind}: {finding.detail}", soft_wrap=True)
            now_s = time.monotonic()
            if given.seed is None and now_s - began_s > 60 * given.minutes:
                stop.set()
            rate = report.models / (now_s - began_s)
            line = f"{report.models:,} models, {rate:.1f} a second, {report.findings:,} with a finding"
            if say.is_terminal:
                status.update(line)
            elif now_s - told_s > QUIET_S:
                told_s = now_s
                say.print(line)

        work(seeds, given.workers, hear, report.wants_smaller, stop)


def _leave(given: argparse.Namespace, report: Report) -> None:
    """Keep what was found: counts, unless it was of one seed alone, and the smallest case of each group."""
    if given.seed is None:
        data = {"machine": machine(), "versions": {name: version(name) for name in ("onnx", "onnxruntime", "numpy")}}
        write_whole(given.results, f"{json.dumps(data | report.to_json(), indent=1)}\n".encode())
    if not report.groups:
        return
    folder = given.keep or Path(tempfile.mkdtemp(prefix="tunewright-differential-"))
    keep(report, folder)
    if given.seed is None:
        keep_seeds(given.seeds, report)
    print(f"the smallest case of each group: {os.fspath(folder)}")


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

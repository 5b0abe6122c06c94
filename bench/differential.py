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
from tunewright.bench.fuzzing.generator import ROUNDED_SEEDS
from tunewright.bench.fuzzing.report import FuzzReport, add_seeds, read_seeds, write_cases
from tunewright.bench.fuzzing.worker_pool import SeedResult, judge_seeds
from tunewright.codegen.host import available_cores, machine
from tunewright.tuner import cli

SEEDS = RESULTS / "differential_seeds.json"

QUIET_S = 30.0
"""Seconds between two lines of progress, where the output is no terminal."""


ROUNDED_SHARE = 8
"""Of so many models one has products that a precision rounds."""


def main() -> int:
    """Print the findings. Returns the exit code."""
    arguments = _parse_arguments()
    stay_in_folder()
    report, stop = FuzzReport(), threading.Event()
    earlier = read_seeds(arguments.seeds)
    seeds = iter([arguments.seed])
    if arguments.seed is None:
        seeds = chain(earlier, islice(fresh_seeds(arguments.first), arguments.models))
    start_s = time.monotonic()
    try:
        _run(seeds, arguments, report, stop)
    finally:  # also after an interrupt
        report.seconds = time.monotonic() - start_s
        print(*report.lines(), sep="\n")
        _write_findings(arguments, report)
    return int(bool(report.groups))


def fresh_seeds(first: int) -> Iterator[int]:
    """Seeds from one on, and among them some of models that have products to round."""
    return (n if n % ROUNDED_SHARE else max(n, n % ROUNDED_SEEDS + ROUNDED_SEEDS) for n in count(first))


def _parse_arguments() -> argparse.Namespace:
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
    arguments = parser.parse_args()
    if arguments.first is None:
        arguments.first = random.SystemRandom().randrange(10**9)
    return arguments


def _run(seeds: Iterator[int], arguments: argparse.Namespace, report: FuzzReport, stop: threading.Event) -> None:
    say = cli.messages()
    start_s = printed_s = time.monotonic()
    say.print(f"seeds from {arguments.first} on, in {arguments.workers} processes")
    with say.status("") as status:

        def hear(result: SeedResult) -> None:
            nonlocal printed_s
            report.hear(result)
            finding = result.judgement.verdict.finding
            if arguments.seed is None and finding is not None:
                say.print(f"seed {result.seed}: {finding.kind}: {finding.detail}", soft_wrap=True)
            now_s = time.monotonic()
            if arguments.seed is None and now_s - start_s > 60 * arguments.minutes:
                stop.set()
            rate = report.models / (now_s - start_s)
            line = f"{report.models:,} models, {rate:.1f} a second, {report.findings:,} with a finding"
            if say.is_terminal:
                status.update(line)
            elif now_s - printed_s > QUIET_S:
                printed_s = now_s
                say.print(line)

        judge_seeds(seeds, arguments.workers, hear, report.wants_smaller, stop)


def _write_findings(arguments: argparse.Namespace, report: FuzzReport) -> None:
    """Write the smallest case of each group and, unless the run was of one seed, the counts."""
    if arguments.seed is None:
        data = {"machine": machine(), "versions": {name: version(name) for name in ("onnx", "onnxruntime", "numpy")}}
        write_whole(arguments.results, f"{json.dumps(data | report.to_json(), indent=1)}\n".encode())
    if not report.groups:
        return
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tunewright-differential-"))
    write_cases(report, folder)
    if arguments.seed is None:
        add_seeds(arguments.seeds, report)
    print(f"the smallest case of each group: {os.fspath(folder)}")


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

"""LLVM's full pipeline beside ours, on the same schedules: `./dev bench pipeline [NAME ...] [--again]`.

Of each operator some schedules are sampled. Each is built as trials are, with other efforts of machine code generation,
and with all that LLVM's O3 does, and the results are timed in turn with warm caches. It matters little how fast each
is, and much that the fastest with ours is the fastest with the full one: that is what a search would choose.
Results: bench/results/pipeline.json, complete after each operator; what was measured with this code and on this machine
isn't measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import RESULTS, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite.operators import OPERATORS
from tunewright.bench.turns import sample_in_turn
from tunewright.codegen.artifact import Artifact
from tunewright.codegen.host import detect, machine
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.llvm.build import PIPELINE, Pipeline, build
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target
from tunewright.costmodel.metrics import rank_correlation
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, spaces
from tunewright.tuner import cli
from tunewright.tuner.models.model import open_model
from tunewright.tuner.settings import settings
from tunewright.workers.lock import HostLock
from tunewright.workers.measure import sampling
from tunewright.workers.measure.check import CpuKernel, Example

CASES = (
    "gemm 384x512x512", "dense 128x768x768", "matrix-vector 2048x1000", "batched matmul 12x128x128x64",
    "conv 3x3 64-64 at 56x56", "conv 3x3 256-256 at 14x14", "conv 1x1 256-64 at 56x56", "depthwise 3x3 144 at 56x56",
    "softmax 512x1024", "layer norm 128x768", "max pool 3x3 stride 2 64 at 112x112", "gelu 128x3072",
)  # fmt: skip
"""Names of `OPERATORS`."""

SCHEDULES, ROUNDS = 24, 7

NEAR = 1.01
"""The ratio to the fastest time that no search would distinguish."""

FULL = "full"
PIPELINES = {"level 1": Pipeline(1), "level 2": Pipeline(2), "level 3": Pipeline(3), FULL: Pipeline(3, is_full=True)}
OURS = next(name for name, pipeline in PIPELINES.items() if pipeline == PIPELINE)


def main() -> int:
    """Measure the selected operators that are missing, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench pipeline", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    arguments = parser.parse_args()
    cases = select_names(parser, CASES, arguments.names)
    stay_in_folder()
    entries = Entries(RESULTS / "pipeline.json", CASES)
    settings = {"machine": machine(), "code_sha256": code_sha256()}
    target = detect(1)
    for case in cases:
        if arguments.again or not entries.has(case, 1, settings):
            entry = compare_pipelines(case, target)
            entries.put(case, 1, entry | settings)
            print(case, json.dumps(entry["pipelines"]), flush=True)
    figures = summary([entry for _, entry in entries.of(1)])
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def compare_pipelines(case: str, target: Target) -> Entry:
    """Build times and run times of an operator's schedules with each pipeline."""
    [(task, _)] = open_model(OPERATORS[case].build()).tasks.values()
    kernels = sample_kernels(task, target)
    built: dict[str, list[Artifact]] = {}
    build_ms: dict[str, float] = {}
    for name, pipeline in PIPELINES.items():
        started = time.perf_counter()
        built[name] = [build(kernel, target, pipeline=pipeline) for kernel in kernels]
        build_ms[name] = (time.perf_counter() - started) / len(kernels) * 1e3
    with HostLock(settings().objects).exclusive(), ThreadPool(1) as pool:
        example = Example(task)
        rows = [time_kernels(example, {name: built[name][n] for name in PIPELINES}, pool) for n in range(len(kernels))]
    times_us = {name: [1e6 * row[name] for row in rows] for name in PIPELINES}
    return {
        "target": str(target),
        "pipelines": {name: compare_with_full(times_us[FULL], times_us[name], build_ms[name]) for name in PIPELINES},
        "times_us": {name: [round(x, 3) for x in times] for name, times in times_us.items()},
    }


def sample_kernels(task: Task, target: Target) -> list[Kernel]:
    """Kernels of random schedules, about equally many of each space."""
    rng = np.random.default_rng(0)
    task_spaces = spaces(task, target)
    count = -(-SCHEDULES // len(task_spaces))
    schedules = [space.schedule(row) for space in task_spaces for row in space.sample(count, rng)]
    return [lower(Candidate(task, target, schedule)) for schedule in schedules[:SCHEDULES]]


def time_kernels(example: Example, artifacts: Mapping[str, Artifact], pool: ThreadPool) -> dict[str, float]:
    """Median seconds of each artifact, sampled in turn. Raises RuntimeError if one computes a wrong result."""
    with ExitStack() as stack:
        samples = {}
        for name, artifact in artifacts.items():
            loaded = stack.enter_context(CpuKernel(example, artifact, pool))
            fault, _ = loaded.check()
            if fault:
                raise RuntimeError(fault)
            samples[name] = partial(_sample, loaded, sampling.repeats(loaded.warm, loaded.once_s))
        return {name: median(samples_s) for name, samples_s in sample_in_turn(samples, ROUNDS).items()}


def _sample(loaded: CpuKernel, repeats: int) -> float:
    [time_s] = loaded.warm.time(1, repeats)
    return time_s


def compare_with_full(full: Sequence[float], ours: Sequence[float], build_ms: float) -> dict[str, Any]:
    """A pipeline beside the full one: speeds in units of the latter's, and the schedule that a search would choose."""
    speeds = [full_us / own_us for full_us, own_us in zip(full, ours, strict=True)]
    choice = min(range(len(ours)), key=ours.__getitem__)
    return {
        "build_ms": round(build_ms, 2),
        "speed_mean": round(geometric_mean(speeds), 4),
        "speed_least": round(min(speeds), 4),
        "speed_of_best": round(min(full) / min(ours), 4),
        "rank_correlation": round(rank_correlation(-np.array(full), np.array(ours)), 4),
        "choice_beside_best": round(full[choice] / min(full), 4),
        "is_same_choice": full[choice] <= NEAR * min(full),
    }


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of each pipeline over all operators; `ours` names the one that trials are built with."""
    rows = {name: [entry["pipelines"][name] for entry in entries] for name in PIPELINES}
    return {
        "ours": OURS,
        **{name: _pipeline_summary(pipeline_rows) for name, pipeline_rows in rows.items() if pipeline_rows},
    }


def _pipeline_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "operators": len(rows),
        "build_ms": round(geometric_mean([row["build_ms"] for row in rows]), 2),
        "speed_mean": round(geometric_mean([row["speed_mean"] for row in rows]), 4),
        "speed_least": min(row["speed_least"] for row in rows),
        "speed_of_best_mean": round(geometric_mean([row["speed_of_best"] for row in rows]), 4),
        "rank_correlation_median": median(row["rank_correlation"] for row in rows),
        "same_choice": sum(row["is_same_choice"] for row in rows),
        "choice_beside_best_worst": max(row["choice_beside_best"] for row in rows),
    }


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

"""Kernels for GPUs: `./dev bench gpu [PART] [NAME ...] [--again] [--trials N] [--within SECONDS]`.

  builds     kernels built on a machine that need not have a GPU                         a minute a case
  faults     on a GPU: a search with kernels planted in it that hang, crash and are wrong  a minute
  rates      on a GPU: candidates a second, ours and those of other tuners                minutes a case
  kernels    on a GPU: products, attention, rows, searched, beside NVIDIA's libraries      seconds a case
  compilers  the same beside what torch.compile and Triton tune for them                   minutes a case
  models     on a GPU: resnet50 and BERT in float16, each task searched, beside PyTorch    minutes a case

Without a part it is all that this machine can do. For `builds` the default schedule and 50 random ones of one sketch
are lowered, verified and compiled by NVRTC, for several architectures, one after the other on one core: how many a
second is what a search can build, and registers written out to memory are what a schedule must not need. The other
parts take CuPy, all but `faults` PyTorch too, but neither a database nor XGBoost. Results:
bench/results/gpu.json, complete after each case; what was measured with this code, on this machine, isn't measured
again. A case that fails has an `error` there, and the others go on. Exit code 1 where a bound is missed or a case
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, NoReturn

from tunewright.bench.entries import SHAPING, Entries, Entry, base_model_sha256, code_sha256, geometric
from tunewright.bench.files import FOLDER, RESULTS, stay_in_folder
from tunewright.bench.gpus import faults, kernels, models, rates, torch_peers
from tunewright.bench.gpus.builds import MOST_SPILLED_BYTES, measure_builds
from tunewright.bench.gpus.search import NoWorkingSchedule
from tunewright.bench.gpus.workloads import BUILD_WORKLOADS, KERNEL_WORKLOADS
from tunewright.bench.selection import ALL, select_in_part
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.driver import DeviceFault, Driver, Unloadable
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.llvm.build import BuildError, ObjectCache
from tunewright.codegen.target import CUDA, Target
from tunewright.tuner import cli
from tunewright.tuner.errors import Refused, message
from tunewright.tuner.peers.runtimes import PeerFailed
from tunewright.tuner.peers.torch_cuda import torch_versions
from tunewright.tuner.targets import local_target
from tunewright.workers.local import LocalPool
from tunewright.workers.pool import PoolError, ReferenceFailed

OBJECTS = FOLDER / "gpu" / "objects"
"""The folder of built kernels."""

BUILDING = ("codegen", "graph", "search_space")
"""Folders whose code decides what is built."""

LEAST_TRIALS = 16


class PeerComparison(NamedTuple):
    """Cases, by prefixes of their names, beside peers, of which the fastest counts."""

    cases: tuple[str, ...]
    peers: tuple[str, ...]
    least_mean: float  # of the geometric mean of our speeds in units of the peers'
    least: float = 0.0


_CUBLAS = (torch_peers.CUBLASLT, "torch")

COMPARISONS: Mapping[str, PeerComparison] = {
    "narrow products to cuBLAS": PeerComparison(
        ("kernels: gemm float16", "kernels: gemm bfloat16"), _CUBLAS, least_mean=0.95, least=0.85
    ),
    "float32 products to cuBLAS": PeerComparison(("kernels: gemm float32",), _CUBLAS, least_mean=0.95),
    "products of bytes to cuBLAS": PeerComparison(("kernels: gemm int8",), _CUBLAS, least_mean=0.95),
    "attention to cuDNN and PyTorch": PeerComparison(("kernels: attention",), ("cudnn", "torch"), least_mean=0.9),
    "softmax and layer norm to a copy": PeerComparison(
        ("kernels: softmax", "kernels: layer norm"), ("copy",), least_mean=0.92
    ),
    "kernels to compilers": PeerComparison(("compilers: ",), tuple(torch_peers.COMPILE_OPTIONS), least_mean=0.95),
    "first picks to the best": PeerComparison(("kernels: ",), ("best of the search",), least_mean=0.9),
    "models to PyTorch": PeerComparison(("models: ",), ("torch eager",), least_mean=1.0),
    "models to torch.compile": PeerComparison(("models: ",), ("torch.compile",), least_mean=1.2),
}
"""Bounds of ours beside peers. A first pick's ratio is that of the best kernel's time to its own."""

CASES: Mapping[str, Sequence[str]] = {
    "builds": [f"{name} on {arch}" for name, workload in BUILD_WORKLOADS.items() for arch in workload.archs],
    "faults": [faults.NAME],
    "rates": list(rates.PRODUCTS),
    "kernels": list(KERNEL_WORKLOADS),
    "compilers": list(KERNEL_WORKLOADS),
    "models": list(models.MODELS),
}
"""Cases by part, in the order of measurement: the longest come last."""

FAILURES = (BuildError, NoWorkingSchedule, PeerFailed, PoolError, ReferenceFailed, Unloadable, MemoryError)
"""Errors that end one case and leave the others."""


@dataclass(frozen=True)
class GpuBench:
    """The target, driver, pool and caches of a run."""

    trials: int
    stack: ExitStack

    @cached_property
    def target(self) -> Target:
        return local_target(CUDA)

    @cached_property
    def driver(self) -> Driver:
        return Driver()

    @cached_property
    def pool(self) -> LocalPool:
        return self.stack.enter_context(LocalPool(self.target, OBJECTS))

    @cached_property
    def objects(self) -> ObjectCache:
        return ObjectCache(OBJECTS)

    def attempt(self, part: str, name: str) -> tuple[Entry, bool]:
        """An entry of a part, with an `error` if it fails, and whether this process can still use the device."""
        try:
            return self.measure(part, name), True
        except DeviceFault as fault:
            return {"error": message(fault)}, False
        except FAILURES as failure:
            return {"error": message(failure)}, True

    def measure(self, part: str, name: str) -> Entry:
        """An entry of a part. Raises DeviceFault, and what is in FAILURES."""
        match part:
            case "builds":
                workload, _, arch = name.rpartition(" on ")
                return measure_builds(workload, Target.of_gpu(KNOWN[arch]))
            case "kernels" | "compilers":
                compiles = part == "compilers"
                return kernels.measure_kernel(
                    name, self.target, self.pool, self.driver, self.objects, self.trials, compiles=compiles
                )
            case "rates":
                return rates.measure_rates(name, self.target, self.trials)
            case "models":
                return models.measure_model(name, self.target, self.pool, self.driver, self.objects, self.trials)
            case _:
                with LocalPool(self.target, OBJECTS, plugins=[faults.PLUGIN]) as pool:
                    return faults.measure_faults(self.target, pool, self.trials)

    def settings(self, part: str) -> dict[str, Any]:
        """The settings that an entry depends on."""
        timing = (*SHAPING, "bench/gpus")
        folders = {"builds": BUILDING, "rates": (*timing, "bench/rivals")}.get(part, timing)
        values: dict[str, Any] = {"machine": machine(), "nvrtc": nvrtc.version(), "code_sha256": code_sha256(folders)}
        if part == "builds":
            return values
        values |= {"gpu": self.driver.name, "trials": self.trials, "base_model": base_model_sha256(CUDA)}
        if part == "rates":
            values["tuners"] = rates.tuner_versions()
        return values if part == "faults" else values | {"peers": torch_versions()}


def main() -> int:
    """Measure the selected cases that are missing, then print the summary. 1 if a bound is missed or a case failed."""
    arguments = _parse_arguments()
    stay_in_folder()
    entries = Entries(RESULTS / "gpu.json", [_case_name(part, name) for part, names in CASES.items() for name in names])
    has_failed, deadline_s = bool(arguments.after), time.monotonic() + arguments.within
    with ExitStack() as stack:
        bench, is_sound, case = GpuBench(arguments.trials, stack), True, ""
        for part, name in _select_cases(arguments):
            case, settings = _case_name(part, name), bench.settings(part)
            if not arguments.again and entries.has(case, 1, settings):
                continue
            if time.monotonic() > deadline_s:
                print(f"the time is over before {case}: the same command goes on there", file=sys.stderr)
                break
            entry, is_sound = bench.attempt(part, name)
            has_failed |= "error" in entry
            entries.put(case, 1, entry | settings)
            print(case, json.dumps(entry), flush=True)
            if not is_sound:
                break
    if not is_sound:
        _restart(case, deadline_s)
    summary, holds = summarise(dict(entries.of(1)))
    entries.write(summary)
    print(json.dumps(summary, indent=2))
    return int(has_failed or not holds)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench gpu", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("part", nargs="?", choices=[ALL, *CASES], default=ALL, metavar="PART")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    parser.add_argument("--trials", type=int, default=200, help="of each search (%(default)s)")
    parser.add_argument(
        "--within", type=float, default=inf, metavar="SECONDS", help="begin no further case after so many (no limit)"
    )
    parser.add_argument("--after", default="", metavar="CASE", help=argparse.SUPPRESS)  # see `_restart`
    arguments = parser.parse_args()
    if arguments.trials < LEAST_TRIALS:
        parser.error(f"--trials {arguments.trials}: at least {LEAST_TRIALS}")
    arguments.names = select_in_part(parser, CASES, arguments.part, arguments.names)
    return arguments


def _restart(case: str, deadline_s: float) -> NoReturn:
    """Replace this process, whose device failed at a case, by a fresh one that continues behind it."""
    sys.stdout.flush()
    left_s = max(deadline_s - time.monotonic(), 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--after", case, "--within", str(left_s)])


def _select_cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Parts and names, in order. Raises Refused where this machine can't do the part that is named."""
    cases = [(part, name) for part in _select_parts(arguments.part) for name in CASES[part] if name in arguments.names]
    begin = next((n for n, pair in enumerate(cases, 1) if _case_name(*pair) == arguments.after), 0)
    yield from cases[begin:]


def _select_parts(part_name: str) -> list[str]:
    """The part that is named; for ALL, those that this machine can do. Raises as `_select_cases`."""
    if part_name != ALL:
        _require_part(part_name)
        return [part_name]
    parts = []
    for part in CASES:
        try:
            _require_part(part)
            parts.append(part)
        except Refused as error:
            print(f"no {part}: {error}", file=sys.stderr)
    return parts


def _require_part(part: str) -> None:
    """Raises Refused where this machine can't measure a part."""
    if part != "builds":
        local_target(CUDA)
        if part != "faults":
            torch_peers.check()
        return
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        raise Refused(str(error)) from error


def _case_name(part: str, name: str) -> str:
    return name if part == "builds" else f"{part}: {name}"


def summarise(entries: Mapping[str, Entry]) -> tuple[dict[str, Any], bool]:
    """The summary of all entries, and whether all bounds hold that have a measurement."""
    builds = {case: entry for case, entry in entries.items() if "builds_a_second" in entry}
    summary: dict[str, Any] = {
        "builds_a_second": {case: round(entry["builds_a_second"], 2) for case, entry in builds.items()},
        "most_spilled_bytes": max((entry["spilled_bytes"] for entry in builds.values()), default=0),
        "candidates_a_second": {
            case.removeprefix("rates: "): {
                tuner: round(rate, 2) for tuner, rate in entry["candidates_a_second"].items()
            }
            for case, entry in entries.items()
            if case.startswith("rates: ")
        },
    }
    ratios = {name: _ratios(entries, comparison) for name, comparison in COMPARISONS.items()}
    means = {name: geometric(case_ratios) for name, case_ratios in ratios.items()}
    summary["ratios"] = {name: round(mean, 3) for name, mean in means.items() if mean is not None}
    summary["least_ratios"] = {name: round(min(case_ratios), 3) for name, case_ratios in ratios.items() if case_ratios}
    faulty = [entry for case, entry in entries.items() if case.startswith("faults: ")]
    holds = summary["most_spilled_bytes"] <= MOST_SPILLED_BYTES and all(entry["holds"] for entry in faulty)
    holds &= all(mean >= COMPARISONS[name].least_mean for name, mean in summary["ratios"].items())
    return summary, holds and all(ratio >= COMPARISONS[name].least for name, ratio in summary["least_ratios"].items())


def _ratios(entries: Mapping[str, Entry], comparison: PeerComparison) -> list[float]:
    """Our speed in units of the fastest peer's, for each case that some peer has run."""
    case_ratios = (entry["ratios"] for case, entry in entries.items() if case.startswith(comparison.cases))
    peer_ratios = ([ratios[peer] for peer in comparison.peers if peer in ratios] for ratios in case_ratios)
    return [min(ratios_of_case) for ratios_of_case in peer_ratios if ratios_of_case]


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

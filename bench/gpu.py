"""Kernels for GPUs: `./dev bench gpu [builds|kernels|models|faults] [NAME ...] [--again] [--trials N]`.

  builds   kernels built on a machine that need not have a GPU                             a minute a case
  kernels  on a GPU: products, attention, rows, searched and timed beside PyTorch's          minutes a case
  models   on a GPU: resnet50 and BERT in float16, each task searched, timed beside PyTorch    long
  faults   on a GPU: a search with kernels planted in it that hang, crash and are wrong

Without a part it is all that this machine can do. For `builds` the default schedule and 50 random ones of one sketch
are lowered, verified and compiled by NVRTC, for several architectures, one after the other on one core: how many a
second is what a search can build, and registers written out to memory are what a schedule must not need. The other
parts take CuPy and PyTorch, but neither a database nor XGBoost. Results: bench/results/gpu.json, complete after each
case; what was measured with this code, on this machine, isn't measured again. Exit code 1 where a bound is missed or a
case failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunewright.bench.entries import SHAPING, Entries, Entry, code_sha256, geometric
from tunewright.bench.files import FOLDER, RESULTS, stay_in_folder
from tunewright.bench.gpus import faults, kernels, models, torch_peers
from tunewright.bench.gpus.builds import MOST_SPILLED_BYTES, built
from tunewright.bench.gpus.workloads import BUILT, TIMED
from tunewright.codegen.build import ObjectCache
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.device import NoDevice, devices
from tunewright.codegen.cuda.driver import CupyDriver
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.tuner import cli
from tunewright.workers.local import LocalPool

OBJECTS = FOLDER / "gpu" / "objects"
"""Where kernels are kept that were built."""

BUILDING = ("codegen", "graph", "search_space")
"""The folders whose code decides what is built."""

LEAST_TRIALS = 16

LEAST_RATIO = 0.9
"""Of the speed of cuBLAS and of a copy, in the geometric mean."""

CASES: Mapping[str, Sequence[str]] = {
    "builds": [f"{name} on {arch}" for name, one in BUILT.items() for arch in one.archs],
    "kernels": list(TIMED),
    "models": list(models.MODELS),
    "faults": [faults.NAME],
}


@dataclass(frozen=True)
class Bench:
    """What is measured with."""

    trials: int
    stack: ExitStack

    @cached_property
    def target(self) -> Target:
        return Target.of_gpu(devices()[0].gpu)

    @cached_property
    def driver(self) -> CupyDriver:
        return CupyDriver()

    @cached_property
    def pool(self) -> LocalPool:
        return self.stack.enter_context(LocalPool(self.target, OBJECTS))

    @cached_property
    def objects(self) -> ObjectCache:
        return ObjectCache(OBJECTS)

    def measured(self, part: str, name: str) -> Entry:
        """An entry of a part."""
        match part:
            case "builds":
                workload, _, arch = name.rpartition(" on ")
                return built(workload, Target.of_gpu(KNOWN[arch]))
            case "kernels":
                return kernels.timed(name, self.target, self.pool, self.driver, self.objects, self.trials)
            case "models":
                return models.timed(name, self.target, self.pool, self.driver, self.objects, self.trials)
            case _:
                with LocalPool(self.target, OBJECTS, plugins=[faults.PLUGIN]) as pool:
                    return faults.survived(self.target, pool, self.trials)

    def settings(self, part: str) -> dict[str, Any]:
        """What an entry depends on."""
        folders = BUILDING if part == "builds" else (*SHAPING, "bench/gpus")
        known = {"machine": machine(), "nvrtc": nvrtc.version(), "code_sha256": code_sha256(folders)}
        if part == "builds":
            return known
        return known | {"gpu": self.driver.name, "trials": self.trials, "peers": torch_peers.versions()}


def main() -> int:
    """Measure what is wanted and missing, then print the summary. 1 where a bound is missed or a case failed."""
    parser = argparse.ArgumentParser(
        prog="./dev bench gpu", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("part", nargs="?", choices=["all", *CASES], default="all", metavar="PART")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    parser.add_argument("--trials", type=int, default=200, help="of each search (%(default)s)")
    given = parser.parse_args()
    if given.trials < LEAST_TRIALS:
        parser.error(f"--trials {given.trials}: at least {LEAST_TRIALS}")
    stay_in_folder()
    order = [_case(part, name) for part, names in CASES.items() for name in names]
    entries = Entries(RESULTS / "gpu.json", order)
    failed = 0
    with ExitStack() as stack:
        bench = Bench(given.trials, stack)
        for part in _parts(given.part):
            wanted = bench.settings(part)
            for name in CASES[part]:
                if given.names and not any(text in name for text in given.names):
                    continue
                if given.again or not entries.has(_case(part, name), 1, wanted):
                    entry = bench.measured(part, name)
                    failed += "error" in entry
                    entries.put(_case(part, name), 1, entry | wanted)
                    print(_case(part, name), json.dumps(entry), flush=True)
    summary, holds = concluded(dict(entries.of(1)))
    entries.write(summary)
    print(json.dumps(summary, indent=2))
    return int(failed > 0 or not holds)


def _parts(wanted: str) -> Iterator[str]:
    """Those that are wanted; where it is all, those that this machine can do."""
    if wanted != "all":
        yield wanted
        return
    yield "builds"
    try:
        devices()
    except NoDevice as error:
        print(f"only builds: {error}", file=sys.stderr)
        return
    yield from ("faults", "kernels", "models")


def _case(part: str, name: str) -> str:
    return name if part == "builds" else f"{part}: {name}"


def concluded(found: Mapping[str, Entry]) -> tuple[dict[str, Any], bool]:
    """What there is to say of all entries together, and whether all bounds hold that something was measured for."""
    builds = {case: entry for case, entry in found.items() if "builds_a_second" in entry}
    summary: dict[str, Any] = {
        "builds_a_second": {case: round(entry["builds_a_second"], 2) for case, entry in builds.items()},
        "most_spilled_bytes": max((entry["spilled_bytes"] for entry in builds.values()), default=0),
    }
    ratios = {
        "narrow products to cuBLAS": _ratio(found, ("kernels: gemm float16", "kernels: gemm bfloat16"), "torch"),
        "float32 products to cuBLAS": _ratio(found, ("kernels: gemm float32",), "torch"),
        "attention to PyTorch's": _ratio(found, ("kernels: attention",), "torch"),
        "softmax and layer norm to a copy": _ratio(found, ("kernels: softmax", "kernels: layer norm"), "copy"),
        "models to PyTorch": _ratio(found, ("models: ",), "torch eager"),
        "models to torch.compile": _ratio(found, ("models: ",), "torch.compile"),
    }
    summary["ratios"] = {name: round(ratio, 3) for name, ratio in ratios.items() if ratio is not None}
    faulty = [entry for case, entry in found.items() if case.startswith("faults: ")]
    least = {name: 1.0 if name.startswith("models") else LEAST_RATIO for name in ratios}
    holds = summary["most_spilled_bytes"] <= MOST_SPILLED_BYTES and all(entry["holds"] for entry in faulty)
    return summary, holds and all(ratio >= least[name] for name, ratio in summary["ratios"].items())


def _ratio(found: Mapping[str, Entry], begins: tuple[str, ...], peer: str) -> float | None:
    """How many times as fast as a peer ours is, in the geometric mean of those cases."""
    return geometric([entry["ratios"][peer] for case, entry in found.items() if case.startswith(begins)])


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

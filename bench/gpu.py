"""Kernels for GPUs: `./dev bench gpu [builds|kernels|models|faults] [NAME ...] [--again] [--trials N]`.

  builds   kernels built on a machine that need not have a GPU                             a minute a case
  kernels  on a GPU: products, attention, rows, searched and timed beside PyTorch's          minutes a case
  models   on a GPU: resnet50 and BERT in float16, each task searched, timed beside PyTorch    long
  faults   on a GPU: a search with kernels planted in it that hang, crash and are wrong

Without a part it is all that this machine can do. For `builds` the default schedule and 50 random ones of one sketch
are lowered, verified and compiled by NVRTC, for several architectures, one after the other on one core: how many a
second is what a search can build, and registers written out to memory are what a schedule must not need. The other
parts take CuPy, `kernels` and `models` PyTorch too, but neither a database nor XGBoost. Results:
bench/results/gpu.json, complete after each case; what was measured with this code, on this machine, isn't measured
again. A case that fails has an `error` there, and the others go on. Exit code 1 where a bound is missed or a case
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from tunewright.bench.asked import ALL, asked_of_part
from tunewright.bench.entries import SHAPING, Entries, Entry, code_sha256, geometric
from tunewright.bench.files import FOLDER, RESULTS, stay_in_folder
from tunewright.bench.gpus import faults, kernels, models, torch_peers
from tunewright.bench.gpus.builds import MOST_SPILLED_BYTES, built
from tunewright.bench.gpus.searching import NoneWorks
from tunewright.bench.gpus.workloads import BUILT, TIMED
from tunewright.codegen.build import BuildError, ObjectCache
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.driver import CupyDriver, DeviceFault, Unloadable
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.target import CUDA, Target
from tunewright.tuner import cli
from tunewright.tuner.errors import Refused, message
from tunewright.tuner.peers import PeerFailed
from tunewright.tuner.targets import local_target
from tunewright.workers.local import LocalPool
from tunewright.workers.pool import PoolError, ReferenceFailed

OBJECTS = FOLDER / "gpu" / "objects"
"""Where kernels are kept that were built."""

BUILDING = ("codegen", "graph", "search_space")
"""The folders whose code decides what is built."""

LEAST_TRIALS = 16

LEAST_RATIO = 0.9
"""Of the speed of cuBLAS and of a copy, in the geometric mean."""

CASES: Mapping[str, Sequence[str]] = {
    "builds": [f"{name} on {arch}" for name, one in BUILT.items() for arch in one.archs],
    "faults": [faults.NAME],
    "kernels": list(TIMED),
    "models": list(models.MODELS),
}
"""By part, in the order in which all is measured: what takes the longest comes last."""

FAILURES = (BuildError, NoneWorks, PeerFailed, PoolError, ReferenceFailed, Unloadable, MemoryError)
"""What ends one case, while others may do."""


@dataclass(frozen=True)
class Bench:
    """What is measured with."""

    trials: int
    stack: ExitStack

    @cached_property
    def target(self) -> Target:
        return local_target(CUDA)

    @cached_property
    def driver(self) -> CupyDriver:
        return CupyDriver()

    @cached_property
    def pool(self) -> LocalPool:
        return self.stack.enter_context(LocalPool(self.target, OBJECTS))

    @cached_property
    def objects(self) -> ObjectCache:
        return ObjectCache(OBJECTS)

    def attempted(self, part: str, name: str) -> tuple[Entry, bool]:
        """An entry of a part, an `error` in it where it fails; and whether this process can use the device still."""
        try:
            return self.measured(part, name), True
        except DeviceFault as fault:
            return {"error": message(fault)}, False
        except FAILURES as failure:
            return {"error": message(failure)}, True

    def measured(self, part: str, name: str) -> Entry:
        """An entry of a part. Raises DeviceFault, and what is in FAILURES."""
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
        known: dict[str, Any] = {"machine": machine(), "nvrtc": nvrtc.version(), "code_sha256": code_sha256(folders)}
        if part == "builds":
            return known
        known |= {"gpu": self.driver.name, "trials": self.trials}
        return known if part == "faults" else known | {"peers": torch_peers.versions()}


def main() -> int:
    """Measure what is wanted and missing, then print the summary. 1 where a bound is missed or a case failed."""
    given = _given()
    stay_in_folder()
    entries = Entries(RESULTS / "gpu.json", [_case(part, name) for part, names in CASES.items() for name in names])
    has_failed = bool(given.after)
    with ExitStack() as stack:
        bench, is_sound, case = Bench(given.trials, stack), True, ""
        for part, name in _wanted(given):
            case, wanted = _case(part, name), bench.settings(part)
            if not given.again and entries.has(case, 1, wanted):
                continue
            entry, is_sound = bench.attempted(part, name)
            has_failed |= "error" in entry
            entries.put(case, 1, entry | wanted)
            print(case, json.dumps(entry), flush=True)
            if not is_sound:
                break
    if not is_sound:
        _go_on(case)
    summary, holds = concluded(dict(entries.of(1)))
    entries.write(summary)
    print(json.dumps(summary, indent=2))
    return int(has_failed or not holds)


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench gpu", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("part", nargs="?", choices=[ALL, *CASES], default=ALL, metavar="PART")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    parser.add_argument("--trials", type=int, default=200, help="of each search (%(default)s)")
    parser.add_argument("--after", default="", metavar="CASE", help=argparse.SUPPRESS)  # see `_go_on`
    given = parser.parse_args()
    if given.trials < LEAST_TRIALS:
        parser.error(f"--trials {given.trials}: at least {LEAST_TRIALS}")
    given.names = asked_of_part(parser, CASES, given.part, given.names)
    return given


def _go_on(case: str) -> NoReturn:
    """This command with the cases after one that broke the device for this process, in its place: a fresh one."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--after", case])


def _wanted(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Parts and names, in order. Raises Refused where this machine can't do a part that is asked for by name."""
    cases = [(part, name) for part in _parts(given.part) for name in CASES[part] if name in given.names]
    begin = next((n for n, one in enumerate(cases, 1) if _case(*one) == given.after), 0)
    yield from cases[begin:]


def _parts(wanted: str) -> list[str]:
    """Those that are wanted; where it is all, those that this machine can do. Raises as `_wanted`."""
    if wanted != ALL:
        _check(wanted)
        return [wanted]
    able = []
    for part in CASES:
        try:
            _check(part)
            able.append(part)
        except Refused as error:
            print(f"no {part}: {error}", file=sys.stderr)
    return able


def _check(part: str) -> None:
    """Raises Refused where this machine can't measure a part, before any of it has taken time."""
    if part != "builds":
        local_target(CUDA)
        if part != "faults":
            torch_peers.check()
        return
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        raise Refused(str(error)) from error


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
    """How many times as fast as a peer ours is, in the geometric mean of those cases that it has run."""
    ratios = [entry["ratios"].get(peer) for case, entry in found.items() if case.startswith(begins)]
    return geometric([ratio for ratio in ratios if ratio is not None])


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

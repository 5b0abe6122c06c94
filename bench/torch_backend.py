"""Models of PyTorch by its compilers and ours: `./dev bench torch_backend [NAME ...] [--minutes N] [--again]`.

Every model of `suite.pytorch` runs op by op, by `torch.compile` with PyTorch's own compiler, and with ours: in one
process, in turn, after outputs were compared. Without `--minutes` nothing is tuned. It needs the extra `torch`, timm
and transformers. Results: bench/results/torch_backend.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tunewright.bench.entries import SHAPING, Entries, Entry, code_sha256, geometric
from tunewright.bench.files import RESULTS, stay_in_folder
from tunewright.bench.selection import select_names
from tunewright.bench.suite.pytorch import MODELS
from tunewright.bench.turns import sample_in_turn, sampler, summary
from tunewright.codegen.host import machine
from tunewright.integrations.torch import graphs, tuning
from tunewright.integrations.torch.backend import backend
from tunewright.tuner import cli
from tunewright.tuner.peers.runtimes import FOREIGN_FAULTS, one_line

ROUNDS, SAMPLE_S = 21, 0.2
THREADS = 2
SEED = 0

Run = Callable[[], Any]


def main() -> int:
    """Measure the selected models that are missing, then print the summary."""
    parser = argparse.ArgumentParser(prog="./dev bench torch_backend", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"of all sides; default: {THREADS}")
    parser.add_argument("--minutes", type=float, default=0.0, help="of tuning, for each model; default: none")
    parser.add_argument("--again", action="store_true", help="measure anew what is measured")
    arguments = parser.parse_args()
    names = select_names(parser, MODELS, arguments.names)
    stay_in_folder()
    torch.set_num_threads(arguments.threads)
    entries = Entries(RESULTS / "torch_backend.json", tuple(MODELS))
    settings = {
        "machine": machine(),
        "code_sha256": code_sha256((*SHAPING, "integrations")),
        "torch": torch.__version__,
        "minutes": arguments.minutes,
    }
    for name in names:
        if arguments.again or not entries.has(name, arguments.threads, settings):
            entry = measure(name, arguments.minutes)
            entries.put(name, arguments.threads, entry | settings)
            print(name, json.dumps(entry), flush=True)
    figures = totals([entry for _, entry in entries.of(arguments.threads)])
    entries.write(figures)
    print(json.dumps(figures, indent=2))
    return 0


def measure(name: str, minutes: float, rounds: int = ROUNDS, sample_s: float = SAMPLE_S) -> Entry:
    """Medians of one model by each side, what its first run took, and how far outputs are from PyTorch's op by op."""
    torch.manual_seed(SEED)
    module, inputs = MODELS[name]()
    torch.compiler.reset()
    before = graphs()
    with torch.inference_mode():
        eager = partial(module, **inputs)
        sides: dict[str, Run] = {"eager": eager}
        entry: Entry = {"compile_s": {}, "errors": {}, "missing": {}}
        for side in ("inductor", "tunewright"):
            run = partial(torch.compile(module, backend=backend if side == "tunewright" else side), **inputs)
            start = time.perf_counter()
            try:
                if side == "tunewright" and minutes:
                    with tuning(minutes=minutes):
                        run()
                outputs = run()
            except FOREIGN_FAULTS as error:
                entry["missing"][side] = one_line(error)
                continue
            entry["compile_s"][side] = time.perf_counter() - start
            entry["errors"][side] = worst(outputs, eager())
            sides[side] = run
        samples = {side: sampler(run, sample_s) for side, run in sides.items()}
        times = {side: summary(of_side) for side, of_side in sample_in_turn(samples, rounds).items()}
    ours = [graph for graph in graphs() if graph not in before]
    by_pytorch = sum((Counter(graph.by_pytorch) for graph in ours), Counter[str]())
    return {
        **entry,
        **{f"{side}_ms": 1e3 * figures["median_s"] for side, figures in times.items()},
        "graphs": len(ours),
        "by_pytorch": dict(by_pytorch),
        "notes": [note for graph in ours for note in graph.notes],
    }


def worst(outputs: Any, wanted: Any) -> float:
    """The largest difference of outputs, as a share of the largest number that is wanted of each."""
    pairs = zip(*(pytree.tree_leaves(results) for results in (outputs, wanted)), strict=True)
    errors = [float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-9)) for ours, theirs in pairs]
    return float(torch.tensor(errors).max()) if errors else 0.0  # NaN where one is


def totals(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many times as fast as the other sides ours is: the geometric mean, and the slowest model's."""
    told: dict[str, Any] = {"models": len(entries), "whole": sum(not entry["by_pytorch"] for entry in entries)}
    for side in ("eager", "inductor"):
        pairs = [(entry.get(f"{side}_ms"), entry.get("tunewright_ms")) for entry in entries]
        factors = [theirs / ours for theirs, ours in pairs if theirs and ours]
        told[f"over_{side}"] = {"geometric_mean": geometric(factors), "least": min(factors, default=None)}
    return told


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))

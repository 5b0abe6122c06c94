"""Kernels for GPUs, built on a machine that has none: `./dev bench gpu [NAME ...] [--again]`.

Of each workload the default schedule and 50 random ones of one sketch are lowered, verified and compiled by NVRTC, for
several architectures, one after the other on one core. How many a second is what a search can build; registers written
out to memory are what a schedule must not need. Results: bench/results/gpu.json, complete after each workload; what
was built with this code and on this machine isn't built again. Takes up to a minute a case. Exit code 1 where a kernel
writes out more than it may.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from statistics import median

import numpy as np
import onnx.parser

from tunewright.bench.entries import Entries, Entry, code_sha256
from tunewright.bench.files import RESULTS, stay_in_folder
from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import GpuArtifact, build
from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.graph.fusion import Call, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, sketch
from tunewright.tuner import cli

BRAIN_DENSE = """(float[200, 768] x, float[3072, 768] w) => (float y) {
  a = Cast<to = 16>(x) b = Cast<to = 16>(w) t = Gemm<transB = 1>(a, b) u = Gelu(t) y = Cast<to = 1>(u)
}"""

WORKLOADS: Mapping[str, tuple[str, str]] = {
    "gemm float16 1024x1024x1024": (
        "warp_tiles",
        "(float16[1024, 1024] x, float16[1024, 1024] w) => (float16 y) { y = MatMul(x, w) }",
    ),
    "dense bfloat16 200x768x3072": ("warp_tiles", BRAIN_DENSE),
    "conv float16 3x3 64-64 at 56x56": (
        "warp_tiles",
        "(float16[1, 64, 56, 56] x, float16[64, 64, 3, 3] w) => (float16 y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }",
    ),
    "gemm float32 1024x1024x1024": (
        "product_tiles",
        "(float[1024, 1024] x, float[1024, 1024] w) => (float y) { y = MatMul(x, w) }",
    ),
    "softmax float32 4096x1024": ("row_blocks", "(float[4096, 1024] x) => (float y) { y = Softmax(x) }"),
    "layer norm float16 4096x768": (
        "row_blocks",
        "(float16[4096, 768] x, float16[768] s) => (float16 y) { y = LayerNormalization(x, s) }",
    ),
    "depthwise float32 3x3 96 at 56x56": (
        "elements",
        "(float[1, 96, 56, 56] x, float[96, 1, 3, 3] w) => (float y) { y = Conv<group=96, pads=[1, 1, 1, 1]>(x, w) }",
    ),
}
"""Sketch and model of each."""

ARCHITECTURES = ("sm_80", "sm_90a")

SCHEDULES = 50

MOST_SPILLED_BYTES = 64
"""That a thread of a kernel may write out, or read back, for want of registers."""


def main() -> int:
    """Build what is wanted and missing, then print the summary. 1 where a kernel writes out too much."""
    parser = argparse.ArgumentParser(prog="./dev bench gpu", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of those wanted; default: all")
    parser.add_argument("--again", action="store_true", help="build anew what is built")
    given = parser.parse_args()
    stay_in_folder()
    cases = {f"{name} on {arch}": (name, arch) for name in WORKLOADS for arch in ARCHITECTURES}
    entries = Entries(RESULTS / "gpu.json", tuple(cases))
    folders = ("codegen", "graph", "search_space")
    wanted = {"machine": machine(), "nvrtc": nvrtc.version(), "code_sha256": code_sha256(folders)}
    for case, (name, arch) in cases.items():
        if any(text in case for text in given.names or cases) and (given.again or not entries.has(case, 1, wanted)):
            entry = built(name, Target.of_gpu(KNOWN[arch]))
            entries.put(case, 1, entry | wanted)
            print(case, json.dumps(entry), flush=True)
    found = [entry for _, entry in entries.of(1)]
    summary = {
        "builds_a_second": {case: round(entry["builds_a_second"], 2) for case, entry in entries.of(1)},
        "most_spilled_bytes": max(entry["spilled_bytes"] for entry in found),
    }
    entries.write(summary)
    print(json.dumps(summary, indent=2))
    return int(summary["most_spilled_bytes"] > MOST_SPILLED_BYTES)


def built(name: str, target: Target) -> Entry:
    """What a workload's schedules take to build, and what their kernels need."""
    form, text = WORKLOADS[name]
    task = task_of(text)
    space = sketch(form).space(task, target)
    rows = space.sample(SCHEDULES, np.random.default_rng(0))
    started_s = time.perf_counter()
    kernels = [
        build(lower(Candidate(task, target, schedule)), target)
        for schedule in (space.default, *map(space.schedule, rows))
    ]
    seconds = time.perf_counter() - started_s
    return {
        "sketch": form,
        "target": str(target),
        "builds": len(kernels),
        "seconds": round(seconds, 3),
        "builds_a_second": len(kernels) / seconds,
        "registers": median(max(usage.registers for usage in kernel.usage.values()) for kernel in kernels),
        "spilling": sum(spilled_bytes(kernel) > 0 for kernel in kernels),
        "spilled_bytes": max(map(spilled_bytes, kernels)),
    }


def spilled_bytes(kernel: GpuArtifact) -> int:
    """What a thread writes out or reads back for want of registers, in the launch where that is most."""
    return max(max(usage.spill_store_bytes, usage.spill_load_bytes) for usage in kernel.usage.values())


def task_of(text: str) -> Task:
    """The heaviest task of a model in ONNX's text form."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> m {text}')
    graph = rewrite(load(model.SerializeToString()), widen=False)
    return max((step.task for step in partition(graph) if isinstance(step, Call)), key=lambda task: task.flops)


if __name__ == "__main__":
    sys.exit(cli.guarded(main))

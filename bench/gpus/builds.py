"""Builds of one sketch's kernels: builds a second, registers, spills."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from tunewright.bench.entries import Entry
from tunewright.codegen.cuda.build import GpuArtifact, build
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, sketch

from .workloads import BUILD_WORKLOADS, heaviest_task

SCHEDULES = 50
"""Number of random schedules, beside the default."""

MOST_SPILLED_BYTES = 64
"""The most bytes that a thread of a kernel may spill."""


def measure_builds(name: str, target: Target) -> Entry:
    """Build a workload's schedules on this core: builds a second, registers and spills."""
    form = BUILD_WORKLOADS[name].sketch
    task = heaviest_task(BUILD_WORKLOADS[name].text)
    space = sketch(form).space(task, target)
    rows = space.sample(SCHEDULES, np.random.default_rng(0))
    start_s = time.perf_counter()
    kernels = [
        build(lower(Candidate(task, target, schedule)), target)
        for schedule in (space.default, *map(space.schedule, rows))
    ]
    seconds = time.perf_counter() - start_s
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
    """The bytes that a thread spills, in the launch with the most."""
    return max(max(usage.spill_store_bytes, usage.spill_load_bytes) for usage in kernel.usage.values())

"""Kernels of one sketch, built: how many a second, and what they need."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from tunewright.bench.entries import Entry
from tunewright.codegen.cuda.build import GpuArtifact, build
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, sketch

from .workloads import BUILT, task_of

SCHEDULES = 50
"""Random ones, beside the default."""

MOST_SPILLED_BYTES = 64
"""That a thread of a kernel may write out, or read back, for want of registers."""


def built(name: str, target: Target) -> Entry:
    """What a workload's schedules take to build on this core, and what their kernels need."""
    form = BUILT[name].sketch
    task = task_of(BUILT[name].text)
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

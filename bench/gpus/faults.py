"""A search on a GPU with kernels among it that hang, crash and compute a wrong result."""

from __future__ import annotations

from tunewright.bench.entries import Entry
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.sketches import default_schedule
from tunewright.workers.pool import Pool

from . import fault_sketch
from .search import search_task
from .workloads import BUILD_WORKLOADS, heaviest_task

NAME = "gemm float16 1024x1024x1024"

PLUGIN = "tunewright.bench.gpus.fault_plugin"
"""The plugin that the pool's children import."""

SAME = 0.1
"""The largest relative change of the default's time by faults."""


def measure_faults(target: Target, pool: Pool, trials: int) -> Entry:
    """Run half of the trials, then each fault, then the other half.

    `holds` if each fault has its status, all else works, and the default's time is the same before and after.
    """
    task = heaviest_task(BUILD_WORKLOADS[NAME].text)
    default = Candidate(task, target, default_schedule(task, target))
    [before_s] = [measurement.median_s for measurement in pool.compare([default])]  # in fresh processes
    before = search_task(pool, task, target, trials // 2)
    measurements: dict[str, Measurement] = {}
    for fault in fault_sketch.FAULTS:
        [(_, measurements[fault])] = pool.measure([Candidate(task, target, fault_sketch.schedule(fault))])
    after = search_task(pool, task, target, trials - trials // 2 - len(measurements), seed=1)
    [after_s] = [measurement.median_s for measurement in pool.compare([default])]
    sound = before.statuses.keys() | after.statuses.keys()
    expected = {fault: status for fault, (_, status) in fault_sketch.FAULTS.items()}
    ratio = after_s / before_s if after_s and before_s else None
    return {
        "trials": len(before.trials) + len(measurements) + len(after.trials),
        "faults": {fault: f"{m.status.value}: {m.error}" for fault, m in measurements.items()},
        "statuses": {"before": before.statuses, "after": after.statuses},
        "default_after_to_before": ratio,
        "holds": all(measurements[fault].status is status for fault, status in expected.items())
        and sound == {"ok"}
        and ratio is not None
        and abs(ratio - 1) < SAME,
    }

"""A search on a GPU with kernels planted in it that hang, crash and compute the wrong thing."""

from __future__ import annotations

from tunewright.bench.entries import Entry
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.sketches import default_schedule
from tunewright.workers.pool import Pool

from . import planted
from .searching import searched
from .workloads import BUILT, task_of

NAME = "gemm float16 1024x1024x1024"

PLUGIN = "tunewright.bench.gpus.planted_child"
"""For the children of the pool."""

SAME = 0.1
"""How far the default's time may be another one after faults."""


def survived(target: Target, pool: Pool, trials: int) -> Entry:
    """Half of the trials, each fault, the other half: what was said of the faults, and of all else.

    `holds` where each fault is what it is, all else works, and the default takes after them what it took before.
    """
    task = task_of(BUILT[NAME].text)
    default = Candidate(task, target, default_schedule(task, target))
    [before_s] = [one.median_s for one in pool.compare([default])]  # anew, in fresh processes
    before = searched(pool, task, target, trials // 2)
    told: dict[str, Measurement] = {}
    for fault in planted.FAULTS:
        [(_, told[fault])] = pool.measure([Candidate(task, target, planted.schedule(fault))])
    after = searched(pool, task, target, trials - trials // 2 - len(told), seed=1)
    [after_s] = [one.median_s for one in pool.compare([default])]
    sound = before.statuses.keys() | after.statuses.keys()
    wanted = {fault: status for fault, (_, status) in planted.FAULTS.items()}
    ratio = after_s / before_s if after_s and before_s else None
    return {
        "trials": len(before.tried) + len(told) + len(after.tried),
        "faults": {fault: f"{m.status.value}: {m.error}" for fault, m in told.items()},
        "statuses": {"before": before.statuses, "after": after.statuses},
        "default_after_to_before": ratio,
        "holds": all(told[fault].status is status for fault, status in wanted.items())
        and sound == {"ok"}
        and ratio is not None
        and abs(ratio - 1) < SAME,
    }

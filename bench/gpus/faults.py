"""A search on a GPU with kernels planted in it that hang, crash and compute the wrong thing."""

from __future__ import annotations

from tunewright.bench.entries import Entry
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.sketches import spaces
from tunewright.workers.pool import Pool

from . import planted
from .searching import searched_in
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
    offered = spaces(task, target)  # without the planted sketches
    planted.make_known()
    before = searched_in(offered, pool, task, target, trials // 2, seed=0)
    told: dict[str, Measurement] = {}
    for fault in planted.FAULTS:
        [(_, told[fault])] = pool.measure([Candidate(task, target, planted.schedule(fault))])
    after = searched_in(offered, pool, task, target, trials - trials // 2 - len(told), seed=1)
    default_s = [one.tried[0][1].median_s for one in (before, after)]
    sound = before.statuses.keys() | after.statuses.keys()
    wanted = {fault: status for fault, (_, status) in planted.FAULTS.items()}
    ratio = default_s[1] / default_s[0] if default_s[0] and default_s[1] else None
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

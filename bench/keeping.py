"""Measuring many schedules of a task, and keeping each measurement in a database like any trial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf, isfinite

from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate, Record
from tunewright.tuner.jobs.task_state import time_s
from tunewright.workers.pool import Limits, Pool, ReferenceFailed

BATCH = 16
"""Candidates that are handed out together: so many are not held against the best of these, and so many are measured
when the time is over."""

LIMITS = Limits(build_s=10.0, run_s=10.0, timing_s=0.02)
"""Of each: there are thousands, what takes longer is of no use to anybody, and trees need no narrow intervals."""


def keep_measured(
    store: Store,
    pool: Pool,
    candidates: Sequence[Candidate],
    best_s: float = inf,
    *,
    margin: float = 1.0,
    deadline_s: float = inf,
) -> int:
    """Measure candidates of one task that the database knows, until the deadline by the monotonic clock; how many.

    What is clearly slower than `margin` times the fastest so far, at first `best_s`, is timed roughly. Ends early where
    the task has no reference.
    """
    added = 0
    for start in range(0, len(candidates), BATCH):
        if time.monotonic() > deadline_s:
            break
        limit_s = margin * best_s if isfinite(best_s) else None
        try:
            for candidate, measurement in pool.measure(candidates[start : start + BATCH], limit_s):
                store.record(Record(candidate.task.key, candidate.target.key, candidate.schedule, measurement))
                best_s = min(best_s, time_s(measurement))
                added += 1
        except ReferenceFailed:
            break
    return added


def keep_compared(store: Store, pool: Pool, candidates: Sequence[Candidate]) -> int:
    """Time candidates of one task that the database knows side by side; how many: 0 where it has no reference."""
    try:
        measured = pool.compare(candidates)
    except ReferenceFailed:
        return 0
    for candidate, measurement in zip(candidates, measured, strict=True):
        store.record(Record(candidate.task.key, candidate.target.key, candidate.schedule, measurement))
    return len(candidates)

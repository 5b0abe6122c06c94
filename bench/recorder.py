"""Measure many schedules of a task and store each measurement as a trial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf, isfinite

from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate, Record
from tunewright.tuner.search.task_state import time_s
from tunewright.workers.pool import Limits, Pool, ReferenceFailed

BATCH = 16
"""Candidates of one call of the pool: within it the best does not change, and it is not interrupted by the deadline."""

LIMITS = Limits(build_s=10.0, run_s=10.0, timing_s=0.02)
"""Limits of each candidate: there are thousands, slow ones are of no use, and trees need no narrow intervals."""


def record_trials(
    store: Store,
    pool: Pool,
    candidates: Sequence[Candidate],
    best_s: float = inf,
    *,
    margin: float = 1.0,
    deadline_s: float = inf,
) -> int:
    """Measure and store candidates of one stored task until the deadline by the monotonic clock. Returns how many.

    Candidates clearly slower than `margin` times the fastest so far, at first `best_s`, are timed roughly. Ends early
    where the task has no reference.
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


def record_comparison(store: Store, pool: Pool, candidates: Sequence[Candidate]) -> int:
    """Time and store candidates of one stored task side by side. Returns how many: 0 where it has no reference."""
    try:
        measurements = pool.compare(candidates)
    except ReferenceFailed:
        return 0
    for candidate, measurement in zip(candidates, measurements, strict=True):
        store.record(Record(candidate.task.key, candidate.target.key, candidate.schedule, measurement))
    return len(candidates)

"""Recording: every point of a case measured once, kept like any trial; what is kept is not measured again."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.workers.pool import Pool

from .cases import Case

BATCH = 16
"""Candidates handed out together: what is lost of the time when it is over."""

CLEARLY_SLOWER = 1.5
"""Times the best so far, above which it doesn't matter how slow a schedule is."""


def missing(store: Store, case: Case) -> list[Schedule]:
    """The points that are not recorded, in an order that has nothing to do with what they are.

    So a machine that grows slower meanwhile is no fault of a knob.
    """
    known = {record.schedule.key for record in store.records(case.task.key, case.target.key)}
    points = [schedule for schedule in case.points if schedule.key not in known]
    rng = np.random.default_rng(int(case.task.key[:12], 16))
    return [points[n] for n in rng.permutation(len(points))]


def record(store: Store, pool: Pool, case: Case, schedules: Sequence[Schedule], deadline_s: float) -> int:
    """Measure and keep schedules of a case until the deadline, by the monotonic clock; how many."""
    store.add_target(case.target)
    store.add_task(case.task)
    best = store.best(case.task.key, case.target.key)
    best_s = best.measurement.median_s if best else None
    added = 0
    for start in range(0, len(schedules), BATCH):
        if time.monotonic() > deadline_s:
            break
        batch = [Candidate(case.task, case.target, schedule) for schedule in schedules[start : start + BATCH]]
        for candidate, measurement in pool.measure(batch, None if best_s is None else CLEARLY_SLOWER * best_s):
            store.record(Record(case.task.key, case.target.key, candidate.schedule, measurement))
            if measurement.status is Status.OK and measurement.median_s is not None:
                best_s = min(best_s or measurement.median_s, measurement.median_s)
            added += 1
    return added

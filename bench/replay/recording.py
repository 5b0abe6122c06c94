"""Recording: every point of a case measured once, kept like any trial; what is kept is not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from tunewright.bench.keeping import keep_measured
from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.jobs.task_state import time_s
from tunewright.workers.pool import Pool

from .cases import Case

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
    return keep_measured(
        store,
        pool,
        [Candidate(case.task, case.target, schedule) for schedule in schedules],
        time_s(best.measurement) if best else inf,
        margin=CLEARLY_SLOWER,
        deadline_s=deadline_s,
    )

"""Records of all points of a case, stored as trials. Stored points are not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from tunewright.bench.recorder import record_trials
from tunewright.db.store import Store
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.search.task_state import time_s
from tunewright.workers.pool import Pool

from .cases import TabularCase

CLEARLY_SLOWER = 1.5
"""The ratio to the best so far above which a schedule is timed roughly."""


def missing_points(store: Store, case: TabularCase) -> list[Schedule]:
    """The points that are not recorded, in random order, so that drift of the machine is no effect of a knob."""
    stored_keys = {record.schedule.key for record in store.records(case.task.key, case.target.key)}
    points = [schedule for schedule in case.points if schedule.key not in stored_keys]
    rng = np.random.default_rng(int(case.task.key[:12], 16))
    return [points[n] for n in rng.permutation(len(points))]


def record_points(store: Store, pool: Pool, case: TabularCase, schedules: Sequence[Schedule], deadline_s: float) -> int:
    """Measure and store schedules of a case until the deadline by the monotonic clock. Returns how many."""
    store.add_target(case.target)
    store.add_task(case.task)
    best = store.best(case.task.key, case.target.key)
    return record_trials(
        store,
        pool,
        [Candidate(case.task, case.target, schedule) for schedule in schedules],
        time_s(best.measurement) if best else inf,
        margin=CLEARLY_SLOWER,
        deadline_s=deadline_s,
    )

"""Measuring what the base cost model learns from: some schedules of each task, kept like any trial."""

from __future__ import annotations

import numpy as np

from tunewright.bench.keeping import keep_compared, keep_measured
from tunewright.codegen.target import Target
from tunewright.costmodel.model import AnalyticModel
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space
from tunewright.workers.pool import Pool

DRAWN = 2048
"""Points of a space that those which look fast are chosen from."""

PROMISING = 64
"""So many of those look fast."""


def chosen(task: Task, target: Target, count: int, seed: int = 0) -> list[Schedule]:
    """Schedules to measure: the defaults, then in equal parts what lies around them, what looks fast and any other.

    Only of the second and third kind, a model would not know what is near the best; only of the others, not what is
    far from it.
    """
    rng = np.random.default_rng([seed, int(task.key[:12], 16)])
    offered = spaces(task, target)
    schedules = [space.default for space in offered]
    share = max(count // (3 * len(offered)), 1)
    for space in offered:
        for rows in (_around(space, rng), _promising(task, target, space, rng), space.sample(share, rng)):
            schedules += [space.schedule(row) for row in rows[rng.permutation(len(rows))[:share]]]
    return list(dict.fromkeys(schedules))[: max(count, len(offered))]


def _around(space: Space, rng: np.random.Generator) -> Rows:
    """What differs from the default in one knob or two."""
    default = space.row(space.default)[None]
    once = space.mutate(np.repeat(default, 64, axis=0), rng)
    return space.distinct(np.concatenate([once, space.mutate(once, rng)])) if len(once) else default


def _promising(task: Task, target: Target, space: Space, rng: np.random.Generator) -> Rows:
    rows = space.sample(DRAWN, rng)
    order = np.argsort(-AnalyticModel().score(task, target, space, rows), kind="stable")
    return rows[order[:PROMISING]]


def collect(store: Store, pool: Pool, task: Task, target: Target, count: int, *, side_by_side: bool = False) -> int:
    """Measure and keep `count` schedules of a task where it has fewer; how many were measured.

    Those measured `side_by_side` belong together better, for a few times the price: where one is missing, all are.
    """
    store.add_target(target)
    store.add_task(task)
    known = {record.schedule for record in store.records(task.key, target.key)}
    offered = chosen(task, target, count)
    wanted = [schedule for schedule in offered if schedule not in known]
    if wanted and side_by_side:
        return keep_compared(store, pool, [Candidate(task, target, schedule) for schedule in offered])
    return keep_measured(store, pool, [Candidate(task, target, schedule) for schedule in wanted])

"""Choice of the schedules of a task from which a cost model learns."""

from __future__ import annotations

import numpy as np

from tunewright.codegen.target import Target
from tunewright.costmodel.model import AnalyticModel
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Rows, Space

SAMPLED_POINTS = 2048
"""Sampled points of a space, from which promising ones are chosen."""

PROMISING = 64
"""The number of promising points."""


def choose_schedules(task: Task, target: Target, count: int, seed: int = 0) -> list[Schedule]:
    """Schedules to measure: the defaults, then in equal parts neighbours of these, promising and random ones.

    From random ones alone, a model would not learn what is near the best; from the others alone, not what is far from
    it.
    """
    rng = np.random.default_rng([seed, int(task.key[:12], 16)])
    task_spaces = spaces(task, target)
    schedules = [space.default for space in task_spaces]
    share = max(count // (3 * len(task_spaces)), 1)
    for space in task_spaces:
        for rows in (
            _sample_near_default(space, rng),
            _sample_promising(task, target, space, rng),
            space.sample(share, rng),
        ):
            schedules += [space.schedule(row) for row in rows[rng.permutation(len(rows))[:share]]]
    return list(dict.fromkeys(schedules))[: max(count, len(task_spaces))]


def _sample_near_default(space: Space, rng: np.random.Generator) -> Rows:
    """Points that differ from the default in one or two knobs."""
    default = space.row(space.default)[None]
    once = space.mutate(np.repeat(default, 64, axis=0), rng)
    return space.distinct(np.concatenate([once, space.mutate(once, rng)])) if len(once) else default


def _sample_promising(task: Task, target: Target, space: Space, rng: np.random.Generator) -> Rows:
    rows = space.sample(SAMPLED_POINTS, rng)
    order = np.argsort(-AnalyticModel().score(task, target, space, rows), kind="stable")
    return rows[order[:PROMISING]]

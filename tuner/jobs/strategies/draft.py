"""Draft: a first sieve of points, by the roofline estimate alone. A tenth of the work of a cost model's features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.target import Target
from tunewright.costmodel.loops import Loops, by_vector_axis
from tunewright.costmodel.roofline import estimate_s
from tunewright.graph.task import Task
from tunewright.search_space.space import Rows, Space


def drafted(task: Task, target: Target, space: Space, rows: Rows, count: int) -> Rows:
    """The `count` rows with the least estimated time, those first; equals in the order given."""
    return rows[np.argsort(estimated_s(task, target, space, rows), kind="stable")[:count]]


def estimated_s(task: Task, target: Target, space: Space, rows: Rows) -> NDArray[np.float64]:
    """Seconds [points] by `roofline.estimate_s`."""
    times_s = np.empty(len(rows))
    if len(rows):
        tiling = space.tiling(space.columns(rows))
        for axis, members, part in by_vector_axis(tiling, len(rows)):
            times_s[members] = estimate_s(Loops(task, target, part, axis))[0]
    return times_s

"""What trees learn: for each trial the speed of its schedule, relative to the fastest known one of its task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .model import Trials

Place = tuple[str, str]
"""Keys of a task and a target: what speeds are relative to."""


def place(trials: Trials) -> Place:
    """Of the trials of a space."""
    return trials.task.key, trials.target.key


def comparable(trials: Sequence[Trials]) -> list[Trials]:
    """The trials of tasks that have more than one, for a single one is the best of its task whatever it is.

    In an order that doesn't depend on how they arrived, so that sums in the trees round alike.
    """
    count = Counter(spot for each in trials for spot in [place(each)] * len(each.times_s))
    sets = []
    for each in sorted(trials, key=lambda t: (place(t), t.space.sketch, t.space.version)):
        if count[place(each)] > 1 and len(each.times_s):
            order = np.lexsort((each.times_s, each.space.codes(each.rows)))
            spans_s = None if each.spans_s is None else each.spans_s[order]
            sets.append(replace(each, rows=each.rows[order], times_s=each.times_s[order], spans_s=spans_s))
    return sets


def bests_s(sets: Sequence[Trials]) -> dict[Place, float]:
    """The fastest time of each task on each target; inf where all failed."""
    best_s: dict[Place, float] = {}
    for each in sets:
        best_s[place(each)] = min(best_s.get(place(each), np.inf), float(each.times_s.min(initial=np.inf)))
    return best_s


def speeds(sets: Sequence[Trials]) -> NDArray[np.float32]:
    """Best time / time of all trials in their order, in (0, 1]; of failures 0.

    It has no unit and no size, so trials of all tasks and shapes teach one model. Slow schedules are all alike to it:
    what counts is to tell the fast ones apart.
    """
    best_s = bests_s(sets)
    labels = [np.empty(0)]
    for each in sets:
        ok = np.isfinite(each.times_s)
        labels.append(np.divide(best_s[place(each)], each.times_s, out=np.zeros(len(ok)), where=ok))
    return np.concatenate(labels).astype(np.float32)


def groups(sets: Sequence[Trials]) -> NDArray[np.int64]:
    """The number of the task of each trial, in their order."""
    numbers: dict[str, int] = {}
    parts = [np.full(len(each.times_s), numbers.setdefault(each.task.key, len(numbers))) for each in sets]
    return np.concatenate([np.empty(0, np.int64), *parts])

"""How near defaults and a model's picks come to the best of the trials."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from tunewright.bench.gpus.workloads import heaviest_task, softmax_text
from tunewright.bench.training.first_picks import judge_first_picks
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.costmodel.model import Trials
from tunewright.search_space.sketches import spaces

GPU = Target.of_gpu(KNOWN["sm_90a"])
TASK = heaviest_task(softmax_text("float", 64, 96))


class Ranking:
    """A model that expects so much of points, in their order."""

    def __init__(self, *scores: float) -> None:
        self._scores = np.array(scores)

    def score(self, task, target, space, rows):
        return self._scores[: len(rows)]

    def deviation(self, task, target, space, rows):
        return np.zeros(len(rows))


def trials(*times_s: float) -> Trials:
    """The default is the first point."""
    [space] = spaces(TASK, GPU)
    default = space.row(space.default)
    others = [row for row in space.points if (row != default).any()]
    return Trials(TASK, GPU, space, np.stack([default, *others])[: len(times_s)], np.array(times_s))


def test_a_pick_that_is_clearly_ahead_is_made():
    known = [trials(4.0, 2.0, 1.0)]
    assert judge_first_picks(Ranking(0.0, 1.0, 0.0), known) == {
        "tasks": 1, "default": 0.25, "least_default": 0.25, "pick": 0.5, "least_pick": 0.5,
    }  # fmt: skip
    assert judge_first_picks(Ranking(0.0, 0.1, 0.0), known)["pick"] == 0.25


def test_failures_are_no_speed_and_tasks_without_their_default_do_not_count():
    assert judge_first_picks(Ranking(0.0, 1.0), [trials(4.0, inf)])["pick"] == 0.0
    whole = trials(4.0, 2.0, 1.0)
    assert judge_first_picks(Ranking(0.0, 1.0), [replace(whole, rows=whole.rows[1:], times_s=whole.times_s[1:])]) == {
        "tasks": 0
    }
    assert judge_first_picks(Ranking(0.0, 1.0), [trials(inf, inf)]) == {"tasks": 0}

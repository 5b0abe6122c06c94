"""Schedules of all sketches on a real GPU: they come to what the oracle does, and write nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES
from tunewright.workers.local import LocalPool

from ..search_space.test_sketches import MODELS, tasks_of

pytestmark = pytest.mark.gpu

SIZES = ({"a": 13, "b": 11, "c": 37, "d": 3}, {"a": 32, "b": 16, "c": 64, "d": 4})
"""Odd and prime sizes, and such whose rows begin on multiples of 16 bytes."""

RANDOM = 2
"""Schedules of a sketch beside its default."""


def candidates(target: Target, text: str) -> list[Candidate]:
    """Defaults and random schedules of all sketches, for all tasks of a line of MODELS."""
    rng, result = np.random.default_rng(0), []
    for task in (task for sizes in SIZES for task in tasks_of(text, sizes)):
        for space in filter(None, (find_space(sketch, task, target) for sketch in SKETCHES)):
            schedules = (space.default, *map(space.schedule, space.sample(RANDOM, rng)))
            result += [Candidate(task, target, schedule) for schedule in dict.fromkeys(schedules)]
    return result


@pytest.mark.parametrize("name", MODELS)
def test_schedules_are_right(pool: LocalPool, target: Target, name: str) -> None:
    measurements = [(c, m) for c, m in pool.measure(candidates(target, MODELS[name]))]
    wrong = [f"{c.task.op} {c.schedule}: {m.status} {m.error}" for c, m in measurements if m.status is not Status.OK]
    assert measurements and not wrong, "\n".join(wrong)

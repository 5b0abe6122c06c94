"""Schedules of all sketches on a real GPU: they come to what the oracle does, and write nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.sketches import ATTENTION, SKETCHES
from tunewright.workers.local import LocalPool

from ..search_space.causal_models import CausalSizes, causal_task
from ..search_space.test_sketches import MODELS, tasks_of

pytestmark = pytest.mark.gpu

SIZES = ({"a": 13, "b": 11, "c": 37, "d": 3}, {"a": 32, "b": 16, "c": 64, "d": 4})
"""Odd and prime sizes, and such whose rows begin on multiples of 16 bytes."""

RANDOM = 2
"""Schedules of a sketch beside its default."""


LONG_CACHES = tuple(
    f"{kind}: q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] v[{heads}, {keys}, {depth}]"
    f" m[{queries}, {keys}]"
    " | t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) s = Add(r, m) p = Softmax(s) y = MatMul(p, v) | y"
    for kind, heads, queries, keys, depth in (
        ("float16", 8, 4, 2047, 128),
        ("bfloat16", 32, 1, 2048, 128),
        ("float16", 2, 1, 8209, 64),
        ("float16", 3, 61, 4096, 80),
        ("bfloat16", 5, 20, 601, 40),
    )
)
"""Attention of few queries, whose keys blocks share: see `attention_tiles`."""

CAUSAL = (
    CausalSizes(12, 12, 512, 0, 64),
    CausalSizes(32, 8, 1000, 0, 128),
    CausalSizes(8, 2, 300, 701, 80),
    CausalSizes(6, 2, 7, 2041, 128),
)

SHARED = 12
"""Schedules of a task of these beside the default."""


def candidates(
    target: Target, tasks: Iterable[Task], sketches: Sequence[Sketch] = SKETCHES, count: int = RANDOM
) -> list[Candidate]:
    """Defaults and random schedules of sketches, for all tasks."""
    rng, result = np.random.default_rng(0), []
    for task in tasks:
        for space in filter(None, (find_space(sketch, task, target) for sketch in sketches)):
            schedules = (space.default, *map(space.schedule, space.sample(count, rng)))
            result += [Candidate(task, target, schedule) for schedule in dict.fromkeys(schedules)]
    return result


def are_right(pool: LocalPool, chosen: list[Candidate]) -> None:
    """All candidates come to what the oracle does."""
    measurements = [(c, m) for c, m in pool.measure(chosen)]
    wrong = [f"{c.task.op} {c.schedule}: {m.status} {m.error}" for c, m in measurements if m.status is not Status.OK]
    assert measurements and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", MODELS)
def test_schedules_are_right(pool: LocalPool, target: Target, name: str) -> None:
    are_right(pool, candidates(target, (task for sizes in SIZES for task in tasks_of(MODELS[name], sizes))))


@pytest.mark.parametrize("sizes", CAUSAL, ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_causal_attention_is_right(pool: LocalPool, target: Target, kind: str, sizes: CausalSizes) -> None:
    """Keys that nobody sees are left out, also where blocks share the others."""
    are_right(pool, candidates(target, [causal_task(sizes, target, kind)], ATTENTION, SHARED))


@pytest.mark.parametrize("text", LONG_CACHES)
def test_blocks_that_share_keys_are_right(pool: LocalPool, target: Target, text: str) -> None:
    """By one launch and by two, also where the parts of a row are of unequal length."""
    chosen = candidates(target, tasks_of(text, {}), ATTENTION, SHARED)
    assert {dict(one.schedule.values).get("splits", 1) for one in chosen} > {1}
    are_right(pool, chosen)

"""Where a sketch is offered, its default is legal and can be written: on models of every kind, for every processor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns.windows import match_windows
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.sketches import SKETCHES, default_schedule, holds, lower, sketch, spaces

from .drawing import DRAWN
from .oracle import DOTS, MATRICES, SMALL_GPU, WIDE
from .test_sketches import tasks_of
from .test_targets import TARGETS

SMALL_NUMBERS = (DOTS, MATRICES)
"""Processors with instructions for products of bytes and of bfloat16."""

PROCESSORS = (WIDE, *(target for target in TARGETS.values() if target not in SMALL_NUMBERS))
GPUS = (SMALL_GPU, *(Target.of_gpu(KNOWN[arch]) for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a")))

PAIRS = 2000
"""Pairs of a task and a target for each sketch."""

APPLY = 100
"""Pairs to which a sketch applies, at least."""

KERNELS = 12
"""Tasks whose schedules are lowered: that takes a hundred times as long as to check whether they are legal."""


def drawn(name: str, seed: int) -> Iterator[Task]:
    """Tasks of models that a sketch may apply to, without end: of each kind in turn."""
    rng = np.random.default_rng(seed)
    while True:
        for kind in DRAWN[name]:
            yield from tasks_of(kind(rng), {})


def targets_of(sketch: Sketch, task: Task) -> tuple[Target, ...]:
    """Processors or GPUs, whichever a sketch writes a task for."""
    if any(find_space(sketch, task, gpu) for gpu in GPUS):
        return GPUS
    needed = tuple(target for target in SMALL_NUMBERS if find_space(sketch, task, target))
    return needed if needed and find_space(sketch, task, WIDE) is None else PROCESSORS


@pytest.mark.slow
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda one: one.name)
def test_a_sketch_that_is_offered_has_a_legal_default_that_can_be_written(sketch: Sketch) -> None:
    target_count = applied = kernel_count = 0
    rng = np.random.default_rng(1)
    for number, task in enumerate(drawn(sketch.name, seed=0)):
        targets = targets_of(sketch, task)
        target_count += len(targets)
        spaces = [(target, space) for target in targets if (space := find_space(sketch, task, target)) is not None]
        for _, space in spaces:
            assert space.schedule(space.row(space.default)) == space.default
        applied += len(spaces)
        if spaces and kernel_count * PAIRS < target_count * KERNELS:
            kernel_count += 1
            target, space = spaces[number % len(spaces)]
            for schedule in (space.default, *map(space.schedule, space.sample(1, rng))):
                verify(lower(Candidate(task, target, schedule)))
        if target_count >= PAIRS:
            break
    assert applied > APPLY and kernel_count >= KERNELS


def test_a_sketch_without_a_legal_point_is_skipped() -> None:
    text = "x[1, 8, 13, 13] v[8, 8, 1, 1] | r = Conv(x, v) t = MaxPool<kernel_shape=[13, 13], pads=[6, 6, 6, 6]>(r)"
    pools = [task for task in tasks_of(f"{text} y = Conv(t, v) | y ; v", {}) if task.op == "MaxPool"]
    (task,) = pools[:1]
    window, narrow = sketch("window"), TARGETS["avx2"]
    assert match_windows(task) is not None and window.applies(task, narrow)
    assert window.space(task, narrow).is_empty and find_space(window, task, narrow) is None
    assert [space.sketch for space in spaces(task, narrow)] == ["generic"]
    known = window.space(task, WIDE).default  # where there are more registers
    assert [space.default for space in spaces(task, WIDE)] == [known]
    assert holds(task, WIDE, known) and not holds(task, narrow, known)
    with pytest.raises(Illegal, match="sketch window does not apply to MaxPool"):
        lower(Candidate(task, narrow, known))


@pytest.mark.parametrize("name", ["generic", "elements"])
def test_every_task_has_a_schedule_on_every_target(name: str) -> None:
    targets = GPUS if name == "elements" else PROCESSORS
    for _, task in zip(range(60), drawn(name, seed=2), strict=False):
        for target in targets:
            assert holds(task, target, default_schedule(task, target))
            assert not any(space.is_empty for space in spaces(task, target))

"""Split: folds of many elements to few, whose reduction is shared by the threads.

Means over all elements, norms of a whole tensor, softmax over one long row: there is too little beside the reduction to
keep the threads busy. So the longest reduction axis is cut into parts, each folded by itself, and a phase after folds
the results of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from tunewright.codegen.expr.expr import Load, Var, substitute
from tunewright.codegen.ir.ir import Block, Buffer, Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..buffers import own_buffer, params, temporaries
from ..counts import digits
from ..description import SchedulePoint
from ..patterns.fused_stage import FusedStage, fuse_stages
from ..patterns.rows import row_groups
from ..patterns.vector_axis import vector_axes
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling, whole_extents
from .loops.lower import lower, plain_nest, plain_phase
from .loops.nest import Nest

PART = "part"
"""The axis of parts, and the prefix of the tensor of their results."""

LEAST_FOLD = 1024
"""Elements of a fold from which on sharing it pays."""

NARROW = {True: 1024, False: 16}
"""Results up to which sharing pays: with a spatial axis along the lanes (True), with a reduction axis (False)."""

PART_POINTS = 4096
"""Evaluations of the body that are worth a chunk."""


Folds = tuple[tuple[FusedStage, bool], ...]
"""The fused stages of a task, and whether each is a fold to split."""


@lru_cache(maxsize=256)
def folds(task: Task, lanes: int) -> Folds:
    """The task's fused stages in order, and whether each is a fold to split. Empty if none is, or if there are rows."""
    fused_stages = fuse_stages(task)
    stages = tuple((fused_stage, _is_worth_splitting(fused_stage, lanes)) for fused_stage in fused_stages)
    rows = any(group.rows for group in row_groups(task, fused_stages))
    return stages if any(splits for _, splits in stages) and not rows else ()


def _is_worth_splitting(fused_stage: FusedStage, lanes: int) -> bool:
    stage = fused_stage.stage
    axes = vector_axes(fused_stage, lanes)[:1]
    results = prod(a.extent for a in stage.axes)
    spatial = any(a.name in axes for a in stage.axes)
    return bool(axes) and prod(a.extent for a in stage.reduce) >= LEAST_FOLD and results <= NARROW[spatial]


def _main(stages: tuple[tuple[FusedStage, bool], ...]) -> FusedStage:
    return max(
        (fused_stage for fused_stage, splits in stages if splits), key=lambda fused_stage: fused_stage.stage.points
    )


class SplitSketch(PatternSketch[Folds]):
    """Folds in parts that the threads share."""

    name = "split"
    version = 1

    def recognise(self, task: Task, target: Target) -> Folds | None:
        return folds(task, target.lanes(4)) or None

    def offer(self, task: Task, stages: Folds, target: Target) -> Space:
        main = _main(stages)
        most = max(1, main.stage.points // PART_POINTS)
        knobs = (
            Knob("parts", tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most)),
            Knob("vectors", (1, 2, 4, 8, 16)),
            Knob("unroll", (1, 2, 4)),
        )
        parts = 1 if target.threads == 1 else min(most, 4 * target.threads)
        return self.space_of(
            knobs,
            legal=lambda columns: np.ones(len(columns["vectors"]), np.bool_),
            tiling=lambda columns: _tiling(main, target, columns),
            preferred={"parts": 1 << (parts.bit_length() - 1), "vectors": 8, "unroll": 1},
        )

    def write(self, task: Task, stages: Folds, schedule: Schedule, target: Target) -> Kernel:
        steps: list[Stmt] = []
        buffers: list[Buffer] = []
        for fused_stage, splits in stages:
            parts = _parts(fused_stage.stage, schedule["parts"])
            if not splits:
                steps.append(plain_phase(fused_stage, target))
            elif parts == 1:
                steps.append(lower(_nest(fused_stage, schedule, target)))
            else:
                first, then = split_fold(fused_stage, parts)
                buffers.append(own_buffer(first))
                steps += [lower(_nest(first, schedule, target)), plain_phase(then, target)]
        scratch = (*temporaries(task, (fused_stage for fused_stage, _ in stages)), *buffers)
        return Kernel(params(task, {}), scratch, Block(tuple(steps)))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("A fold of many elements to few, whose reduction the threads share.")
        longest, parts = _longest(point.stage), _parts(point.stage, point.values["parts"])
        if parts > 1:
            part = f"{longest.name} {digits(longest.extent // parts)} of {digits(longest.extent)}"
            yield f"A chunk folds {part}; a phase after folds what the {parts} come to."
        is_reduced = point.vector in point.reduction_axes
        ones = {axis: 1 for axis in point.reduction_axes if axis != point.vector} if is_reduced else {}
        yield from point.say_tile(point.tiles[0] | ones)
        yield from point.say_copies(point.tiles[0] | ones)


def _longest(stage: Stage) -> Axis:
    return max(stage.reduce, key=lambda axis: axis.extent)


def _parts(stage: Stage, most: int) -> int:
    """The largest number of parts, `most` at most, that a stage can be cut into evenly."""
    extent = _longest(stage).extent if stage.reduce else 1
    return next(n for n in range(min(most, extent), 0, -1) if extent % n == 0)


def split_fold(fused_stage: FusedStage, parts: int) -> tuple[FusedStage, FusedStage]:
    """Split a fused stage in two: a fold of each part of its longest reduction axis, then one of their results."""
    stage = fused_stage.stage
    axis = _longest(stage)
    inside = axis.extent // parts
    part = Axis(PART, parts)
    first = Stage(
        output=f"{PART}.{stage.output}",
        axes=(part, *stage.axes),
        body=substitute(stage.body, {axis.name: Var(PART) * inside + Var(axis.name)}),
        reduce=tuple(replace(a, extent=inside) if a is axis else a for a in stage.reduce),
        combiner=stage.combiner,
    )
    result = Load(first.output, first.index, stage.body.dtype)
    then = replace(stage, body=result, reduce=(part,))
    return FusedStage.of(first), replace(fused_stage, stage=then)


def _nest(fused_stage: FusedStage, schedule: Schedule, target: Target) -> Nest:
    """The loops of a fold, one part a chunk."""
    lanes, stage = target.lanes(4), fused_stage.stage
    vector = plain_nest(fused_stage, target).vector
    spatial = any(a.name == vector for a in stage.axes)
    block = dict.fromkeys((a.name for a in stage.axes if a.name != PART), 0)
    if spatial:
        unroll = {stage.reduce[-1].name: schedule["unroll"]}
        return Nest(fused_stage, lanes, vector, {vector: schedule["vectors"] * lanes}, block, unroll)
    return Nest(fused_stage, lanes, vector, {}, block, {vector: schedule["vectors"]})


def _tiling(main: FusedStage, target: Target, columns: Columns) -> Tiling:
    stage = main.stage
    axis, vector = _longest(stage), plain_nest(main, target).vector
    tile = {stage.reduce[-1].name: columns["unroll"]} | {vector: columns["vectors"] * target.lanes(4)}
    chunk = whole_extents((*stage.axes, *stage.reduce)) | {axis.name: -(-axis.extent // columns["parts"])}
    return Tiling.of(stage, vector, columns, (tile, chunk), columns["parts"])

"""Split: folds of many elements to few, whose reduction is shared by the threads.

Means over all places, norms of a whole tensor, softmax over one long row: there is too little beside the reduction to
keep the threads busy. So the longest reduction axis is cut into parts, each folded by itself, and a phase after folds
the results of the parts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from tunewright.codegen.expr import Load, Var, substitute
from tunewright.codegen.ir import Block, Buffer, Kernel, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.loops import lower
from ..nests.nest import Nest
from ..nests.phases import own_buffer, params, plain_nest, plain_phase, temporaries, vector_axes
from ..nests.pieces import Piece, pieces
from ..rows.rows import row_groups
from ..schedule import Schedule
from ..sketch import remembered
from ..space import Columns, Knob, Space, Tiling

PART = "part"
"""The axis that counts parts; what they fold to is in a tensor of that name and the piece's output."""

FOLDED = 1024
"""Elements folded into one from which on a fold is worth sharing."""

NARROW = {True: 1024, False: 16}
"""Results up to which a fold is: with a spatial axis along the lanes, with a reduction axis along them."""

PART_POINTS = 4096
"""Evaluations of the body that are worth a chunk."""


@lru_cache(maxsize=256)
def folds(task: Task, lanes: int) -> tuple[tuple[Piece, bool], ...]:
    """The task's pieces in order, and whether each is a fold to split. Empty if none is, or if there are rows."""
    parts = pieces(task)
    found = tuple((piece, _splits(piece, lanes)) for piece in parts)
    rows = any(group.rows for group in row_groups(task, parts))
    return found if any(splits for _, splits in found) and not rows else ()


def _splits(piece: Piece, lanes: int) -> bool:
    stage = piece.stage
    axes = vector_axes(piece, lanes)[:1]
    results = prod(a.extent for a in stage.axes)
    spatial = any(a.name in axes for a in stage.axes)
    return bool(axes) and prod(a.extent for a in stage.reduce) >= FOLDED and results <= NARROW[spatial]


def _main(found: tuple[tuple[Piece, bool], ...]) -> Piece:
    return max((piece for piece, splits in found if splits), key=lambda piece: piece.stage.points)


class SplitSketch:
    """See the module."""

    name = "split"
    version = 1

    def applies(self, task: Task, target: Target) -> bool:
        return target.kind == "cpu" and bool(folds(task, target.lanes(4)))

    @remembered
    def space(self, task: Task, target: Target) -> Space:
        main = _main(folds(task, target.lanes(4)))
        most = max(1, main.stage.points // PART_POINTS)
        knobs = (
            Knob("parts", tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most)),
            Knob("vectors", (1, 2, 4, 8, 16)),
            Knob("unroll", (1, 2, 4)),
        )
        wanted = 1 if target.threads == 1 else min(most, 4 * target.threads)
        return Space(
            sketch=self.name,
            version=self.version,
            knobs=knobs,
            legal=lambda columns: np.ones(len(columns["vectors"]), np.bool_),
            tiling=lambda columns: _tiling(main, target, columns),
            preferred={"parts": 1 << (wanted.bit_length() - 1), "vectors": 8, "unroll": 1},
        )

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        self.space(task, target).row(schedule)
        found = folds(task, target.lanes(4))
        steps: list[Stmt] = []
        made: list[Buffer] = []
        for piece, splits in found:
            parts = _parts(piece, schedule["parts"])
            if not splits:
                steps.append(plain_phase(piece, target))
            elif parts == 1:
                steps.append(lower(_nest(piece, schedule, target)))
            else:
                first, then = halves(piece, parts)
                made.append(own_buffer(first))
                steps += [lower(_nest(first, schedule, target)), plain_phase(then, target)]
        scratch = (*temporaries(task, (piece for piece, _ in found)), *made)
        return Kernel(params(task, {}), scratch, Block(tuple(steps)))


def _longest(stage: Stage) -> Axis:
    return max(stage.reduce, key=lambda axis: axis.extent)


def _parts(piece: Piece, wanted: int) -> int:
    """The most parts up to `wanted` that a piece can be cut into evenly."""
    extent = _longest(piece.stage).extent if piece.stage.reduce else 1
    return next(n for n in range(min(wanted, extent), 0, -1) if extent % n == 0)


def halves(piece: Piece, parts: int) -> tuple[Piece, Piece]:
    """The piece as two: each part of its longest reduction axis folded, then their results."""
    stage = piece.stage
    axis = _longest(stage)
    inside = axis.extent // parts
    part = Axis(PART, parts)
    parted = Stage(
        output=f"{PART}.{stage.output}",
        axes=(part, *stage.axes),
        body=substitute(stage.body, {axis.name: Var(PART) * inside + Var(axis.name)}),
        reduce=tuple(replace(a, extent=inside) if a is axis else a for a in stage.reduce),
        combiner=stage.combiner,
    )
    result = Load(parted.output, parted.index, stage.body.dtype)
    then = replace(stage, body=result, reduce=(part,))
    return Piece.of(parted), replace(piece, stage=then)


def _nest(piece: Piece, schedule: Schedule, target: Target) -> Nest:
    """One part a chunk."""
    lanes, stage = target.lanes(4), piece.stage
    vector = plain_nest(piece, target).vector
    spatial = any(a.name == vector for a in stage.axes)
    block = dict.fromkeys((a.name for a in stage.axes if a.name != PART), 0)
    if spatial:
        unroll = {stage.reduce[-1].name: schedule["unroll"]}
        return Nest(piece, lanes, vector, {vector: schedule["vectors"] * lanes}, block, unroll)
    return Nest(piece, lanes, vector, {}, block, {vector: schedule["vectors"]})


def _tiling(main: Piece, target: Target, columns: Columns) -> Tiling:
    stage = main.stage
    axis, vector = _longest(stage), plain_nest(main, target).vector
    one = np.ones(len(columns["vectors"]), np.int64)
    whole = {a.name: one * a.extent for a in (*stage.axes, *stage.reduce)}
    chunk = whole | {axis.name: -(-axis.extent // columns["parts"])}
    tile = dict.fromkeys(whole, one) | {stage.reduce[-1].name: columns["unroll"]}
    tile[vector] = np.minimum(columns["vectors"] * target.lanes(4), whole[vector])
    return Tiling(stage, (tile, chunk, whole), vector, columns["parts"])

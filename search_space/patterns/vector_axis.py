"""Which axis of a fused stage lies along the lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunewright.codegen.expr.expr import Expr, free_vars
from tunewright.codegen.expr.index import linear
from tunewright.graph.task import Axis

from .fused_stage import FusedStage

TRANSPOSE_SCORE = 1.25
"""Score of an access that a transposition in registers makes contiguous."""

LONG_FOLD = 1024
"""Folds from which on what is written once for all of them hardly counts."""


def vector_axes(fused_stage: FusedStage, lanes: int) -> list[str]:
    """The axes that may lie along the lanes, best first: those that make most loads and stores contiguous.

    A spatial axis wins over a reduction axis where both serve, since it needs no fold across lanes. What is written
    once a fold counts as much less as there are folds.
    """
    stage = fused_stage.stage
    folds = min(prod(a.extent for a in stage.reduce), LONG_FOLD)
    scores: dict[str, float] = {}
    for axis in (*stage.axes, *stage.reduce):
        is_reduction = axis in stage.reduce
        score = sum(_contiguity(x.index, axis.name) for x in fused_stage.reads)
        if not is_reduction:
            crossings = sum(_crossed_by(x.index, axis.name, stage.axes) != "" for x in fused_stage.reads)
            score += 2 * _contiguity(fused_stage.index, axis.name) / folds + TRANSPOSE_SCORE * crossings
        filled = 1.0 if axis.extent >= lanes else axis.extent / lanes
        scores[axis.name] = score * filled * (0.9 if is_reduction else 1.0)
    return sorted((a for a in scores if scores[a] > 0), key=lambda a: -scores[a])


def is_contiguous(index: Sequence[Expr], axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory, given their index in a tensor."""
    last = linear(index[-1]) if index else None
    return last is not None and last.coefficients.get(axis) == 1 and axis not in free_vars(*index[:-1])


def _contiguity(index: Sequence[Expr], axis: str) -> float:
    """Score an access along an axis: 1 if contiguous, 0.5 if constant, -1 for a gather."""
    if axis not in free_vars(*index):
        return 0.5
    return 1.0 if is_contiguous(index, axis) else -1.0


def _crossed_by(index: Sequence[Expr], vector: str, axes: Sequence[Axis]) -> str:
    """The axis along which an access is contiguous, if it moves with `vector` too, but not contiguously."""
    if vector not in free_vars(*index) or _contiguity(index, vector) > 0:
        return ""
    return next((a.name for a in axes if a.name != vector and _contiguity(index, a.name) == 1.0), "")


def crossing_axis(fused_stage: FusedStage, vector: str) -> str:
    """The axis to tile beside `vector` so that loads contiguous along it can be transposed in registers; "" if none."""
    axes = fused_stage.stage.axes
    if all(a.name != vector for a in axes):
        return ""
    return next(filter(None, (_crossed_by(x.index, vector, axes) for x in fused_stage.reads)), "")

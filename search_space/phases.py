"""Phases: pieces lowered without a choice of their own, beside the piece where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

from tunewright.codegen.expr import Expr, free_vars, loads
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Buffer, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Tensor

from .loops import lower
from .nest import Nest
from .pieces import Piece

CHUNK_POINTS = 16_384
"""Body evaluations below which a parallel chunk does not pay for the barrier."""


def buffer(tensor: Tensor) -> Buffer:
    """The buffer of a task's tensor in its plain layout."""
    return Buffer(tensor.name, tensor.shape, tensor.dtype)


def vector_axes(piece: Piece, lanes: int) -> list[str]:
    """The axes that may lie along the lanes, best first: those that make most loads and stores contiguous.

    Spatial axes win over reduction axes where both serve, since they need no fold across lanes.
    """
    stage = piece.stage
    scores: dict[str, float] = {}
    for axis in (*stage.axes, *stage.reduce):
        is_reduction = axis in stage.reduce
        score = sum(_ease(x.index, axis.name) for x in piece.reads)
        if not is_reduction:
            score += 2 * _ease(piece.index, axis.name)
        scores[axis.name] = score * min(axis.extent / lanes, 1.0) * (0.9 if is_reduction else 1.0)
    return sorted((a for a in scores if scores[a] > 0), key=lambda a: -scores[a])


def _ease(index: Sequence[Expr], axis: str) -> float:
    """1 for contiguous along the axis, a half for constant, less than nothing for a gather."""
    exprs = [e for e in index if axis in free_vars(e)]
    if not exprs:
        return 0.5
    last = index[-1]
    form = linear(last)
    contiguous = len(exprs) == 1 and exprs[0] is last and form is not None and form.coefficients.get(axis) == 1
    return 1.0 if contiguous and not loads(last) else -1.0


def plain_nest(piece: Piece, target: Target, fixed: frozenset[str] = frozenset()) -> Nest:
    """A nest with fair numbers: up to four vectors a tile, chunks large enough to be worth sharing."""
    lanes = target.lanes(4)
    stage = piece.stage
    vector = next((a for a in vector_axes(piece, lanes) if a not in fixed), "")
    tile = {vector: 4 * lanes} if any(a.name == vector for a in stage.axes) else {}
    unroll = {vector: 4} if any(a.name == vector for a in stage.reduce) else {}
    return Nest(piece, lanes, vector, tile, {}, unroll, fixed=fixed).with_chunks(CHUNK_POINTS)


def plain_phase(piece: Piece, target: Target) -> Stmt:
    """The piece as a phase of its own."""
    return lower(plain_nest(piece, target))

"""Phases: pieces lowered without a choice of their own, beside the piece where the time goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tunewright.codegen.expr import Expr, free_vars
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Block, Buffer, Kernel, Packing, Stmt
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Task, Tensor

from .loops import lower
from .nest import Nest
from .pieces import Piece

CHUNK_POINTS = 16_384
"""Body evaluations below which a parallel chunk does not pay for the barrier."""

TURNED = 1.25
"""What makes up for most of an access that isn't contiguous, where a transposition in registers makes it so."""


def buffer(tensor: Tensor) -> Buffer:
    """The buffer of a task's tensor in its plain layout."""
    return Buffer(tensor.name, tensor.shape, tensor.dtype)


def own_buffer(piece: Piece) -> Buffer:
    """The buffer of what a piece writes that is no tensor of the task: one element for each place of its axes."""
    return Buffer(piece.output, tuple(a.extent for a in piece.stage.axes), piece.stage.body.dtype)


def temporaries(task: Task, written: Iterable[Piece]) -> tuple[Buffer, ...]:
    """The buffers of a task's temporaries that these pieces write: what was merged into a piece needs none."""
    names = {piece.output for piece in written}
    return tuple(buffer(t) for t in task.temporaries if t.name in names)


def params(task: Task, packings: Mapping[str, Packing]) -> tuple[Buffer, ...]:
    """The parameters of a task's kernel, packed ones in their packed layout."""
    return tuple(
        Buffer(t.name, packings[t.name].shape, t.dtype) if t.name in packings else buffer(t)
        for t in task.inputs + task.outputs
    )


def vector_axes(piece: Piece, lanes: int) -> list[str]:
    """The axes that may lie along the lanes, best first: those that make most loads and stores contiguous.

    A spatial axis wins over a reduction axis where both serve, since it needs no fold across lanes. What is written
    once a fold counts as much less as there are folds.
    """
    stage = piece.stage
    folds = prod(a.extent for a in stage.reduce)
    scores: dict[str, float] = {}
    for axis in (*stage.axes, *stage.reduce):
        is_reduction = axis in stage.reduce
        score = sum(_ease(x.index, axis.name) for x in piece.reads)
        if not is_reduction:
            turned = sum(_turned(x.index, axis.name, stage.axes) != "" for x in piece.reads)
            score += 2 * _ease(piece.index, axis.name) / folds + TURNED * turned
        scores[axis.name] = score * min(axis.extent / lanes, 1.0) * (0.9 if is_reduction else 1.0)
    return sorted((a for a in scores if scores[a] > 0), key=lambda a: -scores[a])


def contiguous(index: Sequence[Expr], axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory, if these are their places in a tensor."""
    last = linear(index[-1]) if index else None
    return last is not None and last.coefficients.get(axis) == 1 and axis not in free_vars(*index[:-1])


def _ease(index: Sequence[Expr], axis: str) -> float:
    """1 for contiguous along the axis, a half for constant, less than nothing for a gather."""
    if axis not in free_vars(*index):
        return 0.5
    return 1.0 if contiguous(index, axis) else -1.0


def _turned(index: Sequence[Expr], vector: str, axes: Sequence[Axis]) -> str:
    """The axis along which an access is contiguous, if it moves with `vector` too, but not contiguously."""
    if vector not in free_vars(*index) or _ease(index, vector) > 0:
        return ""
    return next((a.name for a in axes if a.name != vector and _ease(index, a.name) == 1.0), "")


def crossing(piece: Piece, vector: str) -> str:
    """The axis to tile beside `vector` so that loads contiguous along it can be transposed in registers; "" if none."""
    axes = piece.stage.axes
    if all(a.name != vector for a in axes):
        return ""
    return next(filter(None, (_turned(x.index, vector, axes) for x in piece.reads)), "")


def plain_nest(piece: Piece, target: Target, fixed: frozenset[str] = frozenset()) -> Nest:
    """A nest with fair numbers: up to four vectors a tile, chunks large enough to be worth sharing.

    A piece that reads across its lanes has square tiles, which are transposed in registers.
    """
    lanes = target.lanes(4)
    stage = piece.stage
    vector = next((a for a in vector_axes(piece, lanes) if a not in fixed), "")
    crossed = crossing(piece, vector)
    tile = {vector: 4 * lanes} if any(a.name == vector for a in stage.axes) else {}
    if crossed and crossed not in fixed:
        tile = {vector: lanes, crossed: lanes}
    unroll = {vector: 4} if any(a.name == vector for a in stage.reduce) else {}
    return Nest(piece, lanes, vector, tile, {}, unroll, fixed=fixed).with_chunks(CHUNK_POINTS)


def plain_phase(piece: Piece, target: Target) -> Stmt:
    """The piece as a phase of its own."""
    return lower(plain_nest(piece, target))


def kernel_around(
    main: Stmt, task: Task, target: Target, before: Sequence[Piece], piece: Piece, after: Sequence[Piece]
) -> Kernel:
    """A task's kernel: `main`, which computes `piece`, between the phases of the pieces before and after it."""
    first, last = ([plain_phase(p, target) for p in pieces] for pieces in (before, after))
    scratch = temporaries(task, (*before, piece, *after))
    return Kernel(params(task, {}), scratch, Block((*first, main, *last)))

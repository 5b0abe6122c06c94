"""Parts: a long sum computed by several blocks, each of which writes what it has; another launch adds that up.

So there is work for all multiprocessors where a product has few rows and columns, but much depth (split-K).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var
from tunewright.codegen.ir import Block, Buffer, Kernel, Stmt, Store
from tunewright.codegen.lanes import lined
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task

from ..nests.phases import params, temporaries
from ..nests.pieces import Piece
from ..products.product import Product
from ..space import Columns
from .elements import plain_launch
from .sides import Sides, size, tiles

PARTS = "parts"
"""The buffer of sums before they are added up: which part, then the axes of the product."""

PART = "part"
"""Its first axis."""

BLOCKS = 4
"""Of each multiprocessor: where there are so many, more to share the work among gain nothing."""


def stored_part(found: Product, part: Expr, at: Mapping[str, Expr], wide: int, total: Expr) -> Stmt:
    """Write sums of one part, of `wide` neighbours along the product's vector axis, whose place is in `at`."""
    names = [axis.name for axis in found.piece.stage.axes]
    index = [lined(at[name], wide) if name == found.vector else at[name] for name in names]
    return Store(PARTS, (part, *index), total)


def may_split(found: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whether blocks share the rounds of a tile evenly, if they do, and there would be few blocks else."""
    rounds = -(-size(Sides.of(found).depth) // columns["block_depth"])
    splits = columns["splits"]
    is_worth = (rounds % splits == 0) & (tiles(found, columns) * splits <= BLOCKS * target.threads)
    return np.asarray((splits == 1) | is_worth)


def kernel(task: Task, found: Product, main: Stmt, splits: int) -> Kernel:
    """The launch of a product, with what is to be done before and after it."""
    after = (_added_up(found, splits), *found.after) if splits > 1 else found.after
    scratch = temporaries(task, (*found.before, found.piece, *found.after))
    if splits > 1:
        scratch = (*scratch, _parts_buffer(found, splits))
    launches = (*map(plain_launch, found.before), main, *map(plain_launch, after))
    return Kernel(params(task, {}), tuple(scratch), Block(launches))


def _parts_buffer(found: Product, splits: int) -> Buffer:
    """Room for all parts."""
    return Buffer(PARTS, (splits, *(axis.extent for axis in found.piece.stage.axes)), DType.F32)


def _added_up(found: Product, splits: int) -> Piece:
    """The product's piece with its sum over parts instead of terms."""
    piece, stage = found.piece, found.piece.stage
    place = (Var(PART), *(Var(axis.name) for axis in stage.axes))
    body = Load(PARTS, place, DType.F32)
    parts = Stage(stage.output, stage.axes, body, (Axis(PART, splits),), "sum", stage.index)
    return replace(piece, stage=parts)

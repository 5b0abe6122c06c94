"""Sides: the axes of a product as rows, columns and a reduction, each counted by one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.gpu import BLOCK_THREADS, EXCHANGED_ALIGN, SM_REGISTERS, THREAD_REGISTERS, WARP
from tunewright.codegen.expr import Expr, op, transform
from tunewright.codegen.ir import If, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis

from ..products.product import Product
from ..space import Columns, Tiling
from .elements import spread

Sizes = NDArray[np.int64]
"""A number of each point."""

Count = TypeVar("Count", int, Sizes)
"""One number, or one of each point."""

LEAST = 16
"""Rows and columns of the smallest tile of a block."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The flattened axes of a product: those of the rows, the columns, both operands, and the reduction."""

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @staticmethod
    def of(found: Product) -> Sides:
        stage = found.piece.stage
        axes = {axis.name: axis for axis in stage.axes}
        return Sides(
            tuple(axes[name] for name in found.rows),
            tuple(axes[name] for name in (*found.columns, found.vector)),
            tuple(axes[name] for name in found.batch),
            stage.reduce,
        )

    def tile(self, rows: Sizes, columns: Sizes, depth: Sizes) -> Mapping[str, Sizes]:
        """How far tiles of so many rows and columns, and of such depth, reach along each axis."""
        found = {axis.name: np.ones_like(rows) for axis in self.batch}
        for axes, left in ((self.rows, rows), (self.columns, columns), (self.depth, depth)):
            for axis in reversed(axes):
                found[axis.name] = np.clip(left, 1, axis.extent)
                left = -(-left // axis.extent)
        return found


def size(axes: Sequence[Axis]) -> int:
    """Places along flattened axes."""
    return prod(axis.extent for axis in axes)


def steps(axes: Sequence[Axis], step: Count) -> Count:
    """How many it takes to cover flattened axes."""
    return -(-size(axes) // step)


def within(number: Expr, total: int, step: int, stmt: Stmt) -> Stmt:
    """The statement where a number is below the total, if tiles of `step` don't cover that evenly."""
    return If(op("lt", number, total), stmt) if total % step else stmt


def tile_count(found: Product, columns: Columns) -> Sizes:
    """How many tiles of blocks cover a product."""
    sides = Sides.of(found)
    down, across = steps(sides.rows, columns["block_rows"]), steps(sides.columns, columns["block_columns"])
    return np.asarray(size(sides.batch) * down * across)


def fill(found: Product, columns: Columns, least_depth: int) -> NDArray[np.bool_]:
    """Whether no tile of a block is mostly beyond the edges, but for the smallest."""
    sides = Sides.of(found)
    down, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    filled = (down <= LEAST) | (down < 2 * size(sides.rows))
    filled &= (across <= LEAST) | (across < 2 * size(sides.columns))
    return np.asarray(filled & ((depth <= least_depth) | (depth < 2 * size(sides.depth))))


def held(target: Target, threads: Sizes, registers: Sizes, smem_bytes: Sizes) -> NDArray[np.bool_]:
    """Whether a multiprocessor holds a block of so many threads, with so many registers each and such shared memory."""
    assert target.gpu is not None
    is_held = (threads >= WARP) & (threads <= BLOCK_THREADS)
    is_held &= smem_bytes + 2 * EXCHANGED_ALIGN <= target.gpu.block_smem_bytes  # some lies idle between buffers
    return np.asarray(is_held & (registers <= THREAD_REGISTERS) & (registers * threads <= SM_REGISTERS))


def tiling(found: Product, columns: Columns, inner: tuple[Sizes, Sizes, Sizes]) -> Tiling:
    """What points do to the loops of a product.

    The inner tile, of so many rows and columns and such depth; that of a round of a block; that of the block.
    """
    sides, stage = Sides.of(found), found.piece.stage
    down, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    whole = np.full_like(depth, size(sides.depth))
    levels = sides.tile(*inner), sides.tile(down, across, depth), sides.tile(down, across, whole)
    extents = {axis.name: np.full_like(depth, axis.extent) for axis in (*stage.axes, *stage.reduce)}
    # Where tiles of the tail alone are shared, all count as if they were: so many waves take as long, see `may_split`.
    chunks = tile_count(found, columns) * columns["splits"]
    return Tiling(stage, (*levels, extents), found.vector, chunks)


def first_enough(
    found: Product, target: Target, choices: Sequence[Mapping[str, int]], legal: Callable[[Columns], NDArray[np.bool_]]
) -> Mapping[str, int]:
    """The first of the legal choices that gives each multiprocessor a tile, else the last of them.

    The last of all choices where none is legal.
    """
    left = choices[-1]
    for values in choices:
        columns = {name: np.array([value]) for name, value in values.items()}
        if legal(columns)[0]:
            left = values
            if int(tile_count(found, columns)[0]) >= target.threads:
                break
    return left


def finished(found: Product, at: Mapping[str, Expr], wide: int, total: Expr) -> Stmt:
    """Write what a product comes to: of sums of `wide` neighbours along its vector axis, whose place is in `at`."""

    def laid(value: Expr) -> Expr:
        return spread(value, at, found.vector, wide)

    piece = found.piece
    value = transform(laid(piece.finish), lambda node: total if piece.is_result(node) else node)
    return Store(piece.output, tuple(map(laid, piece.index)), value)

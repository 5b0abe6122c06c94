"""Sides: the axes of a product, flattened into rows, columns, batch and depth, and the operands along them.

Operand tiles are what one round of a block reads of an operand, shared out among its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Expr, Load, Var, loads, op, transform, variables
from tunewright.codegen.gpu import BLOCK_THREADS, EXCHANGED_ALIGN, SM_REGISTERS, THREAD_REGISTERS, WARP
from tunewright.codegen.ir.ir import Block, For, If, LoopKind, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis

from ...axes import axis_indices
from ...patterns.fused_stage import FusedStage
from ...patterns.product import Product
from ...patterns.vector_axis import is_contiguous
from ...space import BlockShape, Columns, Size, Tiling, flat_extents, point_columns
from .element_launch import vectorize_at

Sizes = NDArray[np.int64]
"""A number for each point."""

Count = TypeVar("Count", int, Sizes)
"""One number, or one for each point."""

SPLITS = 1, 2, 4, 8
"""Blocks that may share a tile."""

LEAST_SHARED = 8
"""Rounds of each block of those that share a tile by default: another launch adds up what they have."""

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
    def of(product: Product) -> Sides:
        stage = product.fused_stage.stage
        axes = {axis.name: axis for axis in stage.axes}
        return Sides(
            tuple(axes[name] for name in product.rows),
            tuple(axes[name] for name in (*product.columns, product.vector)),
            tuple(axes[name] for name in product.batch),
            stage.reduce,
        )

    def tile(self, rows: Sizes, columns: Sizes, depth: Sizes) -> Mapping[str, Size]:
        """The extents along each axis of tiles of so many rows, columns and depth."""
        return flat_extents(self.rows, rows) | flat_extents(self.columns, columns) | flat_extents(self.depth, depth)


def size(axes: Sequence[Axis]) -> int:
    """The extent of flattened axes."""
    return prod(axis.extent for axis in axes)


def steps(axes: Sequence[Axis], step: Count) -> Count:
    """The steps that cover flattened axes."""
    return -(-size(axes) // step)


def guard_extent(number: Expr, total: int, step: int, stmt: Stmt) -> Stmt:
    """Guard a statement to numbers below the total, if steps don't cover it evenly."""
    return If(op("lt", number, total), stmt) if total % step else stmt


def tile_count(product: Product, columns: Columns) -> Sizes:
    """How many tiles of blocks cover a product."""
    sides = Sides.of(product)
    down, across = steps(sides.rows, columns["block_rows"]), steps(sides.columns, columns["block_columns"])
    return np.asarray(size(sides.batch) * down * across)


def are_tiles_full(product: Product, columns: Columns, least_depth: int) -> NDArray[np.bool_]:
    """Whether no tile of a block is mostly beyond the edges, but for the smallest."""
    sides = Sides.of(product)
    down, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    filled = (down <= LEAST) | (down < 2 * size(sides.rows))
    filled &= (across <= LEAST) | (across < 2 * size(sides.columns))
    return np.asarray(filled & ((depth <= least_depth) | (depth < 2 * size(sides.depth))))


def fits_multiprocessor(target: Target, block: BlockShape) -> NDArray[np.bool_]:
    """Whether a multiprocessor has what blocks take."""
    assert target.gpu is not None
    threads, registers = block.threads, block.registers
    is_held = (threads >= WARP) & (threads <= BLOCK_THREADS)
    is_held &= block.smem_bytes + 2 * EXCHANGED_ALIGN <= target.gpu.block_smem_bytes  # some lies idle between buffers
    return np.asarray(is_held & (registers <= THREAD_REGISTERS) & (registers * threads <= SM_REGISTERS))


def tiling(product: Product, columns: Columns, inner: tuple[Sizes, Sizes, Sizes]) -> Tiling:
    """The tiling of a product.

    The inner tile, of so many rows and columns and such depth; that of a round of a block; that of the block.
    """
    sides = Sides.of(product)
    down, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    whole = np.full_like(depth, size(sides.depth))
    levels = sides.tile(*inner), sides.tile(down, across, depth), sides.tile(down, across, whole)
    # Where tiles of the tail alone are shared, all count as if they were: so many waves take as long, see `may_split`.
    chunks = tile_count(product, columns) * columns["splits"]
    return Tiling.of(product.fused_stage.stage, product.vector, columns, levels, chunks)


def pick_default(
    product: Product,
    target: Target,
    choices: Sequence[Mapping[str, int]],
    legal: Callable[[Columns], NDArray[np.bool_]],
) -> Mapping[str, int]:
    """The first of the legal choices that gives each multiprocessor a tile.

    Else that with the most tiles, by blocks that share their sums while there are rounds enough for that; the last of
    all choices where none is legal.
    """
    able = [values for values in choices if legal(point_columns(values))[0]]
    counts = [int(tile_count(product, point_columns(values))[0]) for values in able]
    if not able:
        return choices[-1]
    enough = (values for values, count in zip(able, counts, strict=True) if count >= target.threads)
    if choice := next(enough, None):
        return choice
    count = max(counts)
    choice = able[counts.index(count)]
    rounds = steps(Sides.of(product).depth, choice["block_depth"])
    for splits in SPLITS:
        shared = {**choice, "splits": splits}
        if legal(point_columns(shared))[0] and rounds >= LEAST_SHARED * splits:
            choice = shared
        if count * splits >= target.threads:
            break
    return choice


def first_legal(
    choices: Sequence[Mapping[str, int]], legal: Callable[[Columns], NDArray[np.bool_]]
) -> Mapping[str, int]:
    """The first of the choices that is legal, else the last."""
    return next((values for values in choices if legal(point_columns(values))[0]), choices[-1])


NOTHING_KNOWN: Mapping[Expr, Expr] = MappingProxyType({})


def store_epilogue(
    fused_stage: FusedStage,
    vector: str,
    at: Mapping[str, Expr],
    wide: int,
    total: Expr,
    known: Mapping[Expr, Expr] = NOTHING_KNOWN,
) -> Stmt:
    """Apply the epilogue to results of `wide` neighbours along the axis `vector`, at the indices `at`, and store them.

    `known`: where loads of the epilogue have been read to (see `row_loads`).
    """

    def at_place(value: Expr) -> Expr:
        return vectorize_at(value, at, vector, wide)

    def visit(node: Expr) -> Expr:
        return total if fused_stage.is_result(node) else known.get(node, node)

    value = transform(at_place(fused_stage.epilogue), visit)
    return Store(fused_stage.output, tuple(map(at_place, fused_stage.index)), value)


def row_loads(product: Product, at: Mapping[str, Expr], wide: int) -> tuple[Load, ...]:
    """What the epilogue reads of each row beside the sums, for `wide` neighbours at the indices `at`."""
    rows, vector = {axis.name for axis in Sides.of(product).rows}, product.vector
    read = (load for load in loads(product.fused_stage.epilogue) if not product.fused_stage.is_result(load))
    return tuple(
        part
        for load in read
        if rows & set(chain.from_iterable(map(variables, load.index)))
        for part in loads(vectorize_at(load, at, vector, wide))[:1]
    )


ADDRESS_REGISTERS = 2
"""Registers of each access of a thread, computed before the rounds."""


@dataclass(frozen=True, slots=True)
class ProductOperand:
    """An operand of a product, with its own axes and those of the reduction."""

    load: Load
    along: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def is_deep(self) -> bool:
        """Whether neighbours in memory lie along the reduction."""
        return is_contiguous(self.load.index, self.depth[-1].name)

    @property
    def last(self) -> Axis:
        """The axis that may be contiguous."""
        return (self.depth if self.is_deep or not self.along else self.along)[-1]

    def wide(self, widths: Sequence[int]) -> int:
        """The first of these numbers of neighbours that can be read at once everywhere, else 1."""
        if not is_contiguous(self.load.index, self.last.name):
            return 1
        return next((wide for wide in widths if self.last.extent % wide == 0), 1)


def operands(product: Product) -> tuple[ProductOperand, ProductOperand]:
    """The left operand, with the rows, and the right one, with the columns."""
    sides = Sides.of(product)
    return ProductOperand(product.broadcast, sides.rows, sides.depth), ProductOperand(
        product.panel, sides.columns, sides.depth
    )


def accesses(extent: Count, block_depth: Count, wide: int, threads: Count) -> Count:
    """A thread's accesses for `extent` by `block_depth` elements, `wide` neighbours at once."""
    return -(-extent * block_depth // (wide * threads))


@dataclass(frozen=True, slots=True)
class OperandTile:
    """`extent` places along the operand's own axes by `block_depth` along the reduction.

    Both are multiples of the neighbours that are moved at once.
    """

    operand: ProductOperand
    begin: Expr  # the first place along the operand's own axes
    extent: int
    block_depth: int
    batch: Mapping[str, Expr]  # the place along all other axes
    threads: int

    def for_each(self, wide: int, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """Call `body` for each access of a thread: its number, its index along the operand, and its index in depth."""
        number = Var("n") * self.threads + Var("thread")
        total = self.extent * self.block_depth // wide
        stmt = body(Var("n"), *self._position(number, wide))
        if total % self.threads:
            stmt = If(op("lt", number, total), stmt)
        return For("n", accesses(self.extent, self.block_depth, wide, self.threads), stmt, LoopKind.UNROLL)

    def _position(self, number: Expr, wide: int) -> tuple[Expr, Expr]:
        if self.operand.is_deep:
            across = self.block_depth // wide
            return number // across, number % across * wide
        across = self.extent // wide
        return number % across * wide, number // across

    def element(self, step: Expr, place: Expr, deep: Expr, wide: int) -> Expr:
        """The `wide` neighbours at an index of the tile of a round."""
        at = dict(self.batch)
        for axes, number in self._sides(step, place, deep):
            width = wide if axes[-1:] == (self.operand.last,) else 1
            at |= axis_indices(axes, number // width, width)
        return vectorize_at(self.operand.load, at, self.operand.last.name, wide)

    def inside(self, step: Expr, place: Expr, deep: Expr, stmt: Stmt) -> Stmt:
        """Guard a statement to be inside of the operand."""
        extents = self.extent, self.block_depth
        for (axes, number), extent in zip(self._sides(step, place, deep), extents, strict=True):
            stmt = guard_extent(number, size(axes), extent, stmt)
        return stmt

    def outside(self, step: Expr, place: Expr, deep: Expr, stmt: Stmt) -> Stmt:
        """Guard a statement to be beyond an edge of the operand."""
        extents = self.extent, self.block_depth
        conditions = [
            op("lt", number, size(axes))
            for (axes, number), extent in zip(self._sides(step, place, deep), extents, strict=True)
            if size(axes) % extent
        ]
        return If(op("not", reduce(partial(op, "and"), conditions)), stmt) if conditions else Block(())

    def _sides(self, step: Expr, place: Expr, deep: Expr) -> tuple[tuple[tuple[Axis, ...], Expr], ...]:
        operand = self.operand
        return (operand.along, self.begin + place), (operand.depth, step * self.block_depth + deep)

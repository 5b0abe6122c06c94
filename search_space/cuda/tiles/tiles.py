"""Tiles of a product that a launch computes, each by one block or by several that share its sum.

Blocks that share a tile write what they have, each a part; another launch adds that up. So there is work for all
multiprocessors where a product has few tiles, but much depth (split-K). And where the tiles come to some whole waves,
counted as one tile for each multiprocessor, and a rest that leaves most of them idle, the rest alone may be shared, by
a launch of its own: then little is written that has to be added up. So the hybrid of Osama and others, Stream-K:
Work-Centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU, 2023, shares the rest; here each
tile of it is shared by equally many blocks, and the launches follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.ir.ir import Buffer, For, Kernel, LoopKind, Packing, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ...axes import axis_indices, unravel
from ...buffers import NOTHING, kernel_around
from ...patterns.fused_stage import FusedStage
from ...patterns.product import Product
from ...space import Columns
from .element_launch import PLAIN_THREADS, launch, plain_launch
from .reductions import PARTS, combine_parts, part_width
from .sides import NOTHING_KNOWN, Sides, guard_extent, row_loads, size, steps, store_epilogue, tile_count

SHARED = "{} blocks share the rounds of a tile; a launch of its own adds up what they have."
TAIL = "Only tiles that are left after whole waves are shared."
IN_TURN = "Blocks in a row take {} tiles of rows in turn, for the columns that they share."
"""What the knobs say that products have in common."""

BLOCKS = 4
"""Blocks of a multiprocessor beyond which more blocks gain nothing."""


class TilePlace(NamedTuple):
    """The tile of a block: part of the reduction, tile of the launch, batch indices, first row and column.

    Where rows are cut into patches, the first row is that of each axis.
    """

    part: Expr
    tile: Expr
    batch: Mapping[str, Expr]
    row: Expr
    column: Expr
    corner: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of a product's result: `count` of them from `first` on."""

    product: Product
    rows: int  # of a tile
    columns: int
    group: int  # tiles of rows that are counted in turn, for the columns that they share; divides their number
    splits: int  # blocks that share the sum of one, and divide its rounds evenly
    first: int
    count: int
    patch: tuple[int, ...] = ()  # rows of a tile along each of their axes; (): they are counted as one

    @staticmethod
    def of(product: Product, values: Mapping[str, int]) -> Tiles:
        """All that there are, by a schedule's values."""
        sides, patch = Sides.of(product), patch_of(product, values)
        tiles = Tiles(
            product,
            rows=values["block_rows"],
            columns=values["block_columns"],
            group=values.get("group", 1),
            splits=values["splits"],
            first=0,
            count=0,
            patch=patch,
        )
        count = size(sides.batch) * prod(tiles.row_steps) * steps(sides.columns, tiles.columns)
        return replace(tiles, count=count)

    @property
    def row_steps(self) -> tuple[int, ...]:
        """Tiles that cover the rows, along each of their axes or all as one."""
        axes = Sides.of(self.product).rows
        if not self.patch:
            return (steps(axes, self.rows),)
        return tuple(-(-axis.extent // extent) for axis, extent in zip(axes, self.patch, strict=True))

    def waves(self, multiprocessors: int) -> tuple[Tiles, Tiles]:
        """Split the tiles into whole waves, which blocks don't share, and the rest."""
        rest = self.count % multiprocessors
        whole = self.count - rest
        return replace(self, splits=1, count=whole), replace(self, first=whole, count=rest)

    def rounds(self, depth: int) -> int:
        """The rounds of a block, each of `depth` terms."""
        return steps(Sides.of(self.product).depth, depth) // self.splits

    @property
    def buffer(self) -> Buffer:
        """The buffer of sums before they are added up: which part, tile of the launch, row and column within that."""
        return Buffer(PARTS, (self.splits, self.count, self.rows, self.columns), self.product.dtype)

    def blocks(self, body: Callable[[TilePlace], Stmt]) -> Stmt:
        """The launch: a block for each part of each tile."""
        return For("block", self.total, body(self.place_of(Var("block"))), LoopKind.BLOCK)

    @property
    def total(self) -> int:
        """Parts of all tiles."""
        return self.splits * self.count

    def place_of(self, number: Expr) -> TilePlace:
        """The tile of part `number`, of `total`."""
        return self._place(*unravel(number, (self.splits, self.count)))

    def _place(self, part: Expr, tile: Expr) -> TilePlace:
        sides = Sides.of(self.product)
        bands, across = prod(self.row_steps) // self.group, steps(sides.columns, self.columns)
        batch, band, column, within_band = unravel(tile + self.first, (size(sides.batch), bands, across, self.group))
        number = band * self.group + within_band
        row, corner = number * self.rows, dict[str, Expr]()
        if self.patch:
            along = zip(sides.rows, unravel(number, self.row_steps), self.patch, strict=True)
            row, corner = const(0), {axis.name: at * extent for axis, at, extent in along}
        return TilePlace(part, tile, axis_indices(sides.batch, batch), row, column * self.columns, corner)

    def store(
        self,
        place: TilePlace,
        row: Expr,
        column: Expr,
        wide: int,
        total: Expr,
        known: Mapping[Expr, Expr] = NOTHING_KNOWN,
    ) -> Stmt:
        """Write sums of `wide` neighbours at a row and a column of a tile: the results, or their part.

        Nothing beyond the last column. For rows see `within_rows`, which serves many columns at once. `known`: see
        `store_epilogue`.
        """
        if self.splits > 1:
            stmt: Stmt = Store(PARTS, (place.part, place.tile, row, ramp(column, wide)), total)
        else:
            stmt = self._store_epilogue(self._at(place, row, column, wide), wide, total, known)
        return self.within_columns(place, column, stmt)

    def _store_epilogue(
        self, at: Mapping[str, Expr], wide: int, total: Expr, known: Mapping[Expr, Expr] = NOTHING_KNOWN
    ) -> Stmt:
        return store_epilogue(self.product.fused_stage, self.product.vector, at, wide, total, known)

    def loads(self, place: TilePlace, row: Expr, column: Expr, wide: int) -> tuple[Load, ...]:
        """What `store` reads of each row."""
        if self.splits > 1:
            return ()
        return row_loads(self.product, self._at(place, row, column, wide), wide)

    def within_rows(self, place: TilePlace, row: Expr, stmt: Stmt) -> Stmt:
        """The statement, unless a row of a tile is beyond the last one."""
        axes = Sides.of(self.product).rows
        if not self.patch:
            return guard_extent(place.row + row, size(axes), self.rows, stmt)
        for axis, extent in zip(axes, self.patch, strict=True):
            stmt = guard_extent(self._rows_at(place, row)[axis.name], axis.extent, extent, stmt)
        return stmt

    def _rows_at(self, place: TilePlace, row: Expr) -> Mapping[str, Expr]:
        """The place along each axis of a row of a tile."""
        axes = Sides.of(self.product).rows
        if not self.patch:
            return axis_indices(axes, place.row + row)
        inside = zip(axes, unravel(row, self.patch), strict=True)
        return {axis.name: place.corner[axis.name] + at for axis, at in inside}

    def within_columns(self, place: TilePlace, column: Expr, stmt: Stmt) -> Stmt:
        """The statement, unless a column of a tile is beyond the last one."""
        return guard_extent(place.column + column, size(Sides.of(self.product).columns), self.columns, stmt)

    def _at(self, place: TilePlace, row: Expr, column: Expr, wide: int) -> Mapping[str, Expr]:
        """The indices of the first of `wide` neighbours."""
        across = axis_indices(Sides.of(self.product).columns, (place.column + column) // wide, wide)
        return {**place.batch, **self._rows_at(place, row), **across}

    def add_parts(self) -> Stmt:
        """The launch that adds the parts up: a thread for some neighbours of the result."""
        wide = part_width(Sides.of(self.product).columns[-1].extent)
        counts = self.count, self.rows, self.columns // wide

        def body(number: Expr) -> Stmt:
            tile, row, across = unravel(number, counts)
            place, column = self._place(const(0), tile), across * wide
            write = partial(self._store_epilogue, self._at(place, row, column, wide), wide)
            stmt = combine_parts("add", self.buffer, (tile, row, column), write, wide)
            return self.within_rows(place, row, self.within_columns(place, column, stmt))

        return launch(body, prod(counts), PLAIN_THREADS)


def patch_of(product: Product, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Rows of a tile along each of their axes, of a schedule that says how high and wide patches are; else ().

    Of one schedule, or of many, by arrays.
    """
    if "patch_height" not in values:
        return ()
    height, width = values["patch_height"], values["patch_width"]
    left, one = -(-values["block_rows"] // (height * width)), height // height
    outer = len(Sides.of(product).rows) - 2
    return (*[one] * (outer - 1), left, height, width) if outer else (height, width)


def may_split(product: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whether blocks share the rounds of a tile evenly, if they do, and there would be few blocks else.

    Where they share tiles of the `tail` alone, they are a wave at most, after others.
    """
    rounds = steps(Sides.of(product).depth, columns["block_depth"])
    splits, is_tail, count = columns["splits"], columns["tail"] == 1, tile_count(product, columns)
    rest = count % target.threads
    is_rest = (count > rest) & (rest > 0) & (rest * splits <= target.threads)
    is_worth = np.where(is_tail, is_rest, count * splits <= BLOCKS * target.threads)
    return np.asarray(np.where(splits == 1, ~is_tail, is_worth & (rounds % splits == 0)))


def kernel(
    task: Task,
    target: Target,
    product: Product,
    values: Mapping[str, int],
    lower: Callable[[Tiles], Stmt],
    packings: Mapping[str, Packing] = NOTHING,
    plain: Callable[[FusedStage], Stmt] = plain_launch,
) -> Kernel:
    """The kernel of a product's tiles, with the launches before and after them, which `plain` writes.

    `packings`: those of constants in another layout than the task's.
    """
    tiles = Tiles.of(product, values)
    scratch: list[Buffer] = []
    launches: list[Stmt] = []
    for part in tiles.waves(target.threads) if values["tail"] else (tiles,):
        launches.append(lower(part))
        if part.splits > 1:
            scratch.append(part.buffer)
            launches.append(part.add_parts())
    return kernel_around(launches, task, product.stages, plain, packings, scratch)

"""Tiles: those of a product that a launch computes, each by one block or by several that share its sum.

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
from functools import partial, reduce
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Expr, Load, Var, const, op
from tunewright.codegen.ir import Alloc, Block, Buffer, For, Kernel, LoopKind, Packing, Scope, Stmt, Store
from tunewright.codegen.lanes import lined
from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from ..nests.digits import digits, places
from ..nests.phases import params, temporaries
from ..products.product import Product
from ..space import Columns
from .elements import PLAIN_THREADS, launch, plain_launch
from .sides import Sides, finished, size, steps, tile_count, within

PARTS = "parts"
"""The buffer of sums before they are added up: which part, tile of the launch, row and column within that."""

WHOLE = "whole"
"""The registers of those that are added up."""

SPLITS = 1, 2, 4, 8
"""Blocks that may share a tile."""

BLOCKS = 4
"""Of each multiprocessor: where there are so many, more to share the work among gain nothing."""


NOTHING: Mapping[str, Packing] = MappingProxyType({})
"""Nothing packed."""


class Place(NamedTuple):
    """Of a block: which part of the reduction, tile of the launch, place of the batch, first row and column."""

    part: Expr
    tile: Expr
    batch: Mapping[str, Expr]
    row: Expr
    column: Expr


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of a product's result, `count` tiles from the `first` on."""

    found: Product
    rows: int  # of a tile
    columns: int
    group: int  # tiles of rows that are counted in turn, for the columns that they share; divides their number
    splits: int  # blocks that share the sum of one, and divide its rounds evenly
    first: int
    count: int

    @staticmethod
    def of(found: Product, values: Mapping[str, int]) -> Tiles:
        """All that there are, by a schedule's values."""
        rows, columns = values["block_rows"], values["block_columns"]
        sides = Sides.of(found)
        count = size(sides.batch) * steps(sides.rows, rows) * steps(sides.columns, columns)
        return Tiles(found, rows, columns, values.get("group", 1), values["splits"], first=0, count=count)

    def waves(self, multiprocessors: int) -> tuple[Tiles, Tiles]:
        """The same in whole waves, which nobody shares, and what is left."""
        left = self.count % multiprocessors
        whole = self.count - left
        return replace(self, splits=1, count=whole), replace(self, first=whole, count=left)

    def rounds(self, depth: int) -> int:
        """Of a block, each of which goes so deep along the reduction."""
        return steps(Sides.of(self.found).depth, depth) // self.splits

    @property
    def buffer(self) -> Buffer:
        """Room for all parts."""
        return Buffer(PARTS, (self.splits, self.count, self.rows, self.columns), self.found.dtype)

    def blocks(self, body: Callable[[Place], Stmt]) -> Stmt:
        """The launch: a block for each part of each tile."""
        part, tile = digits(Var("block"), (self.splits, self.count))
        return For("block", self.splits * self.count, body(self._place(part, tile)), LoopKind.BLOCK)

    def _place(self, part: Expr, tile: Expr) -> Place:
        sides = Sides.of(self.found)
        bands, across = steps(sides.rows, self.rows) // self.group, steps(sides.columns, self.columns)
        batch, band, column, within_band = digits(tile + self.first, (size(sides.batch), bands, across, self.group))
        row = (band * self.group + within_band) * self.rows
        return Place(part, tile, places(sides.batch, batch), row, column * self.columns)

    def stored(self, place: Place, row: Expr, column: Expr, wide: int, total: Expr) -> Stmt:
        """Write sums of `wide` neighbours at a row and a column of a tile: what these places come to, or a part of it.

        Nothing where that is beyond the last column. Of rows see `within_rows`, asked once for many columns.
        """
        if self.splits > 1:
            stmt: Stmt = Store(PARTS, (place.part, place.tile, row, lined(column, wide)), total)
        else:
            stmt = self._finished(place, row, column, wide, total)
        return self._within_columns(place, column, stmt)

    def within_rows(self, place: Place, row: Expr, stmt: Stmt) -> Stmt:
        """The statement, unless a row of a tile is beyond the last one."""
        return within(place.row + row, size(Sides.of(self.found).rows), self.rows, stmt)

    def _within_columns(self, place: Place, column: Expr, stmt: Stmt) -> Stmt:
        return within(place.column + column, size(Sides.of(self.found).columns), self.columns, stmt)

    def _finished(self, place: Place, row: Expr, column: Expr, wide: int, total: Expr) -> Stmt:
        sides = Sides.of(self.found)
        across = places(sides.columns, (place.column + column) // wide, wide)
        at = {**place.batch, **places(sides.rows, place.row + row), **across}
        return finished(self.found, at, wide, total)

    def added_up(self) -> Stmt:
        """The launch that adds the parts up: a thread for some neighbours of the result."""
        last, dtype = Sides.of(self.found).columns[-1].extent, self.found.dtype
        wide = next(n for n in (4, 2, 1) if last % n == 0)
        counts = self.count, self.rows, self.columns // wide

        def body(number: Expr) -> Stmt:
            tile, row, across = digits(number, counts)
            place, column, own = self._place(const(0), tile), across * wide, (lined(const(0), wide),)
            each: list[Expr] = [
                Load(PARTS, (const(part), tile, row, lined(column, wide)), dtype) for part in range(self.splits)
            ]
            total = Store(WHOLE, own, reduce(partial(op, "add"), each))
            finish = self._finished(place, row, column, wide, Load(WHOLE, own, dtype))
            stmt = Alloc(Buffer(WHOLE, (wide,), dtype, Scope.REGISTER), Block((total, finish)))
            return self.within_rows(place, row, self._within_columns(place, column, stmt))

        return launch(body, prod(counts), PLAIN_THREADS)


def may_split(found: Product, target: Target, columns: Columns) -> NDArray[np.bool_]:
    """Whether blocks share the rounds of a tile evenly, if they do, and there would be few blocks else.

    Where they share tiles of the `tail` alone, they are a wave at most, after others.
    """
    rounds = steps(Sides.of(found).depth, columns["block_depth"])
    splits, is_tail, count = columns["splits"], columns["tail"] == 1, tile_count(found, columns)
    left = count % target.threads
    is_rest = (count > left) & (left > 0) & (left * splits <= target.threads)
    is_worth = np.where(is_tail, is_rest, count * splits <= BLOCKS * target.threads)
    return np.asarray(np.where(splits == 1, ~is_tail, is_worth & (rounds % splits == 0)))


def kernel(
    task: Task,
    target: Target,
    found: Product,
    values: Mapping[str, int],
    lower: Callable[[Tiles], Stmt],
    packings: Mapping[str, Packing] = NOTHING,
) -> Kernel:
    """The launches of a product's tiles, with what is to be done before and after them.

    `packings`: of constants that come otherwise than the task has them.
    """
    tiles = Tiles.of(found, values)
    scratch = list(temporaries(task, (*found.before, found.piece, *found.after)))
    launches = [plain_launch(piece) for piece in found.before]
    for one in tiles.waves(target.threads) if values["tail"] else (tiles,):
        launches.append(lower(one))
        if one.splits > 1:
            scratch.append(one.buffer)
            launches.append(one.added_up())
    launches += [plain_launch(piece) for piece in found.after]
    return Kernel(params(task, packings), tuple(scratch), Block(tuple(launches)), dict(packings))

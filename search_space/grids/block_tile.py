"""Block tiles: what all launches have in common that bring tiles of a product's operands into shared memory in stages.

block                              batch, tile of rows, tile of columns
  thread
    rounds along the reduction     stages of them under way as asynchronous copies
      left, right = operands
      barrier
      multiply                       by whoever does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.dtype import BYTES
from tunewright.codegen.expr import Expr, Var, const, op
from tunewright.codegen.ir import Alloc, Barrier, Block, Buffer, Do, For, If, LoopKind, Packing, Stmt
from tunewright.graph.task import Task

from ..nests.pieces import NARROW_TOO
from ..products.product import Product, product
from ..space import Columns
from .bulk_tile import BulkTile
from .operand_tile import ADDRESS_REGISTERS, OperandTile, accesses, operands
from .shared_tile import PRODUCTS, THREAD, SharedTile, width
from .sides import Sides, Sizes, steps
from .tiles import Place, Tiles

ROUND = "round"


@lru_cache(maxsize=256)
def tensor_product(task: Task) -> Product | None:
    """The task's product, if there is one of two operands of types that tensor cores multiply."""
    found = product(task, NARROW_TOO | BYTES)
    if found is None or not found.rows or (found.other.dtype, found.panel.dtype) not in PRODUCTS:
        return None
    return found


def shapes(task: Task, found: Product) -> Mapping[str, tuple[int, ...]]:
    """Of the tensors that are read."""
    return {load.tensor: task.tensor(load.tensor).shape for load in (found.panel, found.other)}


def copy_registers(found: Product, wide: tuple[int, int], columns: Columns, threads: Sizes) -> Sizes:
    """Registers of a thread for the places of what it copies a round: `wide` elements of each operand at once.

    None for the right one where that is copied at once.
    """
    rows, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    right = np.where(columns.get("bulk", 0), 0, accesses(across, depth, wide[1], threads))
    return np.asarray(ADDRESS_REGISTERS * (accesses(rows, depth, wide[0], threads) + right))


def smem_bytes(found: Product, columns: Columns) -> Sizes:
    """Of all stages of both operands."""
    rows, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    return found.panel.dtype.size_bytes * columns["stages"] * depth * (rows + across)


def may_group(found: Product, columns: Columns) -> NDArray[np.bool_]:
    """Whether tiles of rows come in whole groups."""
    down = steps(Sides.of(found).rows, columns["block_rows"])
    return np.asarray(down % columns["group"] == 0)


def widths(task: Task, found: Product) -> tuple[int, int]:
    """Elements of both operands that are copied at once."""
    left, right = operands(found)
    read = shapes(task, found)
    return width(left, read), width(right, read)


Copies = tuple[SharedTile, SharedTile | BulkTile]
"""Of the left operand and the right one."""


@dataclass(frozen=True, slots=True)
class BlockTile:
    """Tiles of a product, and the numbers of a block."""

    tiles: Tiles
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    depth: int  # of a round
    threads: int
    stages: int
    panel: int = 0  # see SharedTile; of operands whose neighbours are not along the reduction
    packing: Packing | None = None  # of the right operand, where what a round needs of it is copied at once

    @staticmethod
    def of(
        task: Task,
        tiles: Tiles,
        values: Mapping[str, int],
        threads: int,
        panel: int = 0,
        packing: Packing | None = None,
    ) -> BlockTile:
        """That of a schedule's values, shared by so many threads."""
        return BlockTile(
            tiles,
            shapes(task, tiles.found),
            depth=values["block_depth"],
            threads=threads,
            stages=values["stages"],
            panel=panel,
            packing=packing,
        )

    @property
    def found(self) -> Product:
        return self.tiles.found

    @property
    def rounds(self) -> int:
        """Of a block."""
        return self.tiles.rounds(self.depth)

    def lower(self, registers: tuple[Buffer, ...], body: Callable[[Copies, Place], Stmt]) -> Stmt:
        """The launch, given what a thread has in registers and does."""

        def block(place: Place) -> Stmt:
            copies = self._copies(place)
            stmt = body(copies, place)
            for buffer in registers:
                stmt = Alloc(buffer, stmt)
            stmt = For(THREAD, self.threads, stmt, LoopKind.THREAD)
            for copy in copies:
                for buffer in copy.buffers(self.stages):
                    stmt = Alloc(buffer, stmt)
            return stmt

        return self.tiles.blocks(block)

    def _copies(self, place: Place) -> Copies:
        shared = self.depth, place.batch, self.threads
        left, right = operands(self.found)
        first = self._copy("left", OperandTile(left, place.row, self.tiles.rows, *shared))
        if self.packing is not None:
            columns = self.tiles.columns
            second = BulkTile.of("right", self.found, self.packing, place.column // columns, columns, self.depth)
            return first, second
        return first, self._copy("right", OperandTile(right, place.column, self.tiles.columns, *shared))

    def _copy(self, name: str, tile: OperandTile) -> SharedTile:
        panel = 0 if tile.operand.is_deep else self.panel
        wide = width(tile.operand, self.shapes)
        return SharedTile(name, tile, is_left=name == "left", wide=wide, panel=panel)

    def summed(
        self,
        copies: Copies,
        part: Expr,
        ahead: int,
        multiplied: Callable[[Expr], Stmt],
        between: tuple[Stmt, ...] = (),
    ) -> tuple[Stmt, ...]:
        """All rounds: each is copied `ahead` rounds before it is multiplied, `between` done before the barrier.

        What is copied overwrites the stage of `stages - ahead` rounds ago, which all must be done with at the barrier.
        """
        step, begin = Var(ROUND), part * self.rounds
        commit = Do("cp.async.commit", (), ())
        first: list[Stmt] = []
        for n in range(ahead):
            if n < self.rounds:
                first += [copy.filled(begin + n, const(n)) for copy in copies]
            first.append(commit)
        later = (step + ahead) % self.stages
        following = Block(tuple(copy.filled(begin + step + ahead, later) for copy in copies))
        body = (
            Do(f"cp.async.wait.{ahead - 1}", (), ()),
            *between,
            Barrier(),
            If(op("lt", step + ahead, self.rounds), following),
            commit,
            multiplied(step % self.stages),
        )
        return (*first, For(ROUND, self.rounds, Block(body)))

"""Block tiles: the part that launches share which copy tiles of a product's operands to shared memory in stages.

block                              batch, tile of rows, tile of columns
  thread
    rounds along the reduction     stages of them under way as asynchronous copies
      left, right = operands
      barrier
      multiply                       by threads, warps or warpgroups
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op, transform
from tunewright.codegen.ir.ir import Barrier, Block, Buffer, Do, For, If, LoopKind, Packing, Stmt
from tunewright.graph.task import Task

from ...buffers import allocate
from ...patterns.fused_stage import FLOATS
from ...patterns.product import Product, is_packable, match_product
from ...space import Columns
from .bulk_tile import BulkTile
from .shared_tile import PRODUCTS, THREAD, SharedTile, width
from .sides import ADDRESS_REGISTERS, OperandTile, ProductOperand, Sides, Sizes, accesses, operands, steps
from .tiles import TilePlace, Tiles

ROUND = "round"


@lru_cache(maxsize=256)
def match_tensor_product(task: Task) -> Product | None:
    """The task's product, if there is one of two operands of types that tensor cores multiply."""
    product = match_product(task, FLOATS | BYTES)
    if product is None or not product.rows or (product.broadcast.dtype, product.panel.dtype) not in PRODUCTS:
        return None
    return product


def shapes(task: Task, product: Product) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the tensors that are read, by name."""
    return {load.tensor: task.tensor(load.tensor).shape for load in (product.panel, product.broadcast)}


def copy_registers(product: Product, wide: tuple[int, int], columns: Columns, threads: Sizes) -> Sizes:
    """Registers of a thread for the addresses of its copies a round: `wide` elements of each operand at once.

    The right operand needs none where it is copied at once.
    """
    rows, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    right = np.where(columns.get("bulk", 0), 0, accesses(across, depth, wide[1], threads))
    return np.asarray(ADDRESS_REGISTERS * (accesses(rows, depth, wide[0], threads) + right))


def smem_bytes(product: Product, columns: Columns) -> Sizes:
    """The shared memory of all stages of both operands."""
    rows, across, depth = (columns[f"block_{name}"] for name in ("rows", "columns", "depth"))
    return product.panel.dtype.size_bytes * columns["stages"] * depth * (rows + across)


def may_group(product: Product, columns: Columns) -> NDArray[np.bool_]:
    """Whether tiles of rows come in whole groups."""
    down = steps(Sides.of(product).rows, columns["block_rows"])
    return np.asarray(down % columns["group"] == 0)


def widths(task: Task, product: Product) -> tuple[int, int]:
    """How many elements of each operand are copied at once."""
    left, right = operands(product)
    read = shapes(task, product)
    return width(left, read), width(right, read)


Copies = tuple[SharedTile, SharedTile | BulkTile]
"""The copies of the left operand and the right one."""


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
        """Take the numbers from the values of a schedule, for so many threads."""
        return BlockTile(
            tiles,
            shapes(task, tiles.product),
            depth=values["block_depth"],
            threads=threads,
            stages=values["stages"],
            panel=panel,
            packing=packing,
        )

    @property
    def product(self) -> Product:
        return self.tiles.product

    @property
    def rounds(self) -> int:
        """Rounds of a block."""
        return self.tiles.rounds(self.depth)

    def lower(self, registers: tuple[Buffer, ...], body: Callable[[Copies, TilePlace], Stmt]) -> Stmt:
        """The launch, from the registers of a thread and its statements."""

        def block(place: TilePlace) -> Stmt:
            copies = self._copies(place)
            stmt = body(copies, place)
            stmt = For(THREAD, self.threads, allocate(registers, stmt), LoopKind.THREAD)
            return allocate((buffer for copy in copies for buffer in copy.buffers(self.stages)), stmt)

        return self.tiles.blocks(block)

    def _copies(self, place: TilePlace) -> Copies:
        shared = self.depth, place.batch, self.threads
        left, right = operands(self.product)
        first = self._copy("left", OperandTile(left, place.row, self.tiles.rows, *shared))
        if self.packing is not None:
            columns = self.tiles.columns
            second = BulkTile.of("right", self.product, self.packing, place.column // columns, columns, self.depth)
            return first, second
        return first, self._copy("right", OperandTile(right, place.column, self.tiles.columns, *shared))

    def _copy(self, name: str, tile: OperandTile) -> SharedTile:
        panel = 0 if tile.operand.is_deep else self.panel
        wide = width(tile.operand, self.shapes)
        return SharedTile(name, tile, is_left=name == "left", wide=wide, panel=panel)

    def sum_rounds(
        self,
        copies: Copies,
        part: Expr,
        prefetch: int,
        multiply: Callable[[Expr], Stmt],
        between: tuple[Stmt, ...] = (),
    ) -> tuple[Stmt, ...]:
        """All rounds, as `overlap_rounds` does."""

        def fill(step: Expr, stage: Expr) -> Stmt:
            return Block(tuple(copy.fill(step, stage) for copy in copies))

        return overlap_rounds(part * self.rounds, self.rounds, self.stages, prefetch, fill, multiply, between)


def overlap_rounds(
    begin: Expr,
    rounds: int,
    stages: int,
    prefetch: int,
    fill: Callable[[Expr, Expr], Stmt],
    multiply: Callable[[Expr], Stmt],
    between: tuple[Stmt, ...] = (),
) -> tuple[Stmt, ...]:
    """Rounds from number `begin` on, of which each is filled `prefetch` rounds before it is multiplied.

    A copy overwrites the stage of `stages - prefetch` rounds ago, which all threads have read at the barrier, that
    `between` precedes.
    """
    step, commit = Var(ROUND), Do("cp.async.commit", (), ())
    first: list[Stmt] = []
    for n in range(prefetch):
        first += [fill(begin + n, const(n)), commit] if n < rounds else [commit]
    body = (
        Do(f"cp.async.wait.{prefetch - 1}", (), ()),
        *between,
        Barrier(),
        If(op("lt", step + prefetch, rounds), fill(begin + step + prefetch, (step + prefetch) % stages)),
        commit,
        multiply(step % stages),
    )
    return (*first, For(ROUND, rounds, Block(body)))


@lru_cache(maxsize=256)
def pack_along_depth(task: Task) -> tuple[Task, Mapping[str, Packing]]:
    """The task with constants of a byte product contiguous along its reduction, and their packings.

    No instruction turns bytes on their way from shared memory into registers.
    """
    product = match_tensor_product(task)
    if product is None or product.panel.dtype not in BYTES:
        return task, {}
    packings: dict[str, Packing] = {}
    for operand in operands(product):
        if not operand.is_deep and is_packable(task, operand.load):
            order = _depth_last(operand)
            shape = task.tensor(operand.load.tensor).shape
            packings[operand.load.tensor] = Packing.in_order(order, tuple(shape[d] for d in order))
            task = _reorder(task, operand.load.tensor, order)
    return task, packings


def _depth_last(operand: ProductOperand) -> tuple[int, ...]:
    """The order of an operand's dimensions with those of the reduction last."""
    depth = [axis.name for axis in operand.depth]
    inner = {at.name: d for d, at in enumerate(operand.load.index) if isinstance(at, Var) and at.name in depth}
    last = tuple(inner[name] for name in depth)
    return (*(d for d in range(len(operand.load.index)) if d not in last), *last)


def _reorder(task: Task, name: str, order: tuple[int, ...]) -> Task:
    """The task with the dimensions of a tensor in another order."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.tensor == name:
            return replace(node, index=tuple(node.index[d] for d in order))
        return node

    inputs = (replace(t, shape=tuple(t.shape[d] for d in order)) if t.name == name else t for t in task.inputs)
    stages = (replace(stage, body=transform(stage.body, visit)) for stage in task.stages)
    return replace(task, inputs=tuple(inputs), stages=tuple(stages))

"""Warp tiles: a sum of products of narrow floats as a launch in which the tensor cores of warps multiply.

What a round needs is in shared memory (`block_tile`), where what a warp reads together lies in different banks:

    warp: sums += left x right         fragments of 16 x 16 and 16 x 8 by `ldmatrix` and `mma`
    output = finish(sums)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.ir import Block, Buffer, Do, Scope, Stmt
from tunewright.codegen.lanes import lined
from tunewright.graph.task import Task

from ..products.product import Product
from .block_tile import BlockTile, Copies, Place
from .fragments import Fragments
from .shared_tile import COLUMNS, DEPTH, PRODUCTS, ROWS, THREAD, unrolled


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A product of operands of one narrow type by the warps of a block, which has two stages or more."""

    block: BlockTile
    warp_rows: int  # divides those of the block
    warp_columns: int  # likewise

    @staticmethod
    def of(task: Task, found: Product, values: Mapping[str, int]) -> WarpTile:
        """That of a schedule's values."""
        rows, columns = values["warp_rows"], values["warp_columns"]
        threads = WARP * (values["block_rows"] // rows) * (values["block_columns"] // columns)
        return WarpTile(BlockTile.of(task, found, values, threads), rows, columns)

    @property
    def dtype(self) -> DType:
        return self.block.found.panel.dtype

    @property
    def fragments(self) -> Fragments:
        """What a warp sums up."""
        return Fragments(self.block, self.warp_rows // ROWS, self.warp_columns // COLUMNS, ROWS)

    def lower(self) -> Stmt:
        """The launch."""
        return self.block.lower(self._registers(), self._body)

    def _registers(self) -> tuple[Buffer, ...]:
        sums = self.fragments
        return (
            sums.buffer,
            Buffer("own_left", (sums.down, ROWS * DEPTH // WARP), self.dtype, Scope.REGISTER),
            Buffer("own_right", (sums.across // 2, 2 * DEPTH * COLUMNS // WARP), self.dtype, Scope.REGISTER),
        )

    def _body(self, copies: Copies, place: Place) -> Stmt:
        ahead = self.block.stages - 1
        rounds = self.block.summed(copies, place.part, ahead, lambda stage: self._multiplied(copies, stage))
        return Block((self.fragments.cleared(), *rounds, self.fragments.written(place, *self._own())))

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a warp within its block."""
        warp, across = Var(THREAD) // WARP, self.block.columns // self.warp_columns
        return warp // across * self.warp_rows, warp % across * self.warp_columns

    def _multiplied(self, copies: Copies, stage: Expr) -> Stmt:
        """Add what one round brought. Of the right operand, what two neighbouring products need is read together."""
        row, column = self._own()
        down, pairs = self.fragments.down, self.fragments.across // 2
        left, right = copies
        r, c, p, deep = Var("r"), Var("c"), Var("p"), Var("k") * DEPTH
        own = (
            Load("own_left", (r, lined(const(0), 8)), self.dtype),
            Load("own_right", (c, lined(const(0), 8)), self.dtype),
        )
        sums = self.fragments.sums(r, c * 2 + p)
        factor = replace(own[1], index=(c, lined(p * 4, 4)))
        body = (
            unrolled(left.fragment(own[0], stage, row + r * ROWS, deep), r=down),
            unrolled(right.fragment(own[1], stage, column + c * 2 * COLUMNS, deep), c=pairs),
            unrolled(Do(PRODUCTS[self.dtype], (sums,), (own[0], factor, sums)), r=down, c=pairs, p=2),
        )
        return unrolled(Block(body), k=self.block.depth // DEPTH)

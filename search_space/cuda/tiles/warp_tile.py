"""Warp tile: one product, by the tensor cores of warps.

What a round needs is in shared memory (`block_tile`), where what a warp reads together lies in different banks:

    warp: sums += left x right         fragments of narrow floats, 16 x 16 and 16 x 8, by `ldmatrix` and `mma`;
                                       of bytes, 16 x 32 and 32 x 8
    output = epilogue(sums)

Tensor cores see 11 bits of the mantissas of float32 (TF32). So there are three products, the larger last: that of the
left operand and what was not seen of the right one, the other way round, and that of both. What none of them has is the
product of both rests, some 2^-20 of a term. Where an operand is infinite, its rest is not a number, nor is the sum.
When they add up, tensor cores are said to cut off what float32 would round (Ootomo and Yokota): not seen here so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.expr.lanes import ramp
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, Scope, Stmt
from tunewright.graph.task import Task

from .block_tile import (
    BlockTile,
    Copies,
)
from .fragments import Fragments
from .shared_tile import COLUMNS, PRODUCTS, ROWS, THREAD, SharedTile, chunk, product_depth, unroll
from .tiles import TilePlace, Tiles


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A product of operands of one size by the warps of a block, which has two stages or more."""

    block: BlockTile
    warp_rows: int  # divides those of the block
    warp_columns: int  # likewise

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int]) -> WarpTile:
        """Take the numbers from the values of a schedule."""
        rows, columns = values["warp_rows"], values["warp_columns"]
        threads = WARP * (values["block_rows"] // rows) * (values["block_columns"] // columns)
        return WarpTile(BlockTile.of(task, tiles, values, threads), rows, columns)

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The types of the left operand and the right one, which differ for bytes only."""
        return self.block.product.broadcast.dtype, self.block.product.panel.dtype

    @property
    def is_split(self) -> bool:
        """Whether there are three products for one."""
        return self.dtypes[0] is DType.F32

    @property
    def fragments(self) -> Fragments:
        """The sums of a warp."""
        return Fragments(self.block.tiles, self.warp_rows // ROWS, self.warp_columns // COLUMNS, ROWS)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        return self.block.lower(self._registers(), self._body)

    def _registers(self) -> tuple[Buffer, ...]:
        sums = self.fragments
        counts = sums.down, sums.across // 2
        operands = (
            Buffer(f"{part}_{side}", (count, chunk(dtype)), dtype, Scope.REGISTER)
            for part in (("own", "rest") if self.is_split else ("own",))
            for side, count, dtype in zip(("left", "right"), counts, self.dtypes, strict=True)
        )
        return sums.buffer, *operands

    def _body(self, copies: Copies, place: TilePlace) -> Stmt:
        distance = self.block.stages - 1
        rounds = self.block.sum_rounds(copies, place.part, distance, lambda stage: self._multiply(copies, stage))
        return Block((self.fragments.clear(), *rounds, self.fragments.write(place, *self._own())))

    def _own(self) -> tuple[Expr, Expr]:
        """The first row and column of a warp within its block."""
        warp, across = Var(THREAD) // WARP, self.block.tiles.columns // self.warp_columns
        return warp // across * self.warp_rows, warp % across * self.warp_columns

    def _multiply(self, copies: Copies, stage: Expr) -> Stmt:
        """Add what one round brought. Of the right operand, what two neighbouring products need is read together."""
        row, column = self._own()
        down, pairs, depth = self.fragments.down, self.fragments.across // 2, product_depth(self.dtypes[0])
        left, right = copies
        assert isinstance(right, SharedTile)  # others are for warpgroups
        r, c, deep = Var("r"), Var("c"), Var("k") * depth
        own = self._fragments("own", r, c)
        body = [
            unroll(left.fragment(own[0], stage, row + r * ROWS, deep), r=down),
            unroll(right.fragment(own[1], stage, column + c * 2 * COLUMNS, deep), c=pairs),
        ]
        factors = [own]
        if self.is_split:
            rest = self._fragments("rest", r, c)
            body.append(unroll(Do("split.tf32", (own[0], rest[0]), (own[0],)), r=down))
            body.append(unroll(Do("split.tf32", (own[1], rest[1]), (own[1],)), c=pairs))
            factors = [(own[0], rest[1]), (rest[0], own[1]), own]
        body += [unroll(self._product(*pair), r=down, c=pairs, p=2) for pair in factors]
        return unroll(Block(tuple(body)), k=self.block.depth // depth)

    def _fragments(self, part: str, row: Expr, pair: Expr) -> tuple[Load, Load]:
        """A fragment of the left operand, and those of the right one for two neighbouring products."""
        left, right = self.dtypes
        lanes = ramp(const(0), chunk(left))
        return Load(f"{part}_left", (row, lanes), left), Load(f"{part}_right", (pair, lanes), right)

    def _product(self, left: Load, right: Load) -> Stmt:
        """Multiply fragment `r` by fragment `p` of pair `c`."""
        size, p = chunk(right.dtype) // 2, Var("p")
        sums = self.fragments.sums(Var("r"), Var("c") * 2 + p)
        half = replace(right, index=(Var("c"), ramp(p * size, size)))
        return Do(PRODUCTS[self.dtypes], (sums,), (left, half, sums))

"""Warpgroup tiles: a sum of products on Hopper, of narrow floats or bytes, multiplied from shared memory by four warps.

What a round needs is in shared memory (`block_tile`), in rows of 128 bytes as the tensor cores take them:

    warpgroup: sums += left x right    64 rows by all columns of the block, by `wgmma`, which goes on
                                       while the next round is waited for
    output = finish(sums)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunewright.codegen.cuda import warpgroup
from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.ir import Block, Do, Packing, Stmt
from tunewright.codegen.lanes import lined
from tunewright.graph.task import Task

from .block_tile import ROUND, BlockTile, Copies
from .bulk_tile import PHASE_REGISTER, BulkTile
from .fragments import Fragments
from .shared_tile import COLUMNS, ROWS, THREAD, SharedTile, chunk, product_depth, unrolled
from .tiles import Place, Tiles

TYPES = {DType.F16: "f16", DType.BF16: "bf16", DType.I8: "s8", DType.U8: "u8", DType.F32: "f32", DType.I32: "s32"}
"""Of operands and sums, as instructions name them."""


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A product of operands of one narrow type, or of bytes, by the warpgroups of a block, one below the other.

    A round is `warpgroup.ROW_BYTES` deep, and stages are 3 or more. Bytes lie along the reduction.
    """

    block: BlockTile  # in panels of `warpgroup.PANEL`
    down: int  # rows of each group, by 64

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int], packing: Packing | None) -> WarpgroupTile:
        """That of a schedule's values. `packing`: see `BlockTile`."""
        groups = values["warpgroups"]
        block = BlockTile.of(task, tiles, values, warpgroup.GROUP * groups, warpgroup.PANEL, packing)
        return WarpgroupTile(block, block.tiles.rows // groups // warpgroup.ROWS)

    @property
    def fragments(self) -> Fragments:
        """What a warp sums up: 16 of each 64 rows of its group."""
        return Fragments(self.block, self.down, self.block.tiles.columns // COLUMNS, warpgroup.ROWS)

    def lower(self) -> Stmt:
        """The launch."""
        named = (PHASE_REGISTER,) if self.block.packing else ()
        return self.block.lower((self.fragments.buffer, *named), self._body)

    def _body(self, copies: Copies, place: Place) -> Stmt:
        """One round is multiplied while the next is waited for: the stage that is filled is that of two rounds ago."""
        stages, right = self.block.stages, copies[1]
        begun: tuple[Stmt, ...] = ()
        awaited: tuple[Stmt, ...] = ()
        if isinstance(right, BulkTile):
            begun, awaited = (right.begun(stages),), right.awaited(Var(ROUND), stages)
        rounds = self.block.summed(
            copies,
            place.part,
            stages - 2,
            lambda stage: self._multiplied(copies, stage),
            (*awaited, Do("wgmma.wait.1", (), ()), Do("fence.proxy.async", (), ())),
        )
        warp = Var(THREAD) % warpgroup.GROUP // WARP
        return Block(
            (
                *begun,
                self.fragments.cleared(),
                self._held(),
                *rounds,
                Do("wgmma.wait.0", (), ()),
                self._held(),
                self.fragments.written(place, self._first() * warpgroup.ROWS + warp * ROWS, const(0)),
            )
        )

    def _sums(self) -> Load:
        """Those of 64 rows, number `r`."""
        return self.fragments.sums(Var("r"), const(0), self.fragments.across)

    def _held(self) -> Stmt:
        """Keep what is computed with the sums on its side of products."""
        sums = self._sums()
        return unrolled(Do(f"hold.{TYPES[sums.dtype]}.{sums.lanes}", (sums,), (sums,)), r=self.down)

    def _first(self) -> Expr:
        """The first rows of a group within its block, counted by 64."""
        return Var(THREAD) // warpgroup.GROUP * self.down

    def _multiplied(self, copies: Copies, stage: Expr) -> Stmt:
        """Begin to add what one round brought."""
        left, right = copies
        k, sums = Var("k"), self._sums()
        rows = _named(left, stage, self._first() + Var("r"), k)
        parts = range(self.block.tiles.columns // warpgroup.PANEL)
        columns = (_named(right, stage, const(part), k) for part in parts)
        deep = product_depth(rows.dtype)
        shape = f"m{warpgroup.ROWS}n{self.block.tiles.columns}k{deep}"
        kinds = ".".join(TYPES[dtype] for dtype in (sums.dtype, rows.dtype, self.block.found.panel.dtype))
        product = Do(f"wgmma.{shape}.{kinds}.{_lies(left)}.{_lies(right)}", (sums,), (rows, *columns, sums))
        return Block(
            (
                Do("wgmma.fence", (), ()),
                unrolled(product, k=self.block.depth // deep, r=self.down),
                Do("wgmma.commit", (), ()),
            )
        )


def _lies(copy: SharedTile | BulkTile) -> str:
    """See `warpgroup.named`."""
    if isinstance(copy, BulkTile):
        return warpgroup.PACKED
    return "k" if copy.tile.operand.is_deep else "mn"


def _named(copy: SharedTile | BulkTile, stage: Expr, part: Expr, k: Expr) -> Load:
    """What a thread names of 64 places along an operand for product `k` of a round."""
    if isinstance(copy, BulkTile):
        row, number = warpgroup.named(warpgroup.PACKED, Var(THREAD) % warpgroup.GROUP)
        return copy.named(stage, part, row, k * 2 + number)
    dtype = copy.tile.operand.load.dtype
    each, deep = chunk(dtype), product_depth(dtype)
    row, number = warpgroup.named(_lies(copy), Var(THREAD) % warpgroup.GROUP)
    if copy.tile.operand.is_deep:
        return copy.at(stage, part * warpgroup.PANEL + row, lined(k * deep + number * each, each))
    return copy.at(stage, part, k * deep + row, lined(number * each, each))

"""Warpgroup tile: one product of narrow floats or bytes on Hopper, multiplied from shared memory by four warps.

What a round needs is in shared memory (`block_tile`), in rows of 128 bytes as the tensor cores take them:

    warpgroup: sums += left x right    64 rows by all columns of the block, by `wgmma`, which goes on
                                       while the next round is waited for
    output = epilogue(sums)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunewright.codegen.expr.expr import Var, const
from tunewright.codegen.instructions import warpgroup
from tunewright.codegen.ir.ir import Block, Do, Packing, Stmt
from tunewright.graph.task import Task

from .barriers import PHASE
from .block_tile import (
    ROUND,
    BlockTile,
    Copies,
)
from .bulk_tile import BulkTile
from .group_product import GroupProduct
from .tiles import TilePlace, Tiles


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A product of operands of one narrow type, or of bytes, by the warpgroups of a block, one below the other.

    A round is `warpgroup.ROW_BYTES` deep, and stages are 3 or more. Bytes lie along the reduction.
    """

    block: BlockTile  # in panels of `warpgroup.PANEL`
    groups: int

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int], packing: Packing | None) -> WarpgroupTile:
        """Take the numbers from the values of a schedule. `packing`: see `BlockTile`."""
        groups = values["warpgroups"]
        block = BlockTile.of(task, tiles, values, warpgroup.GROUP * groups, warpgroup.PANEL, packing)
        return WarpgroupTile(block, groups)

    @property
    def product(self) -> GroupProduct:
        """The products of a round."""
        return GroupProduct.of(self.block.tiles, self.block.depth, self.groups)

    def lower(self) -> Stmt:
        """The loops of the launch."""
        registers = (PHASE,) if self.block.packing else ()
        return self.block.lower((self.product.fragments.buffer, *registers), self._body)

    def _body(self, copies: Copies, place: TilePlace) -> Stmt:
        """One round is multiplied while the next is waited for: the stage that is filled is that of two rounds ago."""
        stages, (left, right), product = self.block.stages, copies, self.product
        begin: tuple[Stmt, ...] = ()
        await_round: tuple[Stmt, ...] = ()
        if isinstance(right, BulkTile):
            begin, await_round = (right.begin(stages),), right.await_round(Var(ROUND), stages)
        rounds = self.block.sum_rounds(
            copies,
            place.part,
            stages - 2,
            lambda stage: product.begin(left, right, stage),
            (*await_round, Do("wgmma.wait.1", (), ()), Do("fence.proxy.async", (), ())),
        )
        return Block(
            (
                *begin,
                product.fragments.clear(),
                product.hold(),
                *rounds,
                Do("wgmma.wait.0", (), ()),
                product.hold(),
                product.fragments.write(place, product.row, const(0)),
            )
        )

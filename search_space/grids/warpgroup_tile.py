"""Warpgroup tiles: a sum of products of narrow floats on Hopper, multiplied straight from shared memory by four warps.

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
from tunewright.codegen.ir import Block, Do, Stmt
from tunewright.codegen.lanes import lined
from tunewright.graph.task import Task

from .block_tile import BlockTile, Copies
from .fragments import Fragments
from .shared_tile import COLUMNS, ROWS, THREAD, SharedTile, chunk, unrolled
from .tiles import Place, Tiles

TYPES = {DType.F16: "f16", DType.BF16: "bf16"}
"""Of operands, as instructions name them."""


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A product of operands of one narrow type, by the warpgroups of a block, one below the other.

    A round is `warpgroup.PANEL_ROWS` deep, and stages are 3 or more.
    """

    block: BlockTile  # in panels of `warpgroup.PANEL`
    down: int  # rows of each group, by 64

    @staticmethod
    def of(task: Task, tiles: Tiles, values: Mapping[str, int]) -> WarpgroupTile:
        """That of a schedule's values."""
        groups = values["warpgroups"]
        block = BlockTile.of(task, tiles, values, warpgroup.GROUP * groups, warpgroup.PANEL)
        return WarpgroupTile(block, block.tiles.rows // groups // warpgroup.ROWS)

    @property
    def fragments(self) -> Fragments:
        """What a warp sums up: 16 of each 64 rows of its group."""
        return Fragments(self.block, self.down, self.block.tiles.columns // COLUMNS, warpgroup.ROWS)

    def lower(self) -> Stmt:
        """The launch."""
        return self.block.lower((self.fragments.buffer,), self._body)

    def _body(self, copies: Copies, place: Place) -> Stmt:
        """One round is multiplied while the next is waited for: the stage that is filled is that of two rounds ago."""
        rounds = self.block.summed(
            copies,
            place.part,
            self.block.stages - 2,
            lambda stage: self._multiplied(copies, stage),
            (Do("wgmma.wait.1", (), ()), Do("fence.proxy.async", (), ())),
        )
        warp = Var(THREAD) % warpgroup.GROUP // WARP
        return Block(
            (
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
        return unrolled(Do(f"hold.{sums.lanes}", (sums,), (sums,)), r=self.down)

    def _first(self) -> Expr:
        """The first rows of a group within its block, counted by 64."""
        return Var(THREAD) // warpgroup.GROUP * self.down

    def _multiplied(self, copies: Copies, stage: Expr) -> Stmt:
        """Begin to add what one round brought."""
        left, right = copies
        k, sums = Var("k"), self._sums()
        rows = _named(left, stage, self._first() + Var("r"), k)
        columns = (_named(right, stage, const(part), k) for part in range(self.block.tiles.columns // warpgroup.PANEL))
        shape = f"m{warpgroup.ROWS}n{self.block.tiles.columns}k{warpgroup.DEPTH}"
        name = f"wgmma.{shape}.f32.{TYPES[self.block.found.panel.dtype]}.{_lies(left)}.{_lies(right)}"
        product = Do(name, (sums,), (rows, *columns, sums))
        return Block(
            (
                Do("wgmma.fence", (), ()),
                unrolled(product, k=self.block.depth // warpgroup.DEPTH, r=self.down),
                Do("wgmma.commit", (), ()),
            )
        )


def _lies(copy: SharedTile) -> str:
    """See `warpgroup.named`."""
    return "k" if copy.tile.operand.is_deep else "mn"


def _named(copy: SharedTile, stage: Expr, part: Expr, k: Expr) -> Load:
    """What a thread names of 64 places along an operand by 16 along the reduction."""
    each = chunk(copy.tile.operand.load.dtype)
    row, number = warpgroup.named(_lies(copy), Var(THREAD) % warpgroup.GROUP)
    if copy.tile.operand.is_deep:
        return copy.at(stage, part * warpgroup.PANEL + row, lined(k * warpgroup.DEPTH + number * each, each))
    return copy.at(stage, part, k * warpgroup.DEPTH + row, lined(number * each, each))

"""Warpgroup tiles: a sum of products of narrow floats on Hopper, multiplied straight from shared memory by four warps.

What a round needs is in shared memory (`block_tile`), in rows of 128 bytes as the tensor cores take them:

    warpgroup: sums += left x right    64 rows by all columns of the block, by `wgmma`, which goes on
                                       while the next round is waited for
    output = finish(sums)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunewright.codegen.cuda.gpu import WARP
from tunewright.codegen.cuda.warpgroup import DEPTH, GROUP, PANEL, PANEL_ROWS, ROWS
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const
from tunewright.codegen.ir import Block, Do, Stmt
from tunewright.codegen.lanes import lined

from ..products.product import Product
from .block_tile import BlockTile, Copies, Place
from .fragments import Fragments
from .shared_tile import CHUNK, COLUMNS, THREAD, SharedTile, unrolled
from .shared_tile import ROWS as WARP_ROWS

TYPES = {DType.F16: "f16", DType.BF16: "bf16"}
"""Of operands, as instructions name them."""

BLOCK_DEPTH = PANEL_ROWS
"""Of a round."""


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A product of operands of one narrow type, and the numbers of its launch."""

    found: Product
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    block_rows: int
    block_columns: int
    warpgroups: int  # of a block, one below the other; 64 rows of each, or a multiple
    stages: int  # 3 or more
    group: int  # see BlockTile
    splits: int  # likewise

    @property
    def block(self) -> BlockTile:
        """What a block does."""
        return BlockTile(
            self.found,
            self.shapes,
            self.block_rows,
            self.block_columns,
            BLOCK_DEPTH,
            GROUP * self.warpgroups,
            self.stages,
            self.group,
            self.splits,
            PANEL,
        )

    @property
    def fragments(self) -> Fragments:
        """What a warp sums up: 16 of each 64 rows of its group."""
        return Fragments(self.block, self.block_rows // self.warpgroups // ROWS, self.block_columns // COLUMNS, ROWS)

    def lower(self) -> Stmt:
        """The launch."""
        return self.block.lower((self.fragments.buffer,), self._body)

    def _body(self, copies: Copies, place: Place) -> Stmt:
        """One round is multiplied while the next is waited for: the stage that is filled is that of two rounds ago."""
        done_before, shown = Do("wgmma.wait.1", (), ()), Do("fence.proxy.async", (), ())
        rounds = self.block.summed(
            copies,
            place.part,
            self.stages - 2,
            lambda stage: self._multiplied(copies, stage),
            (done_before, shown),
        )
        warp = Var(THREAD) % GROUP // WARP
        written = self.fragments.written(place, self._panel() * ROWS + warp * WARP_ROWS, const(0))
        return Block((self.fragments.cleared(), *rounds, Do("wgmma.wait.0", (), ()), written))

    def _panel(self) -> Expr:
        """The first 64 rows of a warpgroup within its block, counted by 64."""
        return Var(THREAD) // GROUP * self.fragments.down

    def _multiplied(self, copies: Copies, stage: Expr) -> Stmt:
        """Begin to add what one round brought."""
        left, right = copies
        r, k = Var("r"), Var("k")
        sums = self.fragments.sums(r, const(0), self.fragments.across)
        rows = _named(left, stage, self._panel() + r, k)
        columns = (_named(right, stage, const(part), k) for part in range(self.block_columns // PANEL))
        lies = ".".join("k" if copy.tile.operand.is_deep else "mn" for copy in copies)
        name = f"wgmma.m{ROWS}n{self.block_columns}k{DEPTH}.f32.{TYPES[self.found.panel.dtype]}.{lies}"
        product = Do(name, (sums,), (rows, *columns, sums))
        return Block(
            (
                Do("wgmma.fence", (), ()),
                unrolled(product, k=BLOCK_DEPTH // DEPTH, r=self.fragments.down),
                Do("wgmma.commit", (), ()),
            )
        )


def _named(copy: SharedTile, stage: Expr, panel: Expr, k: Expr) -> Load:
    """What a thread names of 64 places along an operand by 16 along the reduction: `codegen.cuda.warpgroup`."""
    thread = Var(THREAD) % GROUP
    if copy.tile.operand.is_deep:
        row, column = panel * PANEL + thread % PANEL, k * DEPTH + thread // PANEL * CHUNK
        return copy.at(stage, row, lined(column, CHUNK))
    return copy.at(stage, panel, k * DEPTH + thread % DEPTH, lined(thread // DEPTH * CHUNK, CHUNK))

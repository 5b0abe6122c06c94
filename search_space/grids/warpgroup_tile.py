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

from ..products.product import Product
from .block_tile import BlockTile, Copies, Place
from .fragments import Fragments
from .shared_tile import CHUNK, COLUMNS, ROWS, THREAD, SharedTile, unrolled

TYPES = {DType.F16: "f16", DType.BF16: "bf16"}
"""Of operands, as instructions name them."""


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A product of operands of one narrow type, and the numbers of its launch."""

    found: Product
    shapes: Mapping[str, tuple[int, ...]]  # of the tensors that are read
    block_rows: int
    block_columns: int
    block_depth: int  # rows of a panel: `warpgroup.PANEL_ROWS`
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
            rows=self.block_rows,
            columns=self.block_columns,
            depth=self.block_depth,
            threads=warpgroup.GROUP * self.warpgroups,
            stages=self.stages,
            group=self.group,
            splits=self.splits,
            panel=warpgroup.PANEL,
        )

    @property
    def fragments(self) -> Fragments:
        """What a warp sums up: 16 of each 64 rows of its group."""
        down = self.block_rows // self.warpgroups // warpgroup.ROWS
        return Fragments(self.block, down, self.block_columns // COLUMNS, warpgroup.ROWS)

    def lower(self) -> Stmt:
        """The launch."""
        return self.block.lower((self.fragments.buffer,), self._body)

    def _body(self, copies: Copies, place: Place) -> Stmt:
        """One round is multiplied while the next is waited for: the stage that is filled is that of two rounds ago."""
        rounds = self.block.summed(
            copies,
            place.part,
            self.stages - 2,
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
        return unrolled(Do(f"hold.{sums.lanes}", (sums,), (sums,)), r=self.fragments.down)

    def _first(self) -> Expr:
        """The first rows of a group within its block, counted by 64."""
        return Var(THREAD) // warpgroup.GROUP * self.fragments.down

    def _multiplied(self, copies: Copies, stage: Expr) -> Stmt:
        """Begin to add what one round brought."""
        left, right = copies
        k, sums = Var("k"), self._sums()
        rows = _named(left, stage, self._first() + Var("r"), k)
        columns = (_named(right, stage, const(part), k) for part in range(self.block_columns // warpgroup.PANEL))
        shape = f"m{warpgroup.ROWS}n{self.block_columns}k{warpgroup.DEPTH}"
        name = f"wgmma.{shape}.f32.{TYPES[self.found.panel.dtype]}.{_lies(left)}.{_lies(right)}"
        product = Do(name, (sums,), (rows, *columns, sums))
        return Block(
            (
                Do("wgmma.fence", (), ()),
                unrolled(product, k=self.block_depth // warpgroup.DEPTH, r=self.fragments.down),
                Do("wgmma.commit", (), ()),
            )
        )


def _lies(copy: SharedTile) -> str:
    """See `warpgroup.named`."""
    return "k" if copy.tile.operand.is_deep else "mn"


def _named(copy: SharedTile, stage: Expr, part: Expr, k: Expr) -> Load:
    """What a thread names of 64 places along an operand by 16 along the reduction."""
    row, chunk = warpgroup.named(_lies(copy), Var(THREAD) % warpgroup.GROUP)
    if copy.tile.operand.is_deep:
        return copy.at(stage, part * warpgroup.PANEL + row, lined(k * warpgroup.DEPTH + chunk * CHUNK, CHUNK))
    return copy.at(stage, part, k * warpgroup.DEPTH + row, lined(chunk * CHUNK, CHUNK))

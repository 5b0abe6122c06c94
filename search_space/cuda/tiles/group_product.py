"""Products of warpgroups: from shared memory, by four warps together, which go on while they add to their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tunewright.codegen.expr.dtype import BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.gpu import WARP
from tunewright.codegen.instructions import warpgroup
from tunewright.codegen.ir.ir import Block, Do, Stmt
from tunewright.graph.task import Task

from ...patterns.product import Product
from ...space import Columns, Tiling
from .block_tile import match_tensor_product
from .fragments import Fragments
from .shared_tile import COLUMNS, ROWS, THREAD, product_depth, unroll
from .sides import operands, tiling
from .tiles import Tiles

TYPES = {DType.F16: "f16", DType.BF16: "bf16", DType.I8: "s8", DType.U8: "u8", DType.F32: "f32", DType.I32: "s32"}
"""The types of operands and sums, as instructions name them."""


def round_depth(product: Product) -> int:
    """Terms of a sum in a round: rows of a panel."""
    return warpgroup.ROW_BYTES // product.panel.dtype.size_bytes


def group_tiling(product: Product, columns: Columns) -> Tiling:
    """The tile of a warpgroup, that of a round of a block, and that of the block."""
    depth = np.full_like(columns["stages"], product_depth(product.panel.dtype))
    return tiling(product, columns, (columns["block_rows"] // columns["warpgroups"], columns["block_columns"], depth))


class SharedMatrix(Protocol):
    """A tile of an operand in shared memory, as products of warpgroups take it."""

    @property
    def dtype(self) -> DType: ...

    @property
    def layout(self) -> str:
        """How the operand lies in shared memory: see `warpgroup.chunk_of`."""

    def chunk(self, stage: Expr, part: Expr, k: Expr) -> Load:
        """The chunk that a thread names, of 64 indices along the operand, for product `k` of a round."""


def match_group_product(task: Task) -> Product | None:
    """The task's product, if it is one of narrow floats, or of bytes that lie along the reduction."""
    product = match_tensor_product(task)
    if product is None or product.panel.dtype.is_narrow:
        return product
    is_lengthwise = product.panel.dtype in BYTES and all(operand.is_deep for operand in operands(product))
    return product if is_lengthwise else None


def multiply_shared(
    sums: Load,
    left: Load,
    layout: str,
    right: SharedMatrix,
    stage: Expr,
    k: Expr,
    columns: int,
    *,
    is_first: bool = False,
) -> Stmt:
    """Product `k` of a round, of 64 rows by so many columns. Sums start at 0 if it is the first.

    `left` is what a thread names or has of the left operand, which lies in that layout.
    """
    parts = (right.chunk(stage, const(part), k) for part in range(columns // warpgroup.PANEL))
    kinds = ".".join(TYPES[dtype] for dtype in (sums.dtype, left.dtype, right.dtype))
    shape = f"m{warpgroup.ROWS}n{columns}k{product_depth(left.dtype)}"
    name = f"wgmma.{shape}.{kinds}.{layout}.{right.layout}"
    return Do(f"{name}.first", (sums,), (left, *parts)) if is_first else Do(name, (sums,), (left, *parts, sums))


def begin_products(*products: Stmt) -> Stmt:
    """Begin products, which go on until they are waited for."""
    return Block((Do("wgmma.fence", (), ()), *products, Do("wgmma.commit", (), ())))


def hold_sums(sums: Load) -> Stmt:
    """Keep what is computed with sums on its side of products."""
    return Do(f"hold.{TYPES[sums.dtype]}.{sums.lanes}", (sums,), (sums,))


@dataclass(frozen=True, slots=True)
class GroupProduct:
    """Products of one round, by warpgroups one below the other."""

    tiles: Tiles
    depth: int  # of a round
    fragments: Fragments  # of a warp: 16 of each 64 rows of its group

    @staticmethod
    def of(tiles: Tiles, depth: int, groups: int) -> GroupProduct:
        """The products of so many warpgroups, in rounds of such depth."""
        down = tiles.rows // groups // warpgroup.ROWS
        return GroupProduct(tiles, depth, Fragments(tiles, down, tiles.columns // COLUMNS, warpgroup.ROWS))

    @property
    def _sums(self) -> Load:
        """The sums of 64 rows, number `r`."""
        return self.fragments.sums(Var("r"), const(0), self.fragments.across)

    def hold(self) -> Stmt:
        """Keep what is computed with the sums on its side of products."""
        return unroll(hold_sums(self._sums), r=self.fragments.down)

    def _first(self) -> Expr:
        """The first rows of a group within its block, counted by 64."""
        return Var(THREAD) // warpgroup.GROUP * self.fragments.down

    def begin(self, left: SharedMatrix, right: SharedMatrix, stage: Expr) -> Stmt:
        """Begin the products of one round."""
        k = Var("k")
        rows = left.chunk(stage, self._first() + Var("r"), k)
        product = multiply_shared(self._sums, rows, left.layout, right, stage, k, self.tiles.columns)
        return begin_products(unroll(product, k=self.depth // product_depth(left.dtype), r=self.fragments.down))

    @property
    def row(self) -> Expr:
        """The first row of a warp within its block."""
        return self._first() * warpgroup.ROWS + Var(THREAD) % warpgroup.GROUP // WARP * ROWS

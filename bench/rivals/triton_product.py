"""A product of matrices in Triton, with the configurations that its autotuner chooses from."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILES, DEPTHS, WARPS, STAGES = (64, 128, 256), (32, 64), (4, 8), (3, 4)
"""Rows and columns of a tile, terms of the sums that a round brings, warps of a block, and rounds in flight."""

GROUP = 8
"""Tiles of rows that are taken in turn, for the columns that they share."""


def configurations() -> list[Any]:
    """All of these, but for tiles whose sums alone are more than the registers of a block."""
    return [
        triton.Config(
            {"TILE_ROWS": rows, "TILE_COLUMNS": columns, "TILE_DEPTH": depth, "GROUP": GROUP},
            num_warps=warps,
            num_stages=stages,
        )
        for rows in TILES
        for columns in TILES
        if rows * columns <= 128 * 256
        for depth in DEPTHS
        for warps in WARPS
        for stages in STAGES
    ]


@triton.jit  # type: ignore[untyped-decorator]
def product(  # type: ignore[no-untyped-def] # Triton's compiler looks every annotation up
    left,
    right,
    output,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """The product of matrices that lie row by row and divide into whole tiles, with sums in float32."""
    program = tl.program_id(0)
    tiles_of_rows, tiles_of_columns = ROWS // TILE_ROWS, COLUMNS // TILE_COLUMNS
    first = program // (GROUP * tiles_of_columns) * GROUP
    group = min(tiles_of_rows - first, GROUP)
    tile = program % (GROUP * tiles_of_columns)
    rows = (first + tile % group) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    columns = tile // group * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    terms = tl.arange(0, TILE_DEPTH)
    left_cells = left + rows[:, None] * DEPTH + terms[None, :]
    right_cells = right + terms[:, None] * COLUMNS + columns[None, :]
    sums = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for _ in range(DEPTH // TILE_DEPTH):
        sums = tl.dot(tl.load(left_cells), tl.load(right_cells), sums)
        left_cells += TILE_DEPTH
        right_cells += TILE_DEPTH * COLUMNS
    tl.store(output + rows[:, None] * COLUMNS + columns[None, :], sums.to(output.dtype.element_ty))

"""A product of matrices in Helion, which chooses all else itself."""

from __future__ import annotations

import helion.language as hl
import torch


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product, with sums in float32."""
    rows, depth = left.size()
    _, columns = right.size()
    output = torch.empty([rows, columns], dtype=left.dtype, device=left.device)
    for tile_rows, tile_columns in hl.tile([rows, columns]):
        sums = hl.zeros([tile_rows, tile_columns], dtype=torch.float32)
        for tile_depth in hl.tile(depth):
            sums = torch.addmm(sums, left[tile_rows, tile_depth], right[tile_depth, tile_columns])
        output[tile_rows, tile_columns] = sums.to(left.dtype)
    return output

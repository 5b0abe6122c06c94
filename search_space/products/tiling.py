"""Tiling: the tiles in a chunk of a product, and what tiles and chunks do to its loops, for features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tunewright.graph.task import Stage

from ..space import Columns, Tiling


def block_choices(tiles: int) -> tuple[int, ...]:
    """How many tiles along an axis may be of one chunk: 0 for all, or powers of two."""
    return (0, *(1 << n for n in range(max(tiles - 1, 1).bit_length())))


def tiling(stage: Stage, vector: str, tile: Columns, block: Columns, unroll: NDArray[np.int64]) -> Tiling:
    """The levels of a product: a register tile, the same over the whole reduction, a chunk, everything.

    `tile` and `block` map axes to extents of the register tile and to tiles in a chunk, 0 for all; what they leave out
    has 1. `unroll` is how often the body of the innermost reduction is copied.
    """
    one = np.ones(len(unroll), np.int64)
    extents = {a.name: one * a.extent for a in stage.axes + stage.reduce}
    register = dict.fromkeys(extents, one) | dict(tile) | {stage.reduce[-1].name: unroll}
    register[vector] = np.minimum(register[vector], extents[vector])
    panel = register | {a.name: extents[a.name] for a in stage.reduce}
    chunk = dict(panel)
    for axis, tiles in block.items():
        chunk[axis] = np.minimum(np.where(tiles == 0, extents[axis], register[axis] * tiles), extents[axis])
    chunks = one
    for spatial in stage.axes:
        chunks = chunks * -(-extents[spatial.name] // chunk[spatial.name])
    return Tiling(stage, (register, panel, chunk, extents), vector, chunks)

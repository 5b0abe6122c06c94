"""Packing a large constant into its room, a block at a time."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from .ir import Packing

BLOCK_BYTES = 1 << 19
"""About so much of a constant is mapped at once. What that takes in double precision, a few times as much, stays in the
caches, and is not asked of the system anew for each constant: a convolution's weights of 9 MB take a third of the time.
"""


def fill(room: NDArray[np.generic], array: NDArray[np.generic], packing: Packing) -> None:
    """Write the result of `packing.apply`, for an array of a tensor's shape, to an array of the packed shape."""
    outermost, inner = packing.splits[0][0], prod(packing.splits[0][1:])
    axis = packing.order[0]
    is_cut = packing.parts[0] == 0 and len(packing.parts) > packing.joined and axis not in dict(packing.maps)
    if not packing.maps or not is_cut:  # a copy alone
        room[...] = packing.arrange(array)
        return
    step = max(1, min(outermost, BLOCK_BYTES * outermost // max(array.nbytes, 1)))
    for begin in range(0, outermost, step):
        count = min(step, outermost - begin)
        block = replace(
            packing,
            padded=(count * inner, *packing.padded[1:]),
            splits=((count, *packing.splits[0][1:]), *packing.splits[1:]),
        )
        part = array[(slice(None),) * axis + (slice(begin * inner, (begin + count) * inner),)]
        room[begin : begin + count] = block.arrange(part)

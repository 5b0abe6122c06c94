"""Ops of our own for results whose size only a run tells. Light to import.

- `FindTrue(x)`, x bool [n]: the places of what is true, int64 [n], in order, zeros behind; their number, int64 [1].
- `SuppressBoxes(corners, scores, overlap, least, wanted)`: what NonMaxSuppression finds, of corners [images, boxes, 4]
  (the lower ones first), scores [images, classes, boxes], the overlap that is allowed, the score that must be exceeded,
  and how many boxes of a class are wanted, `most` at most. Results: places of boxes, int64 [images * classes * most];
  which of them have a box, bool likewise; and memory of its own, int64 like the scores.
- `FindLargest(x, wanted)`, x float32 [..., n]: the places of the largest elements of each row (of the smallest where
  `largest` is 0) in their order, int64 [..., most], of equal ones the first; as many as are wanted, int64 [1], zeros
  behind. NaN is the largest of all.
- `FindUnique(x, size)`, x float64 or int64 [n, m]: of as many rows as `size` says, int64 [1], the places of the first
  of each that is different, int64 [n], zeros behind, in ascending order, or in that of the places where `sorted` is 0;
  their number, int64 [1]; which of them each row is, and how often each occurs, int64 [n]; and memory of its own, int64
  [n, m] and [n]. NaN is one number, above all others; zeros of both signs are equal.
- `CutToSize(x, sizes...)`: x up to a size along each of the `axes`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..ir import Array, Node

CUT, FIND, LARGEST, SUPPRESS, UNIQUE = "CutToSize", "FindTrue", "FindLargest", "SuppressBoxes", "FindUnique"


def cut(x: Array, sizes: Iterable[tuple[int, Array]]) -> Array:
    """A copy of what is there of a tensor, for axes with their sizes."""
    place = [slice(None)] * x.ndim
    for axis, size in sizes:
        place[axis] = slice(int(size.item()))
    return np.array(x[tuple(place)])


def cut_to_size(node: Node, x: Array, *sizes: Array) -> Array:
    """What CutToSize computes."""
    return cut(x, zip(node.attrs["axes"], sizes, strict=True))

"""Flat indices along several axes, such as the number of a parallel chunk or of a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunewright.codegen.expr.expr import Expr
from tunewright.graph.task import Axis


def unravel(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the index along each axis of a flat index below the product of the extents; the last axis moves first."""
    total = stride = prod(extents)
    indices = []
    for extent in extents:
        stride //= extent
        outer = number // stride
        indices.append(outer if stride * extent == total else outer % extent)
    return indices


def axis_indices(axes: Sequence[Axis], number: Expr, wide: int = 1) -> dict[str, Expr]:
    """Return the index along each axis of a flat index.

    It counts groups of `wide` neighbours along the last axis, whose extent that divides: the place is of the first.
    """
    if not axes:
        return {}
    extents = [axis.extent for axis in axes]
    extents[-1] //= wide
    indices = unravel(number, extents)
    indices[-1] = indices[-1] * wide
    return {axis.name: index for axis, index in zip(axes, indices, strict=True)}

"""Digits: one number that counts along several axes, such as that of a parallel chunk, or of a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunewright.codegen.expr import Expr
from tunewright.graph.task import Axis


def digits(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """The place along each axis that a number below the product of the extents stands for; the last moves first."""
    total = stride = prod(extents)
    found = []
    for extent in extents:
        stride //= extent
        outer = number // stride
        found.append(outer if stride * extent == total else outer % extent)
    return found


def places(axes: Sequence[Axis], number: Expr, wide: int = 1) -> dict[str, Expr]:
    """The place along each axis that a number stands for.

    It counts groups of `wide` neighbours along the last axis, whose extent that divides: the place is of the first.
    """
    if not axes:
        return {}
    extents = [axis.extent for axis in axes]
    extents[-1] //= wide
    found = digits(number, extents)
    found[-1] = found[-1] * wide
    return {axis.name: place for axis, place in zip(axes, found, strict=True)}

"""Digits: one number that counts along several axes, such as that of a parallel chunk."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunewright.codegen.expr import Expr


def digits(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """The place along each axis that a number below the product of the extents stands for; the last moves first."""
    total = stride = prod(extents)
    found = []
    for extent in extents:
        stride //= extent
        outer = number // stride
        found.append(outer if stride * extent == total else outer % extent)
    return found

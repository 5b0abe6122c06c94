"""Steps: how many times a constant goes into a float, rounded and limited, as quantisation asks; without a division.

A quotient by a constant c is nearly `fma(x, h, x * l)`, h + l being 1 / c in two floats (Brisebarre, Muller and Raina,
"Accelerating Correctly Rounded Floating-Point Division When the Divisor Is Known in Advance", 2004). Rounded to whole
numbers it and the true quotient both grow with x and take few values, so they agree everywhere if they do around each
place where the one of them goes on to its next value; which is looked at for each constant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .dtype import INTEGERS, DType
from .expr import Const, Expr, Op, const, op, transform, walk
from .nodes import fact

F32, I32 = DType.F32, DType.I32

MOST_STEPS = 255
"""Steps between the limits, of bytes: each is looked at."""

SCALES = 2.0**-60, 2.0**60
"""Constants whose quotients are far from where floats end."""

WHOLE = 1.5 * 2**23
"""Added to a float32 of at most 2^22 in size, it leaves the nearest whole number, half to even, in the low bits."""

NEAR = np.arange(-4, 5, dtype=np.int32)
"""How many floats off a place is looked at: either quotient is within two of the true one."""


def quick_steps(expr: Expr) -> Expr:
    """The expression with no division by a constant where the quotient is rounded and limited: equal for all but NaN.

    For machines whose `fma` rounds once.
    """
    return transform(expr, lambda node: _as_floats(_quick(node))) if _has_steps(expr) else expr


@fact
def _has_steps(expr: Expr) -> bool:
    return any(isinstance(node, Op) and _match(node) is not None for node in walk(expr))


class _Steps(NamedTuple):
    """`min(max(round(x / scale) + zero, low), high)`, whole numbers but for x and the scale."""

    x: Expr
    scale: float
    zero: int
    low: int
    high: int


def _match(node: Expr) -> _Steps | None:
    """The steps that are cast to whole numbers here; None if there are none."""
    match node:
        case Op("cast", (Op("min", (Op("max", (total, Const() as low)), Const() as high)),), dtype) if (
            dtype in INTEGERS
        ):
            pass
        case _:
            return None
    match total:
        case Op("round", (Op("div", (x, Const() as scale), DType.F32),)):
            zero = 0.0
        case Op("add", (Op("round", (Op("div", (x, Const() as scale), DType.F32),)), Const(zero))):
            pass
        case _:
            return None
    limits = [float(value) for value in (zero, low.value, high.value)]
    if not all(value.is_integer() for value in limits) or not 0 < limits[2] - limits[1] <= MOST_STEPS:
        return None
    steps, held = _Steps(x, float(scale.value), *map(int, limits)), np.iinfo(dtype.value)
    return steps if held.min <= steps.low and steps.high <= held.max else None


def _quick(node: Expr) -> Expr:
    steps = _match(node)
    if steps is None:
        return node
    inverse = _inverse(steps.scale, steps.low - steps.zero, steps.high - steps.zero)
    if inverse is None:
        return node
    x = op("min", op("max", steps.x, inverse.least), inverse.most)
    quotient = op("fma", x, inverse.high, x * inverse.low)
    bits = op("bitcast", quotient + WHOLE, dtype=I32)
    return op("cast", bits + const(steps.zero, I32) if steps.zero else bits, dtype=node.dtype)


def _as_floats(node: Expr) -> Expr:
    """Quick steps that are floats again at once, less a zero point or not, without what makes whole numbers of them."""
    match node:
        case Op("cast", (Op("sub", (Op("cast", (Op("cast", (bits,)),), DType.I32), Const(behind))),), DType.F32):
            pass
        case Op("cast", (Op("cast", (bits,)),), DType.F32):
            behind = 0
        case _:
            return node
    match bits:
        case Op("bitcast", (Op("add", (_, Const(added))) as total,)) if added == WHOLE:
            zero = 0
        case Op("add", (Op("bitcast", (Op("add", (_, Const(added))) as total,)), Const(zero))) if added == WHOLE:
            pass
        case _:
            return node
    whole = total - WHOLE
    return whole + float(zero - behind) if zero != behind else whole


class _Inverse(NamedTuple):
    """An inverse in two parts, and the numbers between which its quotients are right."""

    high: float
    low: float
    least: float
    most: float


@lru_cache(maxsize=4096)
def _inverse(scale: float, low: int, high: int) -> _Inverse | None:
    """That of a scale, if all quotients that are rounded to low .. high are the true ones; None if one is not."""
    if not SCALES[0] <= scale <= SCALES[1]:
        return None
    divisor = np.float32(scale)
    head = np.float32(1 / np.float64(divisor))
    tail = np.float32(1 / np.float64(divisor) - np.float64(head))
    ends = (np.array([low, high]) * np.float64(divisor)).astype(np.float32)
    whole = np.arange(low, high)
    turns = ((whole + 0.5) * np.float64(divisor)).astype(np.float32)
    near = (turns.view(np.int32)[:, None] + NEAR).view(np.float32)
    near.sort(axis=1)
    true, quick = np.rint(near / divisor), np.rint(_fused(near, head, near * tail))
    is_right = np.array_equal(true, quick) and np.array_equal(true[:, [0, -1]], np.stack([whole, whole + 1], axis=1))
    at_ends = np.rint(ends / divisor), np.rint(_fused(ends, head, ends * tail))
    if not is_right or not all(np.array_equal(values, [low, high]) for values in at_ends):
        return None
    return _Inverse(float(head), float(tail), float(ends[0]), float(ends[1]))


def _fused(x: NDArray[np.float32], factor: np.float32, added: NDArray[np.float32]) -> NDArray[np.float32]:
    """x * factor + added, rounded once: in float64 to the neighbour that is odd, which no second rounding spoils."""
    product, other = x.astype(np.float64) * np.float64(factor), added.astype(np.float64)
    total = product + other
    part = total - product
    error = (product - (total - part)) + (other - part)
    is_even = total.view(np.int64) % 2 == 0
    odd = np.where(is_even & (error != 0), np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)

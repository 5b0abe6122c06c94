"""Quantisation of floats to bytes without a division, to the same byte for every number.

A quotient by a constant c is nearly `fma(x, h, x * l)`, h + l being 1 / c in two floats (Brisebarre, Muller and Raina,
"Accelerating Correctly Rounded Floating-Point Division When the Divisor Is Known in Advance", 2004). Neither it nor the
true quotient ever falls while x grows: |l| is at most 2^-24 h, so from one float to the next x * h grows by more than
x * l and its rounding can fall. So both are rounded to the same whole numbers everywhere if they are around each border
between two of these, and that is checked for each constant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .dtype import BYTES, DType
from .expr import Const, Expr, Op, const, op, transform, walk
from .nodes import fact
from .semantics import is_in_range

SCALES = 2.0**-60, 2.0**60
"""The least and the largest scale: quotients are far from where floats end."""

ROUNDING_MAGIC = 1.5 * 2**23
"""Added to a float32 of at most 2^22 in size, it leaves the nearest whole number, half to even, in the low bits."""

MOST_STEPS = 1 << 22
"""Whole numbers up to this one are exact with ROUNDING_MAGIC added."""

NEIGHBOURS = np.arange(-4, 5, dtype=np.int32)
"""How many floats off a border the quotients are compared."""


def without_divisions(expr: Expr) -> Expr:
    """The expression with products in the place of divisions by constants whose quotients are quantised to bytes.

    For machines whose `fma` of float32 rounds once. The bytes are the same, and what is dequantised from them. NaN
    becomes the least number.
    """
    return _rewritten(expr) if _has_quantisation(expr) else expr


@fact
def _has_quantisation(expr: Expr) -> bool:
    return any(_match(node) is not None for node in walk(expr))


@fact
def _rewritten(expr: Expr) -> Expr:
    return transform(transform(expr, _floats), _bytes)


class _Quantisation(NamedTuple):
    """`min(max(round(x / scale) + zero_point, low), high)` in a type that holds low .. high; of scale 1 without it."""

    x: Expr
    scale: float
    zero_point: int
    low: int
    high: int


def _match(node: Expr) -> _Quantisation | None:
    """The quantisation that ends in a cast to bytes here; None if there is none."""
    match node:
        case Op("cast", (Op("min", (Op("max", (steps, Const() as low)), Const() as high)),), dtype) if dtype in BYTES:
            numbers, limits = _match_steps(steps), (float(low.value), float(high.value))
            if numbers is None or not all(limit.is_integer() for limit in limits):  # infinities are none
                return None
            first, last = map(int, limits)
            if first < last and is_in_range(first, dtype) and is_in_range(last, dtype):
                return _Quantisation(*numbers, first, last)
    return None


def _match_steps(steps: Expr) -> tuple[Expr, float, int] | None:
    """A dividend, its scale and a zero point; None if it is something else."""
    zero_point = 0.0
    match steps:
        case Op("add", (steps, Const(zero_point, DType.F32))):
            pass
    match steps:
        case Op("round", (quotient,), DType.F32) if float(zero_point).is_integer():
            match quotient:
                case Op("div", (x, Const(scale))):
                    return x, float(scale), int(zero_point)
            return quotient, 1.0, int(zero_point)
    return None


def _floats(node: Expr) -> Expr:
    """Bytes that are floats again at once, less a number or not, without the bytes."""
    match node:
        case Op("cast", (Op("sub", (Op("cast", (inner,), DType.I32), Const(offset))),), DType.F32):
            pass
        case Op("cast", (inner,), DType.F32):
            offset = 0
        case _:
            return node
    shifted, zero_point = _shifted_steps(inner)
    more = zero_point - int(offset)
    if shifted is None or abs(more) > MOST_STEPS:
        return node
    steps = shifted - ROUNDING_MAGIC
    return steps + float(more) if more else steps


def _bytes(node: Expr) -> Expr:
    """Bytes, from the low bits of a sum."""
    shifted, zero_point = _shifted_steps(node)
    if shifted is None:
        return node
    bits = op("bitcast", shifted, dtype=DType.I32)
    return op("cast", bits + const(zero_point, DType.I32), dtype=node.dtype)


def _shifted_steps(node: Expr) -> tuple[Expr | None, int]:
    """The whole number of steps of a quantisation plus ROUNDING_MAGIC, and the zero point, which is to be added.

    None where it is no quantisation, or a division may give another number.
    """
    quantisation = _match(node)
    if quantisation is None:
        return None, 0
    x, scale, zero_point, low, high = quantisation
    inverse = _inverse(scale, low - zero_point, high - zero_point)
    if inverse is None:
        return None, 0
    x = op("select", op("lt", inverse.least, x), x, inverse.least)  # not `max`, which keeps NaN
    x = op("min", inverse.most, x)
    return _quotient(x, inverse) + ROUNDING_MAGIC, zero_point


def _quotient(x: Expr, inverse: _Inverse) -> Expr:
    if inverse.low:
        return op("fma", x, inverse.high, x * inverse.low)
    return x if inverse.high == 1 else x * inverse.high


class _Inverse(NamedTuple):
    """The inverse of a scale in two parts, and the numbers between which quotients by it are taken."""

    high: float
    low: float
    least: float
    most: float


@lru_cache(maxsize=4096)
def _inverse(scale: float, low: int, high: int) -> _Inverse | None:
    """The inverse of a scale for quotients of low to high whole steps; None if one would be rounded to another."""
    if not SCALES[0] <= scale <= SCALES[1] or max(abs(low), abs(high)) > MOST_STEPS:
        return None
    divisor = np.float32(scale)
    head = np.float32(1 / np.float64(divisor))
    tail = np.float32(1 / np.float64(divisor) - np.float64(head))

    def agree(x: NDArray[np.float32], expected: NDArray[np.float64]) -> bool:
        true, quick = np.rint(x / divisor), np.rint(fused(x, head, x * tail))
        return np.array_equal(true, quick) and np.array_equal(true[..., [0, -1]], expected)

    ends = (np.array([low, high]) * np.float64(divisor)).astype(np.float32)
    whole = np.arange(low, high, dtype=np.float64)
    borders = ((whole + 0.5) * np.float64(divisor)).astype(np.float32)
    near = np.sort((borders.view(np.int32)[:, None] + NEIGHBOURS).view(np.float32), axis=1)
    if not agree(ends, np.array([low, high])) or not agree(near, np.stack([whole, whole + 1], axis=1)):
        return None
    return _Inverse(float(head), float(tail), float(ends[0]), float(ends[1]))


def fused(x: NDArray[np.float32], factor: np.float32, added: NDArray[np.float32]) -> NDArray[np.float32]:
    """x * factor + added, rounded once: in float64 to the neighbour that is odd, which no second rounding spoils.

    The product is exact in float64 (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    """
    product, other = x.astype(np.float64) * np.float64(factor), added.astype(np.float64)
    total = product + other
    part = total - product
    error = (product - (total - part)) + (other - part)
    is_even = total.view(np.int64) % 2 == 0
    odd = np.where(is_even & (error != 0), np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)

"""Inclusive intervals of integers: what an op makes of the intervals of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from .dtype import DType
from .meaning import LIMITS

Interval = tuple[int, int]

UNBOUNDED = 1 << 200  # an end that isn't known; so large that dividing it by an int64 leaves it beyond int64
UNKNOWN: Interval = (-UNBOUNDED, UNBOUNDED)


def saturated(interval: Interval) -> Interval:
    """The interval with ends that no int64 holds made UNBOUNDED."""
    low, high = interval
    return (-UNBOUNDED if low < -(1 << 63) else low, UNBOUNDED if high >= 1 << 63 else high)


def type_range(dtype: DType) -> Interval:
    """All that a dtype can hold; UNKNOWN for I64 and floats."""
    return UNKNOWN if dtype is DType.I64 else LIMITS.get(dtype, UNKNOWN)


def difference(left: Interval, right: Interval) -> Interval:
    """The interval of `left - right` for unrelated values."""
    return (left[0] - right[1], left[1] - right[0])


def compared(name: str, gap: Interval) -> Interval:
    """Truth of `left name right`, (0, 1) if open, from the interval of `left - right`."""
    low, high = gap
    match name:
        case "lt":
            return (int(high < 0), int(low < 0))
        case "le":
            return (int(high <= 0), int(low <= 0))
        case "eq":
            return (int(low == high == 0), int(low <= 0 <= high))
    return (int(not low <= 0 <= high), int(not low == high == 0))


def op_interval(name: str, args: Sequence[Interval]) -> Interval | None:
    """The interval of an op on integers; None if nothing is known."""
    match name, args:
        case "add", ((a, b), (c, d)):
            return (a + c, b + d)
        case "sub", (left, right):
            return difference(left, right)
        case "mul", ((a, b), (c, d)):
            corners = (a * c, a * d, b * c, b * d)
            return (min(corners), max(corners))
        case "floordiv", ((a, b), (c, d)) if c > 0:
            return (min(a // c, a // d), max(b // c, b // d))
        case "div", ((a, b), (c, d)) if c > 0:
            return (min(-(-a // c), 0) if a < 0 else a // d, b // c if b > 0 else -(-b // d))
        case "mod", ((a, b), (c, d)) if c > 0:
            return (0, min(b, d - 1) if a >= 0 else d - 1)
        case "min" | "and", ((a, b), (c, d)):
            return (min(a, c), min(b, d))
        case "max" | "or", ((a, b), (c, d)):
            return (max(a, c), max(b, d))
        case "neg", ((a, b),):
            return (-b, -a)
        case "not", ((a, b),):
            return (1 - b, 1 - a)
        case "abs", ((a, b),):
            return (max(a, -b, 0), max(-a, b))
        case "shl", ((a, b), (c, d)) if c >= 0 and d < 64:
            return (min(a << c, a << d), max(b << c, b << d))
        case "shr", ((a, b), (c, d)) if c >= 0 and d < 64:
            return (min(a >> c, a >> d), max(b >> c, b >> d))
        case (("cast" | "hmax" | "hmin"), (inner,)):
            return inner
    return None

"""The meaning of ops, each as a function of numpy arrays. The oracle, the interpreter and constant folding share it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .dtype import DType

Number = int | float | bool

EIGHTHS = (0, -289342, -509968, -655657, -719629, -694486, -572163, -343865)
"""Added to k << 20, this gives the bits of 2^(k/8 - 127) as a float32; by the lowest three bits of k."""


def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _zip(a: Any, b: Any, half: int) -> Any:
    lanes = np.stack(np.broadcast_arrays(a, b), -1)
    middle = lanes.shape[-2] // 2
    pairs = lanes[..., middle:, :] if half else lanes[..., :middle, :]
    return pairs.reshape(*lanes.shape[:-2], 2 * middle)


def _divide(a: Any, b: Any) -> Any:
    kind = np.result_type(a, b)
    if np.issubdtype(kind, np.floating):
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    is_below = (np.asarray(a) < 0) != (np.asarray(b) < 0)
    return np.where(is_below & (np.fmod(a, b) != 0), quotient + kind.type(1), quotient)


def _power(a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a), np.floating):
        return np.power(a, b)
    square, exponent = np.broadcast_arrays(a, b)
    is_kept = (exponent >= 0) | (square == 1) | (square == -1)
    result, left = np.ones_like(square), np.abs(exponent).astype(np.uint64)
    while left.any():
        result = np.where(left & np.uint64(1), result * square, result)
        square, left = square * square, left >> np.uint64(1)
    return np.where(is_kept, result, np.zeros_like(result))


def _byte_products(a: Any, b: Any) -> Any:
    """The four products of the bytes of two words: unsigned ones by signed ones."""
    left, right = (np.array(words, np.int32)[..., None].view(kind) for words, kind in ((a, np.uint8), (b, np.int8)))
    return left.astype(np.int32) * right


def _dot4(a: Any, b: Any, total: Any) -> Any:
    return total + np.sum(_byte_products(a, b), axis=-1, dtype=np.int32)


def _dot4_small(a: Any, b: Any, total: Any) -> Any:
    """As `_dot4`. Sums of two products saturate, as in machines: a promise that is broken shows."""
    products = _byte_products(a, b)
    pairs = np.clip(products[..., ::2] + products[..., 1::2], -(1 << 15), (1 << 15) - 1)
    return total + np.sum(pairs, axis=-1, dtype=np.int32)


def _dot2(a: Any, b: Any, total: Any) -> Any:
    for half in range(2):
        left, right = (_signed_part(words, 16, half) for words in (a, b))
        total = np.add(total, np.multiply(left, right))
    return total


def _dot2_bf16(a: Any, b: Any, total: Any) -> Any:
    """Products of bfloat16 are exact in float32, but at its ends: each sum rounds once. The upper halves come first."""
    for half in (1, 0):
        left, right = (_float_part(words, half) for words in (a, b))
        total = np.add(total, np.multiply(left, right))
    return total


def _float_part(words: Any, number: int) -> Any:
    """A half of words as the bfloat16 that it is, in float32: its upper half."""
    words = np.asarray(words, np.int32)
    return np.array(np.bitwise_and(words, -1 << 16) if number else np.left_shift(words, 16)).view(np.float32)


def _widen_bytes(pair: Any) -> Any:
    words = np.asarray(pair, np.int32)
    return np.bitwise_or(
        np.bitwise_and(_signed_part(words, 8, 0), 0xFFFF), np.left_shift(_signed_part(words, 8, 1), 16)
    )


def _signed_part(words: Any, bits: int, number: int) -> Any:
    """A part of words of 32 bits, counted from the lowest, with its sign."""
    return np.right_shift(np.left_shift(words, 32 - bits * (number + 1)), 32 - bits)


OPS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,  # IEEE for floats, towards zero for integers as in C; the least integer by -1 is itself
    "rem": np.fmod,  # what "div" of integers, or a whole quotient of floats, leaves: its sign is the dividend's
    "floordiv": np.floor_divide,  # index arithmetic: dividend >= 0, divisor > 0, as `verify` sees to
    "mod": np.mod,  # likewise
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,  # half to even
    "fma": lambda a, b, c: a * b + c,  # the machine may round once instead of twice
    "dot4": _dot4,  # of two words, the sum of products of their four bytes, and a total: unsigned bytes by signed ones
    "dot4_small": _dot4_small,  # likewise, where the sum of the first two products has 16 bits, that of the others too
    "dot2": _dot2,  # of two words, the sum of products of their signed halves, and a total
    "dot2_bf16": _dot2_bf16,  # of two words, the sum of products of their halves, bfloat16, and a float32: two sums
    "widen_bytes": _widen_bytes,  # of a number of two signed bytes, the word of which they are the signed halves
    "exp": np.exp,
    "log": np.log,
    "erf": _erf,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "pow": _power,  # of integers to negative powers what is left towards zero, as of fractions
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "shl": np.left_shift,
    "shr": np.right_shift,  # arithmetic for signed integers
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "cast": lambda x: x,  # the dtype of the node converts; floats go to integers towards zero
    "bitcast": lambda x: x,  # same width, same bits
    "exp2_bits": lambda k: np.left_shift(k, 20) + np.array(EIGHTHS, np.int32)[np.bitwise_and(k, 7)],
    "hsum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "hmax": lambda x: np.max(x, axis=-1, keepdims=True),
    "hmin": lambda x: np.min(x, axis=-1, keepdims=True),
    "hprod": lambda x: np.prod(x, axis=-1, keepdims=True),
    "zip_low": lambda a, b: _zip(a, b, 0),
    "zip_high": lambda a, b: _zip(a, b, 1),
}
"""Every op and its meaning on numpy arrays (lanes are the last axis)."""


def compute(name: str, dtype: DType, values: Sequence[Any]) -> Any:
    """An op on the values of its arguments, in the dtype of the result."""
    if name == "bitcast":
        return np.asarray(values[0]).view(dtype.numpy)
    return np.asarray(OPS[name](*values)).astype(dtype.numpy, copy=False)


INDEXING: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "min": min,
    "max": max,
}
"""Arithmetic on indices, without the cost of numpy's scalars."""


def fold(name: str, kinds: Sequence[DType], numbers: Sequence[Number], dtype: DType) -> Number:
    """The value of an op, to a dtype, on numbers of these dtypes."""
    quick = INDEXING.get(name)
    if quick and kinds[0] is DType.I64:
        result: Number = quick(*numbers)
        if is_in_range(int(result), DType.I64):
            return result
    with np.errstate(all="ignore"):
        values = [kind.numpy.type(number) for kind, number in zip(kinds, numbers, strict=True)]
        value: Number = compute(name, dtype, values).item()
    return value


LIMITS: Mapping[DType, tuple[int, int]] = {
    dtype: (0, 1) if dtype is DType.BOOL else (int(np.iinfo(dtype.value).min), int(np.iinfo(dtype.value).max))
    for dtype in DType
    if not dtype.is_float
}
"""The least and the largest value of each dtype of whole numbers, and of BOOL."""


def is_in_range(value: int, dtype: DType) -> bool:
    """Whether an integer dtype, or BOOL, holds the value."""
    least, largest = LIMITS[dtype]
    return least <= value <= largest


Interval = tuple[int, int]

UNBOUNDED = 1 << 200  # an end that isn't known; so large that dividing it by an int64 leaves it beyond int64
UNKNOWN: Interval = (-UNBOUNDED, UNBOUNDED)


def saturate(interval: Interval) -> Interval:
    """The interval with ends that no int64 holds made UNBOUNDED."""
    low, high = interval
    return (-UNBOUNDED if low < -(1 << 63) else low, UNBOUNDED if high >= 1 << 63 else high)


def type_range(dtype: DType) -> Interval:
    """The range of a dtype; UNKNOWN for I64 and floats."""
    return UNKNOWN if dtype is DType.I64 else LIMITS.get(dtype, UNKNOWN)


def difference(left: Interval, right: Interval) -> Interval:
    """The interval of `left - right` for unrelated values."""
    return (left[0] - right[1], left[1] - right[0])


def comparison(name: str, gap: Interval) -> Interval:
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
        case "bitand", ((a, b), (c, d)) if c >= 0:
            return (0, min(b, d) if a >= 0 else d)
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

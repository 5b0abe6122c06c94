"""Constant factors: which of them may move from what a sum of products reads to what it gives."""

from __future__ import annotations

from tunewright.codegen.expr import Const, Expr, Op, const

MODERATE = (2.0**-16, 1.0)
"""Least and largest size of a factor that may move behind a sum of products: sums without a large one might have too
few digits where those with it don't, those without a small one might overflow. (Attention's is one over the root of a
row's length.)"""


def factored(body: Expr) -> tuple[Expr, Const | None]:
    """A body without its constant factor, and the factor, if that is one of MODERATE size."""
    match body:
        case Op("mul", (rest, Const(value, dtype))) | Op("mul", (Const(value, dtype), rest)):
            factor = const(value, dtype)
        case Op("div", (rest, Const(value, dtype))) if value and dtype.is_float:
            factor = const(1 / value, dtype)
        case _:
            return body, None
    low, high = MODERATE
    return (rest, factor) if low <= abs(factor.value) <= high else (body, None)

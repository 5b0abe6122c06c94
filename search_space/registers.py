"""Names of variables and registers that patterns and loops share, and one step of a fold."""

from __future__ import annotations

from tunewright.codegen.expr.expr import Expr, Op, op
from tunewright.graph.task import COMBINERS

TILE, INNER = ".tile", ".in"
"""Suffixes of the variables that an expression may use beside an axis: the number of its tile, the place inside it."""


ACC, TOTAL, HOIST, RESULT = ".acc", ".total", ".kept", ".made"
"""Registers: partial results, results folded across lanes, loads made early, what is written last.

Tensors of tasks have no dot.
"""


def fold_value(combiner: str, total: Expr, value: Expr) -> Expr:
    """Fold one more value into a total; a float product joins a sum as a fused multiply-add."""
    match combiner, value:
        case "sum", Op("mul", (left, right), dtype) if dtype.is_float:
            return op("fma", left, right, total)
        case _:
            return op(COMBINERS[combiner], total, value)

"""Names of variables and registers that patterns and loops share, and one step of a fold."""

from __future__ import annotations

from tunewright.codegen.expr.expr import Const, Expr, Op, op
from tunewright.graph.task import COMBINERS

TILE, INNER = ".tile", ".in"
"""Suffixes of the variables that an expression may use beside an axis: the number of its tile, the place inside it."""


ACC, TOTAL, HOIST, RESULT = ".acc", ".total", ".kept", ".made"
"""Registers: partial results, results folded across lanes, loads made early, what is written last.

Tensors of tasks have no dot.
"""


def fold_value(combiner: str, total: Expr, value: Expr) -> Expr:
    """Fold one more value into a total; products join a sum by one instruction, where there is one."""
    match combiner, value:
        case "sum", Op("mul", (left, right), dtype) if dtype.is_float:
            return op("fma", left, right, total)
        case "sum", Op("dot4", (left, right, Const(0))):
            return op("dot4", left, right, total)
        case _:
            return op(COMBINERS[combiner], total, value)

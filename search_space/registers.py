"""Names of variables and registers that patterns and loops share."""

from __future__ import annotations

TILE, INNER = ".tile", ".in"
"""Suffixes of the variables that an expression may use beside an axis: the number of its tile, the place inside it."""


ACC, TOTAL, HOIST, RESULT = ".acc", ".total", ".kept", ".made"
"""Registers: partial results, results folded across lanes, loads made early, what is written last.

Tensors of tasks have no dot.
"""

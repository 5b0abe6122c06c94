"""Agreement: whether two runtimes say the same of a whole model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.evaluation.onnx_form import dtype_name
from tunewright.graph.tolerance import TOLERANCE
from tunewright.workers.measure.check import difference

from .maps import as_rows

WHOLE_TOLERANCE = 1e-3
"""Largest error of an output of a whole model, relative to its largest magnitude: those of its ops add up."""


def worst_error(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float | None, str | None]:
    """The largest error of any output, relative to the largest magnitude in it.

    None where outputs can't be compared (another type or shape, or NaN at other places), and then what is wrong.
    """
    if len(ours) != len(theirs):
        return None, f"outputs are {len(ours)}, not {len(theirs)}"
    worst = 0.0
    for number, (mine, right) in enumerate(zip(map(as_rows, ours), map(as_rows, theirs), strict=True)):
        error, fault = _error(mine, right)
        if error is None:
            return None, f"output {number}{fault}"
        worst = max(worst, error)
    return worst, None


def _error(mine: Any, right: Any) -> tuple[float | None, str]:
    """The error of one output, and what is wrong where there is none: what follows its name."""
    kind, right_kind = dtype_name(mine), dtype_name(right)
    if mine.shape != right.shape or kind != right_kind:
        return None, f" is {kind}{list(mine.shape)}, not {right_kind}{list(right.shape)}"
    if kind == "string":
        return (0.0, "") if mine.tolist() == right.tolist() else (None, " has other strings")
    fault, error = difference(mine, right, math.inf)
    return (error, "") if math.isfinite(error) else (None, f": {fault}")


def float_errors(labels: Sequence[str], ours: Sequence[Any], theirs: Sequence[Any]) -> dict[str, float | None]:
    """The largest error of each output of floats, by its name, relative to the largest magnitude in it.

    None where that can't be compared: of another shape, or infinite or NaN at other places.
    """
    outputs = zip(labels, map(as_rows, ours), map(as_rows, theirs), strict=True)
    is_float = {kind.value for kind in DType if kind.is_float}
    return {label: _error(mine, right)[0] for label, mine, right in outputs if dtype_name(right) in is_float}


def disagreement(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    """What is wrong with their outputs, where they are none of ours within the tolerance; empty where they are."""
    error, fault = worst_error(theirs, ours)
    if error is None:
        return fault or ""
    tolerance = max([WHOLE_TOLERANCE, *(TOLERANCE.get(as_rows(output).dtype, 0.0) for output in ours)])
    return "" if error <= tolerance else f"the largest error is {error:.2g}, more than {tolerance:.2g}"

"""Agreement: whether two runtimes say the same of a whole model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
        kind, right_kind = dtype_name(mine), dtype_name(right)
        if mine.shape != right.shape or kind != right_kind:
            return None, f"output {number} is {kind}{list(mine.shape)}, not {right_kind}{list(right.shape)}"
        if kind == "string":
            if mine.tolist() != right.tolist():
                return None, f"output {number} has other strings"
            continue
        fault, error = difference(mine, right, math.inf)
        if not math.isfinite(error):
            return None, f"output {number}: {fault}"
        worst = max(worst, error)
    return worst, None


def disagreement(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    """What is wrong with their outputs, where they are none of ours within the tolerance; empty where they are."""
    error, fault = worst_error(theirs, ours)
    if error is None:
        return fault or ""
    tolerance = max([WHOLE_TOLERANCE, *(TOLERANCE.get(as_rows(output).dtype, 0.0) for output in ours)])
    return "" if error <= tolerance else f"the largest error is {error:.2g}, more than {tolerance:.2g}"

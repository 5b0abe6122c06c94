"""Tolerances: how far results of kernels may be off those of the oracle."""

from __future__ import annotations

from math import prod, sqrt

from tunewright.codegen.expr.dtype import DType

from .task import Task

MODERATE = (2.0**-16, 1.0)
"""Least and largest size of a factor that may move behind a sum of products: sums without a large one might have too
few digits where those with it don't, those without a small one might overflow. (Attention's is one over the root of a
row's length.)"""

TOLERANCE = {
    DType.F64.numpy: 1e-10,
    DType.F32.numpy: 1e-4,
    DType.F16.numpy: 2e-3,
    DType.BF16.numpy: 1.6e-2,
}
"""Largest error of an output with short sums, relative to its largest magnitude; other types must be equal. For narrow
types, which are computed in float32, it is two units in the last place: values nearly half way between two may be
rounded either way."""

SHORT = 4096
"""Terms of a sum above which the tolerance grows with the root of their number, as errors do."""


def tolerance_factor(task: Task) -> float:
    """The factor of TOLERANCE for the outputs of a task."""
    terms = max((prod(axis.extent for axis in stage.reduce) for stage in task.stages), default=1)
    return max(1.0, sqrt(terms / SHORT))


def tolerance(task: Task, dtype: DType) -> float:
    """The tolerance of an output of this type of a task."""
    return TOLERANCE.get(dtype.numpy, 0.0) * tolerance_factor(task)

"""What ONNX's evaluator differs in, beside what `graph/evaluation/corrections.py` mends."""

from __future__ import annotations

import numpy as np

from ..answers import EVALUATOR, OURS, RUNTIME
from ..exactness import NORMS, STEPS
from .difference import Difference


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    return difference.who == EVALUATOR and difference.is_narrow()


def stands_alone(difference: Difference) -> bool:
    """Ours is right, and the evaluator is slightly off, as numpy's functions and sums are; or on another step then."""
    if difference.who != EVALUATOR:
        return False
    are_two = RUNTIME in difference.arrays and np.array_equal(difference.arrays[OURS], difference.arrays[RUNTIME])
    if are_two and difference.has_op(STEPS):
        return True
    if difference.bound is None:
        return False
    if not np.logical_or(difference.right, difference.bound.allows(difference.arrays[OURS])).all():
        return False
    near = 1e-2 if difference.has_op(NORMS) else 1e-4  # its variance is a difference of means
    is_near = np.isclose(difference.arrays[EVALUATOR], difference.bound.centre, rtol=near, equal_nan=True)
    return bool(np.logical_or(difference.right, is_near).all())

"""What ONNX's evaluator differs in, beside what `graph/evaluation/corrections.py` mends."""

from __future__ import annotations

import numpy as np

from ..answers import EVALUATOR, OURS, RUNTIME
from ..exactness import GATED, NORMS, STEPS
from .difference import Difference, ExplainedElements


def evaluates_narrowly(difference: Difference) -> bool:
    """The evaluator computes narrow floats in their own type, sums too."""
    return difference.who == EVALUATOR and difference.is_narrow()


def stands_alone(difference: Difference) -> ExplainedElements:
    """Ours is right, and the evaluator is slightly off, as numpy's functions and sums are; or on another step then."""
    if difference.who != EVALUATOR:
        return False
    are_two = RUNTIME in difference.arrays and np.array_equal(difference.arrays[OURS], difference.arrays[RUNTIME])
    if are_two and difference.has_op(STEPS):
        return True
    if difference.bound is None:
        return False
    # Its variance is a difference of means, and without a limit a state grows, with its errors, from step to step.
    near = 1e-2 if difference.has_op(NORMS | GATED) else 1e-4
    is_near = np.isclose(difference.arrays[EVALUATOR], difference.bound.centre, rtol=near, equal_nan=True)
    return np.asarray(is_near & difference.bound.allows(difference.arrays[OURS]))

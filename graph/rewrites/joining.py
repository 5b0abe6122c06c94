"""Constants joined ahead of time, and whether what comes out is as good as they were."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def product(array: Any, factor: Any) -> Any:
    """An array times numbers in float64, rounded once, to its type."""
    with np.errstate(all="ignore"):
        return (np.asarray(array, np.float64) * factor).astype(array.dtype)


def keeps_range(joined: Any, array: Any, factor: Any) -> bool:
    """Whether a product is as good as the constant that was multiplied: finite, and nowhere small where that was not.

    Small is zero or subnormal, which has fewer digits; multiplying by zero makes zero. All have the shape of `joined`,
    or broadcast to it.
    """
    least = ml_dtypes.finfo(joined.dtype).tiny  # type: ignore[no-untyped-call]
    lost = (np.abs(joined) < least) & (np.abs(array) >= least) & (np.asarray(factor) != 0)
    return bool(np.isfinite(joined).all()) and not bool(lost.any())

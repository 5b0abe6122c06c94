"""Constants joined ahead of time, and whether what comes out is as good as they were."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def product(array: Any, factor: Any) -> Any:
    """An array times numbers in float64, rounded once, to its type."""
    with np.errstate(all="ignore"):
        return (np.asarray(array, np.float64) * factor).astype(array.dtype)


def keeps_range(joined: Any, *parts: Any) -> bool:
    """Whether a constant is as good as those that it was made of: finite, and nowhere small where none of them was.

    Small is zero or subnormal in the type of `joined`, which has fewer digits. The parts broadcast to it.
    """
    least = ml_dtypes.finfo(joined.dtype).tiny  # type: ignore[no-untyped-call]
    small = np.abs(joined) < least
    if small.any():
        for part in parts:
            small = small & (np.abs(part) >= least)
    return bool(np.isfinite(joined).all()) and not bool(small.any())

"""float32 values in narrow types: as they are, or rounded."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NARROW = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
"""Those that kernels cast to float32, in the order in which they are tried: values that are drawn in either have it as
the first that holds them."""

SAMPLE = 1024
"""Elements that are looked at first: of most weights one of them needs float32."""


def narrow_type(array: np.ndarray[Any, Any]) -> np.dtype[Any] | None:
    """The narrow type that has all values of a float32 array; None if neither has."""
    if array.dtype != np.float32 or not array.size:
        return None
    sample = array.reshape(-1)[:: max(1, array.size // SAMPLE)]
    with np.errstate(over="ignore"):  # what is beyond the type is infinite, and differs
        holds = (dtype for dtype in NARROW if all(_survives(part, dtype) for part in (sample, array)))
        return next(holds, None)


def _survives(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    return np.array_equal(array, array.astype(dtype).astype(np.float32))


def bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """A float32 array rounded to bfloat16; None if a finite number of it would be infinite."""
    with np.errstate(over="ignore"):
        rounded = array.astype(ml_dtypes.bfloat16)
    is_kept = np.array_equal(np.isfinite(array), np.isfinite(rounded.astype(np.float32)))
    return rounded if is_kept else None

"""Numbers by which dividing is multiplying by another number, to the last bit."""

from __future__ import annotations

from math import frexp

import numpy as np


def has_exact_inverse(value: float, dtype: str) -> bool:
    """Whether 1 / value is a float of that type, and not a subnormal: so it is of powers of two."""
    if abs(frexp(value)[0]) != 0.5:
        return False
    limits = np.finfo(dtype)
    return float(limits.tiny) <= abs(1 / value) <= float(limits.max)

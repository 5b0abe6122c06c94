"""Ops on single elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Array
from .corrected import Corrected


class Softsign(Corrected):
    """x / (1 + |x|)."""

    def _run(self, x: Any, **_: Any) -> tuple[Array]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class PRelu(Corrected):
    """Times the slope below zero alone: 0 times an infinite slope is no number."""

    def _run(self, x: Any, slope: Any, **_: Any) -> tuple[Array]:
        return (np.asarray(np.where(x < 0, x * slope, x), x.dtype),)


class Pow(Corrected):
    """Powers in the type of the base. Those of integers are cut off towards zero: 2 to the power of -1 is 0."""

    def _run(self, x: Any, exponent: Any, **_: Any) -> tuple[Array]:
        if x.dtype.kind not in "iu" or exponent.dtype.kind not in "iu":
            return (np.asarray(np.power(x, exponent)).astype(x.dtype),)
        most = np.uint64(np.iinfo(np.int64).max)
        whole = (np.minimum(exponent, most) if exponent.dtype == np.uint64 else exponent).astype(np.int64)
        powers = np.power(x, np.abs(whole))
        return (np.asarray(np.where((whole >= 0) | (np.abs(x) == 1), powers, 0)).astype(x.dtype),)


class Mean(Corrected):
    """The mean of all operands, which broadcast."""

    def _run(self, *operands: Any, **_: Any) -> tuple[Array]:
        wide = np.result_type(operands[0].dtype, np.float32)
        total = sum(operand.astype(wide) for operand in operands)
        return (np.asarray(total / np.asarray(len(operands), wide)).astype(operands[0].dtype),)

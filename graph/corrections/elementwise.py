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


class Mean(Corrected):
    """The mean of all operands, which broadcast."""

    def _run(self, *operands: Any, **_: Any) -> tuple[Array]:
        wide = np.result_type(operands[0].dtype, np.float32)
        total = sum(operand.astype(wide) for operand in operands)
        return (np.asarray(total / np.asarray(len(operands), wide)).astype(operands[0].dtype),)

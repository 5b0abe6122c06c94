"""An op of our own for probabilities of support vector machines.

`CouplePairs(q)`, q float32 [rows, classes, classes]: the probabilities of classes from those of each two of them, after
Wu, Lin and Weng ("Probability estimates for multi-class classification by pairwise coupling", 2004, algorithm 2). With
r_ij the probability of class i if it is i or j, q_ii is the sum of r_ji^2, and q_ij is -r_ji r_ij. The result is
[2, rows, classes], the second half of which is memory of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Array, Node

COUPLE = "CouplePairs"

_ROUNDS = 100
_LEAST_ERROR = np.float32(0.005)
"""Divided by the number of classes: where the rounds end."""


def couple_pairs(_: Node, q: Array) -> Array:
    """What CouplePairs computes, rounded as the runtime's function rounds."""
    probabilities = np.stack([_couple(matrix) for matrix in q])
    return np.stack([probabilities, np.zeros_like(probabilities)])


def _couple(q: Any) -> Array:
    count = np.float32(len(q))
    p: Any = np.full(len(q), np.float32(1) / count)
    with np.errstate(all="ignore"):
        for _ in range(_ROUNDS):
            qp = np.cumsum(q * p, axis=1, dtype=np.float32)[:, -1]
            total = np.cumsum(p * qp, dtype=np.float32)[-1]
            errors = np.abs(qp - total)
            if np.max(errors, initial=0, where=errors == errors) < _LEAST_ERROR / count:
                break
            for i in range(len(q)):
                step = (total - qp[i]) / q[i, i]
                p[i] += step
                total = (total + step * (step * q[i, i] + 2 * qp[i])) / (1 + step) / (1 + step)
                qp = (qp + step * q[i]) / (1 + step)
                p = p / (1 + step)
    return np.asarray(p)

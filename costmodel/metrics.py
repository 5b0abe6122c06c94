"""Metrics: how well scores (higher is better) order candidates whose times are known.

All take `scores` [n] and `times_s` [n] of one task; a failed candidate has time inf.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pairwise_accuracy(scores: Floats, times_s: Floats, spans_s: Floats | None = None) -> float:
    """The share of pairs with different times that the scores order rightly; a tie of scores counts half.

    With the intervals of the times, `spans_s` [n, 2], only of pairs whose intervals don't meet: nobody knows which of
    the others is faster. 1 is perfect, 0.5 is chance. nan if there are no such pairs. Memory grows with n squared.
    """
    left, right = np.triu_indices(len(scores), 1)
    faster = np.sign(_difference(times_s[right], times_s[left]))
    better = np.sign(scores[left] - scores[right])
    is_clear = faster != 0
    if spans_s is not None:
        low, high = spans_s.T
        is_clear &= (low[left] > high[right]) | (low[right] > high[left])
    if not is_clear.any():
        return float("nan")
    return float(np.mean(0.5 + 0.5 * faster[is_clear] * better[is_clear]))


def peak(scores: Floats, times_s: Floats, k: int) -> float:
    """Speed of the best of the k highest scores, relative to the best of all: 1 is perfect. nan if all failed."""
    best, top = times_s.min(), times_s[np.argsort(-scores, kind="stable")[:k]].min()
    return float(best / top) if np.isfinite(best) else float("nan")


def rank_correlation(scores: Floats, times_s: Floats) -> float:
    """Spearman's: 1 if the scores order the candidates from fastest to slowest, -1 if the other way round.

    Ties share their mean rank. nan if all scores or all times are equal.
    """
    a, b = _ranks(scores), -_ranks(times_s)
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def _difference(a: Floats, b: Floats) -> Floats:
    """a - b, where two failures are equal."""
    both = np.isinf(a) & np.isinf(b)
    return np.subtract(a, b, out=np.zeros(len(a)), where=~both)


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

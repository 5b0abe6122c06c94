"""Coverage: how much of a model runs in native kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model runs in native kernels."""

    native: int  # nodes, after rewriting
    fallback: Mapping[str, int]  # op -> nodes that run through the reference evaluator: right, but slow
    tuned: int  # tasks whose schedule was the best measured for this target
    untuned: int  # on their default schedule, or on an untried one where the default fails
    transferred: int = 0  # the others: on what is best for a similar target or task, or on a pick of the cost model

    @property
    def share(self) -> float:
        """Native nodes among all."""
        return self.native / max(self.native + sum(self.fallback.values()), 1)


def fallback_share(fallback: Mapping[str, int], kernels_ms: float | None, whole_ms: float | None) -> float | None:
    """The part of a run that nodes without a kernel take: what kernels don't. None where that is not known."""
    if not fallback:
        return 0.0
    return None if kernels_ms is None or not whole_ms else max(0.0, 1.0 - kernels_ms / whole_ms)

"""Timings of whole models that say what the test wants."""

from __future__ import annotations

from collections.abc import Callable

from tunewright.tuner.search.whole_model import ModelTimes, Variants
from tunewright.workers.measure.sampling import CallLatency


def takes(**times_s: float) -> Callable[[Variants], ModelTimes]:
    """Times the whole model: nine rounds of each, which go up and down together by 5%, and apart by half a percent."""

    def timing(wanted: Variants) -> ModelTimes:
        rounds = [1 + 0.05 * (n % 3 - 1) for n in range(9)]
        return ModelTimes(
            {
                name: CallLatency(
                    tuple(times_s[name] * pace * (1 + 0.005 * ((n + k) % 2)) for n, pace in enumerate(rounds))
                )
                for k, name in enumerate(wanted)
            }
        )

    return timing

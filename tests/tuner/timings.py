"""Timings of whole models that say what the test wants."""

from __future__ import annotations

from collections.abc import Callable

from tunewright.tuner.search.whole_model import ModelTimes, Variants
from tunewright.workers.measure.call_latency import CallLatency
from tunewright.workers.measure.noise import UNDISTURBED, Disturbance

STOLEN = Disturbance(1.0, 0.5)
"""Half of the time the processors were away."""


VENDOR_VERSION = "1.2.3"
"""That of the vendor's runtime, of an older line than any that is installed."""


def takes(disturbance: Disturbance = UNDISTURBED, **times_s: float) -> Callable[[Variants], ModelTimes]:
    """Times the whole model: nine rounds of each, which go up and down together by 3%, and apart by half a percent."""

    def timing(wanted: Variants) -> ModelTimes:
        rounds = [1 + 0.03 * (n % 3 - 1) for n in range(9)]
        return ModelTimes(
            {
                name: CallLatency(
                    tuple(times_s[name] * pace * (1 + 0.005 * ((n + k) % 2)) for n, pace in enumerate(rounds))
                )
                for k, name in enumerate(wanted)
            },
            disturbance=disturbance,
            vendor_version=VENDOR_VERSION if "vendor" in wanted else "",
        )

    return timing

"""Why a kernel does more than the machine was found to allow: the same words in all outputs."""

from __future__ import annotations

from tunewright.search_space.sketches import saves_multiplications

ABOVE = 1.0005
"""A share of the peak that is told as more than 100%."""

DOUBTFUL = 1.1
"""A share of a measured peak beyond what differs from one moment to another."""

ABOVE_BANDWIDTH = 1.02
"""A share of a bandwidth beyond what a clock that changes with heat explains."""

FEWER_MULTIPLICATIONS = (
    "Winograd's method gets by with fewer multiplications than the plain method, whose number is what counts here"
)
OTHER_MOMENT = "the machine was faster when this was timed than when its peak was measured"
DOUBT = "the machine can't do that, so the time or the measured peak is not to be trusted"
ESTIMATE = "the peak of this machine is an estimate, and too low"
NEAR_OPERANDS = "what it reads stays in a nearer cache from run to run"


def why_above_peak(share: float | None, sketch: str, *, is_measured: bool = True) -> str:
    """Why a schedule of a sketch reaches more than the peak; empty where it does not.

    `is_measured` is whether the peak is.
    """
    if share is None or share < ABOVE:
        return ""
    if saves_multiplications(sketch):
        return FEWER_MULTIPLICATIONS
    if not is_measured:
        return ESTIMATE
    return OTHER_MOMENT if share <= DOUBTFUL else DOUBT


def why_above_bandwidth(share: float) -> str:
    """Why more bytes a second are read than come from where they are said to; empty where they are not."""
    return NEAR_OPERANDS if share > ABOVE_BANDWIDTH else ""

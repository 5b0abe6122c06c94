"""ConfirmedTime: the one rule by which two times are told apart, wherever times are compared.

A ratio that was timed as one, as a speed-up is, goes by its own interval: see `text.is_certain`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.search_space.measurement import Measurement, Status

from .known_times import is_warm
from .noise import noise_of_measurement
from .text import Interval


@dataclass(frozen=True, slots=True)
class ConfirmedTime:
    """A time that was confirmed, in any unit, with what tells whether another may be compared with it."""

    time: float
    interval: Interval | None  # 95%, of the median
    noise: str = ""  # why the machine was too busy to rely on it; empty where it was not
    is_warm: bool = False  # whether constants were found in the caches

    @staticmethod
    def of(confirmed: Measurement) -> ConfirmedTime | None:
        """That of a confirmation, in seconds; None where it is not OK, or was taken back."""
        if confirmed.status is not Status.OK or confirmed.median_s is None:
            return None
        noise = noise_of_measurement(confirmed)
        return ConfirmedTime(confirmed.median_s, confirmed.interval_s, noise, is_warm(confirmed))

    def why_incomparable(self, other: ConfirmedTime) -> str:
        """Why neither of two times is slower for certain, whatever they are; empty where they may be compared.

        Of times with warm caches and others neither is: constants are found in the caches in one model, and not in
        another.
        """
        if noise := self.noise or other.noise:
            return f"too noisy: {noise}"
        if self.interval is None or other.interval is None:
            return "of too few samples for an interval"
        if self.is_warm != other.is_warm:
            return "one was timed with warm caches, the other with cold ones"
        return ""

    def is_slower_than(self, other: ConfirmedTime) -> bool:
        """Whether it is slower beyond both intervals, and the two may be compared."""
        if self.why_incomparable(other) or self.interval is None or other.interval is None:
            return False
        return self.interval[0] > other.interval[1]

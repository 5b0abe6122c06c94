"""Noise of stored times: the one rule by which all that shows a time marks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite

from tunewright.db.trial import TrialLine
from tunewright.search_space.measurement import DRIFT, NOISE, SPREAD, Measurement
from tunewright.workers.measure.noise import noise_note, noise_of

from .text import shorten

LONGEST_NOISE = 250
"""Letters of a reason; what was imported may have any number."""


def time_noise(
    median_s: float | None, low_s: float | None, high_s: float | None, provenance: Mapping[str, object]
) -> str:
    """Why a time can't be relied on, by its interval and its provenance; empty where it can.

    The unit does not matter. What failed has no time to rely on.
    """
    if not median_s:
        return ""
    note = noise_note({name: str(provenance.get(name, "")) for name in (NOISE, DRIFT)})
    spread = _told_spread(provenance) if low_s is None or high_s is None else (high_s - low_s) / median_s
    return noise_of(spread, shorten(note, LONGEST_NOISE))


def _told_spread(provenance: Mapping[str, object]) -> float:
    """How far samples that are too few for an interval lie apart, as lookups tell it; 0 where they don't."""
    with suppress(ValueError):  # it may be any text
        if isfinite(spread := float(str(provenance.get(SPREAD, "")))):
            return spread
    return 0.0


def noise_of_measurement(measured: Measurement | None) -> str:
    """The same of a measurement."""
    if measured is None:
        return ""
    return time_noise(measured.median_s, measured.low_s, measured.high_s, measured.provenance)


def noise_of_line(line: TrialLine) -> str:
    """The same of a trial."""
    return time_noise(line.median_s, line.low_s, line.high_s, {NOISE: line.noise, DRIFT: line.drift})


def total_noise(noises: Iterable[str]) -> str:
    """Why what several times come to can't be relied on, by the noise of each: as soon as one of them can't."""
    return next(filter(None, noises), "")

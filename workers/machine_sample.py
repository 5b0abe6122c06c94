"""MachineSample: what the machine did for some seconds, whatever was timed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineSample:
    """What the machine did for some seconds; None: it does not tell. Shares are 0..1."""

    elapsed_s: float
    steal: float | None = None  # part of the time that other virtual machines took
    others: float | None = None  # part of the processors that are timed on which other processes took
    load: float | None = None  # part of all its processors that was busy, whoever it was
    pressure: float | None = None  # part of the time in which some process waited for a processor
    throttled: float | None = None  # part of the time that a container's quota or a GPU's heat held ours up
    clock_mhz: float | None = None  # now: of the processors that are timed on, the mean, or of the GPU
    temperature_c: float | None = None  # now: of the hottest processor, or of the GPU
    is_noisy: bool = False  # too much of the first two to rely on what was timed meanwhile

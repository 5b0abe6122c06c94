"""MachineSpan: what the machine did for a while, as the event `machine` tells it. Its gauges are listed in `Gauge`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from .text import rounded

DIGITS = 4
"""Digits of a number that is told."""

COUNTS = ("trials", "busy_trials", "marked_trials")
"""Whole numbers of a span."""


class Gauge(StrEnum):
    """What is known of a machine over time. Shares are 0..1.

    A new one is also a field of that name of `workers.machine_sample.MachineSample`, or one of `OF_TRIALS`; where it is
    no share, `explain.machine_record` has the largest value that is believed. Its chart is in the dashboard's
    `job.machine`, and docs/api.md tells of it with the event `machine`.
    """

    STEAL = "steal"  # part of the time that other virtual machines took
    OTHERS = "others"  # part of the processors that are timed on which other processes took
    CLOCK = "clock_mhz"  # of the processors that are timed on, or of the GPU
    SPREAD = "spread"  # how far the times of one and the same schedule lay apart, as a part of their median
    DRIFT = "drift"  # how many times its time the schedule took that trials were timed beside
    LOAD = "load"  # part of all processors that was busy, whoever it was
    PRESSURE = "pressure"  # part of the time in which some process waited for a processor
    THROTTLED = "throttled"  # part of the time that a container's quota or a GPU's heat held ours up
    TEMPERATURE = "temperature_c"  # of the hottest processor, or of the GPU


OF_TRIALS = frozenset({Gauge.SPREAD, Gauge.DRIFT})
"""What trials say of the machine: a sample of it has all others."""


class GaugeRange(NamedTuple):
    """What a gauge showed in a span: the lowest and highest of its samples, and their mean.

    A sample of what trials say is their median: a few that were held up lie far off.
    """

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class MachineSpan:
    """What the machine did for a while: some samples together."""

    elapsed_s: float
    noisy_s: float = 0.0  # of these, in which it was too busy to rely on what was timed
    trials: int = 0  # that ended meanwhile
    busy_trials: int = 0  # of these, those in samples in which it was too busy
    marked_trials: int = 0  # of these, those whose own time has the mark of a busy machine
    gauges: Mapping[Gauge, GaugeRange] = field(default_factory=dict)  # those that something is known of

    def __add__(self, later: MachineSpan) -> MachineSpan:
        """This one and a later one as one span."""
        whole_s = self.elapsed_s + later.elapsed_s
        gauges = {}
        for gauge in Gauge:
            first, second = self.gauges.get(gauge), later.gauges.get(gauge)
            if first is None or second is None:
                known = first or second
            else:
                part = later.elapsed_s / whole_s if whole_s else 0.5
                mean = first.mean + (second.mean - first.mean) * part
                known = GaugeRange(min(first.low, second.low), mean, max(first.high, second.high))
            if known is not None:
                gauges[gauge] = known
        return MachineSpan(
            whole_s,
            self.noisy_s + later.noisy_s,
            self.trials + later.trials,
            self.busy_trials + later.busy_trials,
            self.marked_trials + later.marked_trials,
            gauges,
        )

    def to_json(self) -> dict[str, Any]:
        """The data of an event. Numbers are short, as there are many."""
        gauges = {gauge.value: [rounded(value, DIGITS) for value in extent] for gauge, extent in self.gauges.items()}
        counts = {name: getattr(self, name) for name in COUNTS}
        lengths_s = {"elapsed_s": rounded(self.elapsed_s, DIGITS), "noisy_s": rounded(self.noisy_s, DIGITS)}
        return {**lengths_s, **counts, **gauges}

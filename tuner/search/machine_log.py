"""MachineLog: what the machine did while a process works on a job, as events of it. Read `MachineLog.look` first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import PACE, Measurement
from tunewright.workers.machine_sample import MachineSample

from ..noise import noise_of_measurement

SAMPLE_S = 10.0
"""Seconds between two looks at the machine."""

SPANS = 360
"""Spans that are told of the same length; from then on, longer ones: so many in the first hour, then in the time since
the begin of the work as many again whenever that has become 2.7 times as long."""

DIGITS = 4
"""Digits of a number that is told."""

COUNTS = ("trials", "busy_trials", "marked_trials")
"""Whole numbers of a span."""


class Gauge(StrEnum):
    """What is known of a machine over time. Shares are 0..1."""

    STEAL = "steal"  # part of the time that other virtual machines took
    OTHERS = "others"  # part of the processors that are timed on which other processes took
    CLOCK = "clock_mhz"  # of the processors that are timed on, or of the GPU
    SPREAD = "spread"  # how far the times of one and the same schedule lay apart, as a part of their median
    DRIFT = "drift"  # how many times its time the schedule took that trials were timed beside
    LOAD = "load"  # part of all processors that was busy, whoever it was
    PRESSURE = "pressure"  # part of the time in which some process waited for a processor
    THROTTLED = "throttled"  # part of the time that a container's quota or a GPU's heat held ours up
    TEMPERATURE = "temperature_c"  # of the hottest processor, or of the GPU


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
        gauges = {gauge.value: [_short(value) for value in extent] for gauge, extent in self.gauges.items()}
        counts = {name: getattr(self, name) for name in COUNTS}
        return {"elapsed_s": _short(self.elapsed_s), "noisy_s": _short(self.noisy_s), **counts, **gauges}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


class MachineLog:
    """Samples a machine while a process works on a job, and says what is to be told of it. Threads may share it."""

    def __init__(self, sampler: Callable[[], MachineSample], clock: Callable[[], float] = time.monotonic) -> None:
        self._sampler, self._clock = sampler, clock
        self._lock = threading.Lock()
        self._begun_s = self._looked_s = clock()
        self._trials = _Trials()  # since the last look
        self._span: MachineSpan | None = None  # what is yet to be told

    def note(self, measurement: Measurement) -> None:
        """A trial ended."""
        with self._lock:
            self._trials.note(measurement)

    def look(self) -> None:
        """Take a sample where it is time for one."""
        with self._lock:
            if self._clock() - self._looked_s >= SAMPLE_S:
                self._sample()

    def news(self, *, is_last: bool = False) -> list[NewEvent]:
        """What is to be told now; `is_last`: up to now, as the work ends."""
        with self._lock:
            if is_last:
                self._sample()
            least_s = 0.0 if is_last else max(SAMPLE_S, (self._clock() - self._begun_s) / SPANS)
            if self._span is None or self._span.elapsed_s < least_s:
                return []
            span, self._span = self._span, None
            return [NewEvent(EventKind.MACHINE, span.to_json())]

    def _sample(self) -> None:
        sample = self._sampler()
        self._looked_s = self._clock()
        span = _span(sample, self._trials)
        self._span = span if self._span is None else self._span + span
        self._trials = _Trials()


@dataclass(slots=True)
class _Trials:
    """What the trials of a sample say of the machine."""

    count: int = 0
    marked: int = 0
    spreads: list[float] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)

    def note(self, measurement: Measurement) -> None:
        self.count += 1
        self.marked += bool(noise_of_measurement(measurement))
        median_s, low_s, high_s = measurement.median_s, measurement.low_s, measurement.high_s
        if median_s and low_s is not None and high_s is not None and len(measurement.samples_s) > 1:
            self.spreads.append((high_s - low_s) / median_s)
        if drift := measurement.provenance.get(PACE):
            self.drifts.append(float(drift))


def _span(sample: MachineSample, trials: _Trials) -> MachineSpan:
    """A sample as a span, with what the trials meanwhile say of the machine."""
    told = {gauge: getattr(sample, gauge.value, None) for gauge in Gauge}
    gauges = {gauge: GaugeRange(value, value, value) for gauge, value in told.items() if value is not None}
    for gauge, seen in ((Gauge.SPREAD, trials.spreads), (Gauge.DRIFT, trials.drifts)):
        if seen:
            gauges[gauge] = GaugeRange(min(seen), median(seen), max(seen))
    noisy_s, busy = (sample.elapsed_s, trials.count) if sample.is_noisy else (0.0, 0)
    return MachineSpan(sample.elapsed_s, noisy_s, trials.count, busy, trials.marked, gauges)

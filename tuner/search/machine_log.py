"""MachineLog: what the machine did while a process works on a job, as events of it. Read `MachineLog.look` first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import DRIFT, Measurement
from tunewright.workers.machine_sample import MachineSample

from ..machine_span import OF_TRIALS, Gauge, GaugeRange, MachineSpan
from ..noise import noise_of_measurement

SAMPLE_S = 10.0
"""Seconds between two looks at the machine."""

SPANS = 360
"""Spans that are told of the same length; from then on, longer ones: so many in the first hour, then in the time since
the begin of the work as many again whenever that has become 2.7 times as long."""


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
        if drift := measurement.provenance.get(DRIFT):
            self.drifts.append(float(drift))


def _span(sample: MachineSample, trials: _Trials) -> MachineSpan:
    """A sample as a span, with what the trials meanwhile say of the machine."""
    told = {gauge: getattr(sample, gauge.value) for gauge in Gauge if gauge not in OF_TRIALS}
    gauges = {gauge: GaugeRange(value, value, value) for gauge, value in told.items() if value is not None}
    for gauge, seen in ((Gauge.SPREAD, trials.spreads), (Gauge.DRIFT, trials.drifts)):
        if seen:
            gauges[gauge] = GaugeRange(min(seen), median(seen), max(seen))
    noisy_s, busy = (sample.elapsed_s, trials.count) if sample.is_noisy else (0.0, 0)
    return MachineSpan(sample.elapsed_s, noisy_s, trials.count, busy, trials.marked, gauges)

"""MachineRecord: what the machine did over a job, from its events: some hundred spans, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from ..machine_span import COUNTS, Gauge, GaugeRange, MachineSpan
from ..text import counted, share
from . import values

MOST_SPANS = 240
"""Spans of a job that are kept: with more, neighbours become one."""

LONGEST_SPAN_S = 1e7
"""The longest that is believed: what a tuner process tells may be anything."""

MOST_TRIALS = 10**9
"""The most trials of a span that are believed."""

LARGEST = {Gauge.CLOCK: 1e5, Gauge.TEMPERATURE: 1e3, Gauge.SPREAD: 1e6, Gauge.DRIFT: 1e6}
"""The largest value of a gauge that is believed; of all others 1."""

QUIET = 0.995
"""From this part of the time on it was quiet (nearly) all the time."""

BUSY = 0.5
"""Below this part it was too busy for most of the time."""


def span_of(data: Mapping[str, Any]) -> MachineSpan | None:
    """The span that an event tells; None where it makes no sense. What a gauge tells amiss is left out."""
    elapsed_s = values.number(data, "elapsed_s")
    if not elapsed_s or elapsed_s > LONGEST_SPAN_S:
        return None
    gauges = {gauge: extent for gauge in Gauge if (extent := _extent(data.get(gauge.value), gauge)) is not None}
    trials, busy, marked = (int(min(values.number(data, name) or 0.0, MOST_TRIALS)) for name in COUNTS)
    noisy_s = min(values.number(data, "noisy_s") or 0.0, elapsed_s)
    return MachineSpan(elapsed_s, noisy_s, trials, min(busy, trials), min(marked, trials), gauges)


def _extent(told: object, gauge: Gauge) -> GaugeRange | None:
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) != 3:
        return None
    low, mean, high = (values.finite(value) for value in told)
    if low is None or mean is None or high is None or not low <= mean <= high <= LARGEST.get(gauge, 1.0):
        return None
    return GaugeRange(low, mean, high)


class SpanEnd(NamedTuple):
    """A span, and when it was told: at its end."""

    told_at: datetime
    span: MachineSpan


@dataclass(slots=True)
class MachineRecord:
    """The spans of a job in order. Those added are kept as they are, until there are too many."""

    ends: list[SpanEnd] = field(default_factory=list)
    longest_s: float = 0.0  # neighbours become one where together they are not longer

    def add(self, told_at: datetime, span: MachineSpan) -> None:
        """Add the next span."""
        self._append(SpanEnd(told_at, span))
        while len(self.ends) > MOST_SPANS:
            lengths_s = sum(end.span.elapsed_s for end in self.ends)
            self.longest_s = max(2 * self.longest_s, 2 * lengths_s / MOST_SPANS)
            before, self.ends = self.ends, []
            for end in before:
                self._append(end)

    def _append(self, end: SpanEnd) -> None:
        if self.ends and self.ends[-1].span.elapsed_s + end.span.elapsed_s <= self.longest_s:
            end = SpanEnd(end.told_at, self.ends.pop().span + end.span)
        self.ends.append(end)


def whole_span(ends: Iterable[SpanEnd]) -> MachineSpan | None:
    """All spans as one; None where there are none."""
    whole = None
    for _, span in ends:
        whole = span if whole is None else whole + span
    return whole


def quiet_share(whole: MachineSpan) -> float:
    """The part of the time in which the machine was quiet enough to rely on what was timed."""
    return 1.0 - whole.noisy_s / whole.elapsed_s


def machine_words(whole: MachineSpan | None) -> str:
    """Whether a job's times can be trusted, by what its machine did, in two sentences at most."""
    if whole is None:
        return (
            "Nothing is known of the machine: the job was worked on for less than some seconds, by an older version, "
            "or on the machines of a cluster, which are not watched."
        )
    quiet = quiet_share(whole)
    if quiet >= QUIET:
        when = f"The machine was quiet {'nearly ' if whole.noisy_s else ''}all the time that it was watched"
    elif quiet < BUSY:
        when = f"The machine was too busy for {share(1.0 - quiet)} of the time: run the job again when it is quiet"
    else:
        when = f"The machine was quiet in {share(quiet)} of the time"
    return f"{when}{_trials_words(whole)}."


def _trials_words(whole: MachineSpan) -> str:
    if not whole.trials or not whole.busy_trials:
        return ""
    verb = "was" if whole.busy_trials == 1 else "were"
    return f"; {counted(whole.busy_trials, 'trial')} of {whole.trials:,} {verb} taken while it was too busy"

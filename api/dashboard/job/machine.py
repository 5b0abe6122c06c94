"""What the machine did while a job was worked on: can its times be trusted, and what disturbed them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from markupsafe import Markup
from pydantic import Field

from tunewright.db.job import Event, EventKind
from tunewright.tuner.explain.curves import work_seconds
from tunewright.tuner.explain.machine_record import SpanEnd, machine_words, quiet_share, whole_span
from tunewright.tuner.machine_span import Gauge, GaugeRange, MachineSpan
from tunewright.tuner.text import counted, rounded
from tunewright.workers.measure.noise import NOISY_OTHERS, NOISY_SPREAD, NOISY_STEAL

from ...http.schemas.base import Answer
from ..drawing.figure import Figure, Point, Series
from ..drawing.scales import AxisSpec, Unit, scale
from ..views import LongText, Text
from .history import JobHistory, event_noise, event_task

MOST_MARKS = 12
"""Times with a mark that are listed, the newest."""

MOST_MOMENTS = 120
"""Moments of a kind that are drawn."""

HEIGHT_PX = 130
"""Of each chart: they stand beside and below each other."""

DIGITS = 4
"""Digits of a number of a curve."""


class GaugeChart(NamedTuple):
    """How a gauge is shown."""

    title: str
    axis: AxisSpec
    term: str  # of its help
    limit: float | None = None  # above this the machine is too noisy
    edge: str = ""  # what is drawn beside the mean: its lowest or highest
    scale: float = 1.0  # what values are multiplied by
    middle: str = "mean"  # what is drawn


SHARE = AxisSpec("of the time", Unit.SHARE, include=(0.0,))

GAUGE_CHARTS: Mapping[Gauge, GaugeChart] = {
    Gauge.STEAL: GaugeChart("Steal", SHARE, "steal", NOISY_STEAL, "highest"),
    Gauge.OTHERS: GaugeChart(
        "Other load", AxisSpec("of its processors", Unit.SHARE, include=(0.0,)), "other load", NOISY_OTHERS, "highest"
    ),
    Gauge.CLOCK: GaugeChart("Clock", AxisSpec("GHz"), "clock", edge="lowest", scale=1e-3),
    Gauge.SPREAD: GaugeChart(
        "Spread of times",
        AxisSpec("of the median", Unit.SHARE, include=(0.0,)),
        "spread of times",
        NOISY_SPREAD,
        middle="median of the trials",
    ),
    Gauge.LOAD: GaugeChart(
        "Load of the whole machine", AxisSpec("of all processors", Unit.SHARE, include=(0.0,)), "load of the machine"
    ),
    Gauge.DRIFT: GaugeChart(
        "Drift", AxisSpec("times its time", Unit.TIMES, include=(1.0,)), "drift", middle="median of the trials"
    ),
    Gauge.PRESSURE: GaugeChart("Waiting for a processor", SHARE, "pressure", edge="highest"),
    Gauge.THROTTLED: GaugeChart("Throttled", SHARE, "throttled", edge="highest"),
    Gauge.TEMPERATURE: GaugeChart("Temperature", AxisSpec("°C"), "temperature", edge="highest"),
}
"""The charts in their order; those behind the first `FIRST` are folded."""

FIRST = 5
"""Gauges that are shown at once."""


class GaugePoint(NamedTuple):
    """What a gauge showed from a moment on."""

    at_s: float
    low: float
    mean: float
    high: float


class GaugeCurve(Answer):
    """A gauge over the time at work on the job."""

    gauge: Gauge
    low: float = Field(description="The lowest that it showed.")
    mean: float
    high: float
    points: list[GaugePoint] = Field(
        description="Each from a moment on, in seconds of work: the lowest, the mean and the highest until the next."
    )

    @property
    def chart(self) -> GaugeChart:
        """How it is shown."""
        return GAUGE_CHARTS[self.gauge]


class CountPoint(NamedTuple):
    """How many there were by then."""

    at_s: float
    total: int


class MarkLine(Answer):
    """A time that was marked, as the machine was too busy to rely on it."""

    at_s: float = Field(description="When it was told, in seconds of work.")
    kind: EventKind
    key: Text = Field(description="Of the task.")
    op: Text
    trial: int | None = Field(description="From 1 on; null: of no trial of this job.")
    noise: Text = Field(description="What kept the machine busy.")


class MachineView(Answer):
    """What the machine did while the job was worked on."""

    verdict: LongText = Field(description="Whether its times can be trusted, by that.")
    confirmed_words: LongText = Field(description="Which of the confirmed times are marked.")
    watched_s: float = Field(description="Seconds of work in which the machine was watched.")
    quiet_share: float | None = Field(description="The part of them in which it was quiet enough; null: not watched.")
    trials: int = Field(description="That ended meanwhile.")
    busy_trials: int = Field(description="Of them, while it was too busy.")
    marked_trials: int = Field(description="Of them, those whose own time is marked.")
    curves: list[GaugeCurve] = Field(description="Of what is known of it.")
    improved: list[CountPoint] = Field(description="When tasks became faster, in seconds of work; a sample of many.")
    confirmed: list[CountPoint] = Field(description="When tasks were confirmed.")
    marks: list[MarkLine] = Field(
        description="Times of defaults, improvements and confirmations with a mark, newest first."
    )
    mark_count: int = Field(description="How many there are.")

    def curve(self, gauge: str) -> GaugeCurve | None:
        """The curve of a gauge; None where nothing is known of it."""
        return next((curve for curve in self.curves if curve.gauge == gauge), None)

    @property
    def main_curves(self) -> list[GaugeCurve]:
        """The curves that are shown at once."""
        first = list(GAUGE_CHARTS)[:FIRST]
        return [curve for curve in self.curves if curve.gauge in first]

    @property
    def more_curves(self) -> list[GaugeCurve]:
        """The others."""
        return [curve for curve in self.curves if curve not in self.main_curves]


def machine_view(history: JobHistory, ops: Mapping[str, str]) -> MachineView:
    """What the machine did, by a job's events; `ops` are names by task key."""
    whole = whole_span(history.machine)
    ends_s = work_seconds(history.spine, [end.told_at for end in history.machine])
    marked = [event for event in history.events if event_noise(event)]
    newest = list(islice(reversed(marked), MOST_MARKS))
    moments_s = work_seconds(history.spine, [event.created_at for event in newest])
    return MachineView(
        verdict=machine_words(whole),
        confirmed_words=_confirmed_words(history),
        watched_s=whole.elapsed_s if whole else 0.0,
        quiet_share=quiet_share(whole) if whole else None,
        trials=whole.trials if whole else 0,
        busy_trials=whole.busy_trials if whole else 0,
        marked_trials=whole.marked_trials if whole else 0,
        curves=_curves(history.machine, ends_s, whole),
        improved=_counts(history, EventKind.IMPROVED),
        confirmed=_counts(history, EventKind.CONFIRMED),
        marks=[_mark_line(event, at_s, ops) for event, at_s in zip(newest, moments_s, strict=True)],
        mark_count=len(marked),
    )


def _mark_line(event: Event, at_s: float, ops: Mapping[str, str]) -> MarkLine:
    return MarkLine(at_s=at_s, kind=event.kind, noise=event_noise(event), **event_task(event, ops))


def _confirmed_words(history: JobHistory) -> str:
    """How many confirmed tasks have the mark, in a sentence; empty where none is confirmed."""
    confirmed = [times for times in history.times.values() if times.is_confirmed]
    marked = sum(bool(times.noise) for times in confirmed)
    if not confirmed:
        return ""
    if not marked:
        return f"No confirmed time is marked ~: {counted(len(confirmed), 'task')}."
    return f"Of {counted(len(confirmed), 'confirmed task')}, {marked:,} {'is' if marked == 1 else 'are'} marked ~."


def _counts(history: JobHistory, kind: EventKind) -> list[CountPoint]:
    moments = [event.created_at for event in history.events if event.kind is kind]
    every = len(moments) // MOST_MOMENTS + 1
    return [
        CountPoint(rounded(at_s, DIGITS), count * every + 1)
        for count, at_s in enumerate(work_seconds(history.spine, moments[::every]))
    ]


def _curves(ends: Sequence[SpanEnd], ends_s: Sequence[float], whole: MachineSpan | None) -> list[GaugeCurve]:
    if whole is None:
        return []
    return [
        GaugeCurve(
            gauge=gauge,
            **{name: rounded(value, DIGITS) for name, value in whole.gauges[gauge]._asdict().items()},
            points=list(_points(ends, ends_s, gauge)),
        )
        for gauge in GAUGE_CHARTS
        if gauge in whole.gauges
    ]


def _points(ends: Sequence[SpanEnd], ends_s: Sequence[float], gauge: Gauge) -> Iterator[GaugePoint]:
    """The points of a curve. A span begins where the one before ended, or later."""
    before_s = 0.0
    for (_, span), end_s in zip(ends, ends_s, strict=True):
        begin_s, before_s = max(end_s - span.elapsed_s, before_s), max(end_s, before_s)
        extent: GaugeRange | None = span.gauges.get(gauge)
        if extent is not None:
            yield GaugePoint(rounded(begin_s, DIGITS), *(rounded(value, DIGITS) for value in extent))


# Charts

WORK = AxisSpec("time at work on the job", Unit.CLOCK, include=(0.0,))
MOMENTS = AxisSpec("so far", Unit.COUNT, include=(0.0,))


def machine_charts(view: MachineView, end_s: float) -> dict[str, Markup]:
    """The chart of each gauge by its name, and `found`: all on one axis of time, that ends at `end_s`."""
    charts = {curve.gauge.value: _gauge_figure(curve, end_s).draw() for curve in view.curves}
    counts = [("improvements", view.improved), ("confirmations", view.confirmed)]
    series = [Series(name, [Point(at_s, float(total)) for at_s, total in points]) for name, points in counts if points]
    return charts | {"found": _figure("What was found meanwhile", MOMENTS, series, end_s).draw()}


def _gauge_figure(curve: GaugeCurve, end_s: float) -> Figure:
    chart = curve.chart
    series = [Series(chart.middle, [Point(point.at_s, point.mean * chart.scale) for point in curve.points])]
    edges = [(point, point.high if chart.edge == "highest" else point.low) for point in curve.points]
    if chart.edge and any(edge != point.mean for point, edge in edges):
        series.append(Series(chart.edge, [Point(point.at_s, edge * chart.scale) for point, edge in edges]))
    if chart.limit is not None:
        series.append(Series("too noisy above", [Point(0.0, chart.limit)]))
    return _figure(chart.title, chart.axis, series, end_s)


def _figure(title: str, axis: AxisSpec, series: Sequence[Series], end_s: float) -> Figure:
    return Figure(
        "steps",
        title,
        WORK,
        axis,
        series,
        nothing="Nothing was found while it was watched.",
        until=end_s,
        across=scale([end_s], WORK),
        height_px=HEIGHT_PX,
    )

"""Charts of the pages of a task and of its schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from markupsafe import Markup

from tunewright.tuner.text import duration, mark_noise, mark_trial, times

from ..drawing.bars import Bar, bars, nest
from ..drawing.charts import agreement, roofline
from ..drawing.figure import Figure, Mark, Point
from ..html import candidate_url
from .analysis import PointShown, ReasonShown
from .schedules import TrialBrief
from .view import TaskPage

Kind = Literal["best", "default"]
"""Kinds of marks in charts."""

EFFECT_HEADS = ("feature", "speed, by the model")

LINKED = 12
"""The fastest points of a picture are links: each is a stop of the keyboard."""


def task_charts(view: TaskPage) -> dict[str, Markup]:
    """`roofline`, `reasons`, `loops`, `default_loops`, and `agreement0`, ... of each model, as far as known."""
    charts: dict[str, Markup] = {}
    if view.form is not None:
        charts["loops"] = nest("The loops of the best schedule", view.form.parts)
    if view.default_form is not None:
        charts["default_loops"] = nest("The loops of the default schedule", view.default_form.parts)
    if view.analysis is None:
        return charts
    charts["roofline"] = _roofline(view, view.analysis.points).draw()
    if view.analysis.reasons is not None:
        charts["reasons"] = effects("Feature effects: best schedule against default", view.analysis.reasons)
    for number, model in enumerate(view.analysis.calibrations):
        charts[f"agreement{number}"] = _agreement(view, view.analysis.points, number, model.model).draw()
    return charts


def effects(title: str, reasons: Sequence[ReasonShown]) -> Markup:
    """The effects of the differences to the default, by the cost model."""
    rows = [
        Bar(
            reason.words,
            reason.log2_speed,
            times(reason.factor),
            f"{reason.value}, by default {reason.default_value}",
            reason.feature,
        )
        for reason in reasons
    ]
    nothing = "The cost model sees no difference, or has not learned yet."
    return bars(title, rows, heads=EFFECT_HEADS, kind="effect", nothing=nothing)


def _roofline(view: TaskPage, points: Sequence[PointShown]) -> Figure:
    places = {p.schedule: (p.intensity, p.flops_s) for p in points if p.intensity is not None and p.flops_s is not None}
    marks = [
        Mark(places[brief.schedule.key][0], flops_s, kind, href=_url(view, brief.schedule.key))
        for kind, brief in _marks(view)
        if brief.schedule.key in places and (flops_s := _marked_flops_s(view, kind, brief))
    ]
    return roofline(
        "Trials below the roofline",
        _dots(view, points, places),
        peak_flops_s=view.ceilings.peak_flops_s,
        bandwidths={level.name: level.bytes_s for level in view.ceilings.bandwidths},
        marks=marks,
        is_measured=view.ceilings.is_measured,
        nothing="The task computes nothing: it moves data." if not view.task.flops else "No trial has worked yet.",
    )


def _marked_flops_s(view: TaskPage, kind: Kind, brief: TrialBrief) -> float | None:
    """FLOP/s of what is marked, by the times that are told of it: both confirmed, or both of trials."""
    time_ms = brief.median_ms
    if view.gain is not None:
        time_ms = view.gain.best_ms if kind == "best" else view.gain.default_ms
    return view.task.flops / (1e-3 * time_ms) if time_ms else None


def _agreement(view: TaskPage, points: Sequence[PointShown], number: int, model: str) -> Figure:
    times_s = {
        p.schedule: (predicted_ms / 1e3, p.median_ms / 1e3)  # the nearest number, which has few digits
        for p in points
        if (predicted_ms := p.predicted_ms[number]) is not None
    }
    marks = [
        Mark(*times_s[brief.schedule.key], kind, href=_url(view, brief.schedule.key))
        for kind, brief in _marks(view)
        if brief.schedule.key in times_s
    ]
    return agreement(f"Predicted and measured: {model}", _dots(view, points, times_s), marks=marks)


def _dots(view: TaskPage, points: Sequence[PointShown], places: Mapping[str, tuple[float, float]]) -> list[Point]:
    """Trials at their places, by schedule; the fastest ones have a tooltip and a link."""
    ordered = sorted(points, key=lambda point: point.median_ms)
    return [
        Point(*places[p.schedule], mark_trial(mark_noise(duration(p.median_ms), p.noise)), _url(view, p.schedule))
        if number < LINKED
        else Point(*places[p.schedule])
        for number, p in enumerate(ordered)
        if p.schedule in places
    ]


def _url(view: TaskPage, schedule_key: str) -> str:
    return candidate_url(view.task.key, schedule_key, view.target.key)


def _marks(view: TaskPage) -> list[tuple[Kind, TrialBrief]]:
    """The marked schedules: the default where it is not the best, and the best."""
    kinds: Sequence[tuple[Kind, TrialBrief | None]] = (
        ("default", None if view.is_default_best else view.default),
        ("best", view.best),
    )
    return [(kind, brief) for kind, brief in kinds if brief is not None]

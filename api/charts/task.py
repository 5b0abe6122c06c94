"""The pictures of a task: its trials below the roofline and beside what was predicted, and the winner's loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from markupsafe import Markup

from tunewright.tuner.text import duration, times

from ..addresses import candidate_url
from ..drawing import bars, nest, scatter
from ..views.judged import CeilingsShown, PointShown, ReasonShown
from ..views.schedules import FormShown, TrialBrief
from ..views.task import TaskPage

Kind = Literal["best", "default"]
"""What is marked in pictures."""

LINKED = 12
"""The fastest points of a picture are links: each is a stop of the keyboard."""


def task_charts(view: TaskPage) -> dict[str, Markup]:
    """`roofline`, `reasons`, `loops`, `default_loops`, and `agreement0`, ... of each model, as far as known."""
    found: dict[str, Markup] = {}
    if view.form is not None:
        found["loops"] = loops("The loops of the best schedule", view.form)
    if view.default_form is not None:
        found["default_loops"] = loops("The loops of the default schedule", view.default_form)
    if view.judged is None:
        return found
    found["roofline"] = _roofline(view, view.judged.points, view.ceilings)
    found["reasons"] = effects("Why the cost model prefers the best schedule to the default", view.judged.reasons)
    for number, model in enumerate(view.judged.calibrations):
        found[f"agreement{number}"] = _agreement(view, view.judged.points, number, model.model)
    return found


def loops(title: str, form: FormShown) -> Markup:
    """The loops of a schedule."""
    return nest.nest(title, list(map(_part, form.parts)))


def _part(part: Mapping[str, Any]) -> nest.Loop | nest.Step:
    if "text" in part:
        return nest.Step(part["text"])
    return nest.Loop(part["kind"], part["var"], part["extent"], tuple(map(_part, part["parts"])))


def effects(title: str, reasons: Sequence[ReasonShown]) -> Markup:
    """What the cost model makes of the differences to the default."""
    rows = [
        bars.Bar(
            name=reason.words,
            value=reason.log2_speed,
            text=times(reason.factor),
            note=f"{reason.value}, by default {reason.default_value}",
            tip=reason.feature,
        )
        for reason in reasons
    ]
    heads = ("what differs", "speed, by the model")
    return bars.signed_bars(
        title, rows, heads=heads, nothing="The cost model sees no difference, or has not learned yet."
    )


def _roofline(view: TaskPage, points: Sequence[PointShown], ceilings: CeilingsShown) -> Markup:
    places = {p.schedule: (p.intensity, p.flops_s) for p in points if p.intensity is not None and p.flops_s is not None}
    drawn = [
        scatter.Point(*places[p.schedule], *_told(view, number, p))
        for number, p in enumerate(_fastest_first(points))
        if p.schedule in places
    ]
    marks = [
        scatter.Mark(places[one.schedule.key][0], flops_s, kind, href=_url(view, one.schedule.key))
        for kind, one in _marked(view)
        if one.schedule.key in places and (flops_s := _reached(view, kind, one))
    ]
    return scatter.roofline(
        "Trials below the roofline",
        drawn,
        peak_flops_s=ceilings.peak_flops_s,
        bandwidths=[scatter.Bandwidth(one.name, one.bytes_s) for one in ceilings.bandwidths],
        marks=marks,
        is_measured=ceilings.is_measured,
        nothing="The task computes nothing: it moves data." if not view.task.flops else "No trial has worked yet.",
    )


def _reached(view: TaskPage, kind: Kind, one: TrialBrief) -> float | None:
    """FLOP/s of what is marked, by the times that are told of it: both confirmed, or both of trials."""
    time_ms = one.median_ms
    if view.gain is not None:
        time_ms = view.gain.best_ms if kind == "best" else view.gain.default_ms
    return view.task.flops / (1e-3 * time_ms) if time_ms else None


def _agreement(view: TaskPage, points: Sequence[PointShown], number: int, model: str) -> Markup:
    times_s = {
        p.schedule: (1e-3 * predicted_ms, 1e-3 * p.median_ms)
        for p in points
        if (predicted_ms := p.predicted_ms[number]) is not None
    }
    drawn = [
        scatter.Point(*times_s[p.schedule], *_told(view, place, p))
        for place, p in enumerate(_fastest_first(points))
        if p.schedule in times_s
    ]
    marks = [
        scatter.Mark(*times_s[one.schedule.key], kind, href=_url(view, one.schedule.key))
        for kind, one in _marked(view)
        if one.schedule.key in times_s
    ]
    return scatter.agreement(f"Predicted and measured: {model}", drawn, marks=marks)


def _fastest_first(points: Sequence[PointShown]) -> list[PointShown]:
    return sorted(points, key=lambda point: point.median_ms)


def _told(view: TaskPage, place: int, point: PointShown) -> tuple[str, str | None]:
    """The tooltip and the link of a point, where it has them."""
    return (duration(point.median_ms), _url(view, point.schedule)) if place < LINKED else ("", None)


def _url(view: TaskPage, schedule_key: str) -> str:
    return candidate_url(view.task.key, schedule_key, view.target.key)


def _marked(view: TaskPage) -> list[tuple[Kind, TrialBrief]]:
    """What is marked: the default, if it is not the best, below that."""
    kinds: Sequence[tuple[Kind, TrialBrief | None]] = (
        ("default", None if view.is_default_best else view.default),
        ("best", view.best),
    )
    return [(kind, one) for kind, one in kinds if one is not None]

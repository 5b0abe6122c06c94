"""The pictures of a candidate: its loops, its samples, and what the cost model makes of it."""

from __future__ import annotations

from markupsafe import Markup

from tunewright.tuner.text import times

from ..drawing import bars, histogram
from ..drawing.scales import Axis, Unit
from ..views.candidate import CandidatePage
from .task import effects, loops

FEWEST_SAMPLES = 5
"""Fewer are told one by one."""


def candidate_charts(view: CandidatePage) -> dict[str, Markup]:
    """`loops`, `samples`, `reasons` and `contributions`; what is known of them yet."""
    found = {"loops": loops("The loops of the schedule", view.form)}
    if view.evidence is not None and len(view.evidence.samples_ms) >= FEWEST_SAMPLES:
        found["samples"] = _samples([1e-3 * sample_ms for sample_ms in view.evidence.samples_ms])
    if view.explained is not None:
        found["reasons"] = effects(
            "What tells the schedule from the default, by the cost model", view.explained.reasons
        )
        found["contributions"] = _contributions(view)
    return found


def _samples(samples_s: list[float]) -> Markup:
    return histogram.histogram("Its samples", Axis("time of a run", Unit.TIME), samples_s, names="sample")


def _contributions(view: CandidatePage) -> Markup:
    rows = [
        bars.Bar(name=one.words, value=one.log2_speed, text=times(one.factor), note=one.value, tip=one.feature)
        for one in (view.explained.contributions if view.explained else ())
    ]
    return bars.signed_bars(
        "What moves the cost model's opinion most",
        rows,
        heads=("what", "speed, by the model"),
        nothing="The cost model has not learned anything yet, or does not know the schedule.",
    )

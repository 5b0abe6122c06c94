"""The pictures of a job: where the time goes, and how the model and its tasks came to be faster."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tunewright.tuner.text import gain, rough
from tunewright.tuner.units import in_s

from ..addresses import task_url
from ..drawing import bars, steps
from ..drawing.scales import Axis, Unit
from ..views import job as views

SPEEDUP = Axis("times as fast as by default", Unit.TIMES, include=(1.0,))

ABSCISSAS = {
    views.Abscissa.TRIALS: Axis("trials of the job", Unit.COUNT, include=(0.0,)),
    views.Abscissa.SECONDS: Axis("time at work on the job", Unit.CLOCK, include=(0.0,)),
}


def job_charts(view: views.JobPage) -> dict[str, Markup]:
    """`parts`, `model` and `tasks`."""
    return {
        "parts": bars.shares(
            "What each task takes of a run of the model",
            [
                bars.Part(part.name, in_s(part.before_ms), in_s(part.after_ms), _url(view, part.key))
                for part in view.parts
            ],
            before="by default",
            after="tuned" if view.job.is_finished else "so far",
            nothing="What a run takes is known once each task's default was timed.",
        ),
        "model": _curves(
            view,
            "How much faster the whole model became, by trials",
            [_curve(view, view.model, "by trials"), *_timed(view)],
        ),
        "tasks": _curves(
            view,
            "How much faster each of the tasks listed below became, by trials",
            [_curve(view, curve, curve.op) for curve in view.curves],
        ),
    }


def _url(view: views.JobPage, key: str) -> str | None:
    """Where the page of a task of the job is; None for what is no task."""
    return task_url(key, view.job.target.key, job=view.job.id) if key else None


def _curves(view: views.JobPage, title: str, curves: Sequence[steps.Curve]) -> Markup:
    is_by_trials = view.asked.x is views.Abscissa.TRIALS
    return steps.steps(
        title,
        ABSCISSAS[view.asked.x],
        SPEEDUP,
        curves,
        until=float(view.trials) if is_by_trials else view.searched_s,
        nothing="Nothing was found yet." if view.trials else "There are no trials yet.",
    )


def _timed(view: views.JobPage) -> list[steps.Curve]:
    """What a run of the whole model was timed at, at the end of the job: a point."""
    if not view.latency.is_timed or not view.latency.speedup or not view.model.steps:
        return []
    is_by_trials = view.asked.x is views.Abscissa.TRIALS
    at = float(view.trials) if is_by_trials else view.searched_s
    name = "timed: defaults kept" if view.latency.is_kept else "timed"
    note = rough(gain(view.latency.speedup), view.latency.noise)
    return [steps.Curve(name, [(at, view.latency.speedup)], note)]


def _curve(view: views.JobPage, curve: views.Curve, name: str) -> steps.Curve:
    is_by_trials = view.asked.x is views.Abscissa.TRIALS
    points = [(float(step.trial) if is_by_trials else step.at_s, step.speedup) for step in curve.steps]
    note = gain(curve.steps[-1].speedup) if curve.steps else ""
    return steps.Curve(name, points, note, _url(view, curve.key))

"""The charts of a job: where the time of a run goes, the curve of the model, and a small one of each task."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tunewright.tuner.text import NOISE_MARK, counted, gain, mark_noise, mark_trial, short, times
from tunewright.tuner.units import in_s

from ..drawing.bars import Share, shares
from ..drawing.figure import Figure, Point, Series
from ..drawing.multiples import Multiple, multiples
from ..drawing.scales import AxisSpec, Unit
from ..html import task_url
from .curves import Abscissa, Curve, Step
from .machine import machine_charts
from .model import graph_charts
from .tasks import Latency, Reason, TaskLine
from .view import JobPage

SPEEDUP = AxisSpec("times as fast as by default", Unit.TIMES, include=(1.0,))

ABSCISSAS = {
    Abscissa.TRIALS: AxisSpec("trials of the job", Unit.COUNT, include=(0.0,)),
    Abscissa.SECONDS: AxisSpec("time at work on the job", Unit.CLOCK, include=(0.0,)),
}


def job_charts(view: JobPage) -> dict[str, Markup]:
    """`parts`, `model` and `tasks`, those of the machine, and of the graph where the view has one."""
    parts = [
        Share(
            part.name,
            in_s(part.before_ms),
            in_s(part.after_ms),
            _url(view, part.key),
            (part.mark_before, part.mark_after),
        )
        for part in view.parts
    ]
    before, after = view.sides
    curves = {curve.key: curve for curve in view.curves}
    graph = graph_charts(view.graph, view.job.id, view.job.target.key) if view.graph else {}
    return graph | {
        "parts": shares(
            "Time of a run, by task",
            parts,
            before=before,
            after=after,
            nothing=view.why_no_parts,
            marks=(view.mark_before, view.mark_after),
        ),
        "model": model_figure(view, view.asked.x).draw(),
        "tasks": multiples(
            "Speed-up of each task",
            [_multiple(view, task, curves.get(task.key)) for task in view.tasks],
            ABSCISSAS[view.asked.x],
            SPEEDUP,
            until=view.end(view.asked.x),
        ),
        **{f"machine-{name}": chart for name, chart in machine_charts(view.machine, view.searched_s).items()},
    }


def model_figure(view: JobPage, by: Abscissa) -> Figure:
    """The speed-up of the model's tasks on the way, and that of the whole model as timed at its end."""
    series = [curve_series(view.model, by, "sum of its tasks")]
    if view.model.steps:
        series += timed_series(view.latency, view.end(by), "timed")
    is_kept = view.latency.is_kept
    title = "Speed-up of its tasks; the model keeps its defaults" if is_kept else "Speed-up of the model, by its tasks"
    return _curve_figure(view, by, title, series)


def _url(view: JobPage, key: str) -> str | None:
    """URL of the page of a task of the job; None for a part that is no task."""
    return task_url(key, view.job.target.key, job=view.job.id) if key else None


def _curve_figure(view: JobPage, by: Abscissa, title: str, series: Sequence[Series]) -> Figure:
    nothing = "Nothing was found" if view.trials else "There were no trials"
    if view.why_no_speedup and view.trials:
        nothing = f"No speed-up is known: {view.why_no_speedup}"
    if not view.job.is_finished:
        nothing = "Nothing was found yet" if view.trials else "There are no trials yet"
    return Figure("steps", title, ABSCISSAS[by], SPEEDUP, series, nothing=f"{nothing}.", until=view.end(by))


def curve_series(curve: Curve, by: Abscissa, name: str, href: str | None = None) -> Series:
    """A curve as a series of a figure, with what it came to beside it."""
    last = curve.steps[-1] if curve.steps else None
    note = mark_trial(mark_noise(gain(last.speedup), curve.noise), last.is_tried) if last else ""
    return Series(name, _points(curve.steps, by), note=note, href=href)


def timed_series(latency: Latency | None, end: float, name: str) -> list[Series]:
    """What the whole model was timed to be at the end of a job; empty where it was not."""
    if latency is None or not latency.is_timed or not latency.speedup:
        return []
    speedup = mark_noise(times(latency.speedup), latency.noise)
    return [Series(name, [Point(end, latency.speedup, text=speedup)], note=latency.result_text)]


def _points(steps: Sequence[Step], by: Abscissa) -> list[Point]:
    return [
        Point(
            float(step.trial) if by is Abscissa.TRIALS else step.at_s,
            step.speedup,
            text=mark_trial(f"{NOISE_MARK * step.is_noisy}{times(step.speedup)}", step.is_tried),
        )
        for step in steps
    ]


PROSPECTS = {
    Reason.UNTRIED: "not tried yet",
    Reason.FAILING: "nothing works",
    Reason.EXHAUSTED: "nothing is left",
    Reason.MOST: "most expected here",
    Reason.SOME: "some expected",
    Reason.LITTLE: "little expected",
    Reason.UNUSED: "not used",
    Reason.UNKNOWN: "",
}
"""What the search still expects of a task, in a word or two."""


def _multiple(view: JobPage, task: TaskLine, curve: Curve | None) -> Multiple:
    """A task's small chart: its curve is of trials of this job, its figure what the table has."""
    figure = times(task.speedup) if task.speedup_interval else gain(task.speedup)
    notes = [counted(task.trials, "trial"), "" if view.settings.retimed else PROSPECTS[task.reason]]
    return Multiple(
        task.op or short(task.key),
        _points(curve.steps, view.asked.x) if curve else [],
        figure=mark_trial(mark_noise(figure, task.noise), not task.is_confirmed),
        notes=[note for note in notes if note],
        href=_url(view, task.key),
        is_most=task.reason is Reason.MOST and not view.settings.retimed,
    )

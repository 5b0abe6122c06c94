"""The page of a task on a target: which schedule won, by how much and why; and everything that was tried.

Which schedule is best is what a session would use (`Store.best`). What is drawn and what cost models are asked about is
a sample of all trials of the task, whichever jobs measured them; the table alone may be narrowed to those of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from markupsafe import Markup
from pydantic import Field

from tunewright.db.best import TaskComparisons
from tunewright.db.bounds import LARGEST_ID
from tunewright.db.errors import NotFound
from tunewright.db.job import UNFINISHED, Job, JobState
from tunewright.db.store import Store
from tunewright.db.trial import TrialOrder, TrialPage
from tunewright.search_space.measurement import Status
from tunewright.tuner.explain.gain import task_gain_interval
from tunewright.tuner.explain.roofline import ceilings
from tunewright.tuner.known_times import KnownDefault, KnownTimes
from tunewright.tuner.text import duration, is_certain, mark_noise, mark_trial, sized_name, times
from tunewright.tuner.units import in_ms

from ...http.descriptions import Descriptions, DescriptionsDep
from ...http.paging import Cursor, bad_cursor
from ...http.problems import Problem, ProblemKind
from ...http.schemas.base import SHA256, Answer, Digest
from ...http.schemas.jobs import dims_of
from ...http.service import ServiceDep, in_thread
from ..asked import Asked
from ..drawing.bars import Bar, bars, nest
from ..drawing.charts import agreement, roofline
from ..drawing.figure import Figure, Mark, Point
from ..html import candidate_url
from ..page import add_page
from ..views import TargetName, Text
from .analysis import CeilingsShown, Judged, Nearness, PointShown, ReasonShown, analyse, nearness
from .schedules import (
    FormShown,
    KnobShown,
    Standing,
    TaskHead,
    TextPart,
    ToleranceShown,
    TrialBrief,
    knobs,
    text_parts,
    tolerances,
)

router = APIRouter(tags=["pages"])

TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of the task.")]

ROWS = 20
"""Trials on one page."""


class TrialSort(StrEnum):
    """What the table of trials is sorted by. Those that failed have no time, and come last by it."""

    TIME = "time"
    CREATED = "created"


ORDERS = {
    (TrialSort.TIME, False): TrialOrder.FASTEST,
    (TrialSort.TIME, True): TrialOrder.SLOWEST,
    (TrialSort.CREATED, False): TrialOrder.OLDEST,
    (TrialSort.CREATED, True): TrialOrder.NEWEST,
}
"""Orders by sort key, and whether descending."""


class TaskTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    LOOPS = "loops"
    ROOFLINE = "roofline"
    TRIALS = "trials"
    ABOUT = "about"


class TaskQuery(Answer):
    """What of a task was asked for."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    job: int | None = Field(default=None, ge=1, le=LARGEST_ID, description="Only trials of this job are in the table.")
    status: tuple[Status, ...] = Field(
        default=(), max_length=len(Status), description="Only trials that ended in one of these ways."
    )
    sort: TrialSort = Field(
        default=TrialSort.TIME, description="What the table is sorted by; trials that failed come last by time."
    )
    desc: bool = Field(default=False, description="Whether it begins with the slowest, or with the newest.")
    cursor: Cursor = None
    tab: TaskTab | None = Field(
        default=None,
        description="What the page shows, whose data has all of them; null: the `trials` where something is asked of "
        "their table, else the `overview`.",
    )

    @property
    def open_tab(self) -> TaskTab:
        """What the page shows."""
        is_of_trials = self.status or self.desc or self.cursor or self.sort is not TrialSort.TIME
        return self.tab or (TaskTab.TRIALS if is_of_trials else TaskTab.OVERVIEW)


class TaskAsked(TaskQuery, Asked):
    """What a page of a task was asked for."""

    in_path = frozenset({"task"})

    task: Digest


class JobName(Answer):
    """A job, in short."""

    id: int
    label: Text
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs, by name.")
    state: JobState
    newest: int = Field(description="Number of its newest event.")

    @property
    def name(self) -> str:
        """Its model for people, with the sizes that it is for."""
        return sized_name(self.label, self.dims)

    @property
    def is_finished(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.state not in UNFINISHED


class Gain(Answer):
    """How much faster the best schedule is than the default."""

    default_ms: float
    best_ms: float
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    best_interval_ms: tuple[float, float] | None
    interval: tuple[float, float] | None = Field(
        description="Within which their ratio lies, by both intervals; null: not known, or nothing confirmed it."
    )
    is_confirmed: bool = Field(
        description="Whether both were timed in turn, in fresh processes. Else the best's time is of a trial."
    )
    is_default_confirmed: bool = Field(description="Whether the time of the default is of such a comparison, too.")
    noise: Text = Field(description="Why the machine was too busy to rely on their ratio; empty where it was not.")
    default_noise: Text = Field(description="The same of the default's time. Those timed in turn share it.")

    @property
    def factor(self) -> float:
        """The ratio of the times."""
        return self.default_ms / self.best_ms

    @property
    def is_open(self) -> bool:
        """Whether they were compared and may be equal."""
        return self.is_confirmed and not is_certain(self.interval)


class TaskPage(Answer):
    """A task on a target."""

    asked: TaskAsked
    task: TaskHead
    target: TargetName
    job: JobName | None = Field(
        description="The job whose trials the table shows, and whose peak shares are of if it measured one; null: all "
        "trials, and the highest peak that any job measured."
    )
    best: TrialBrief | None = Field(
        description="What a session would use, with the time that it was chosen for; null: nothing is known to work."
    )
    best_trial: TrialBrief | None = Field(description="The trial of that; null: there is none here.")
    default: TrialBrief | None = Field(description="The default schedule; null: it was not measured here.")
    is_default_best: bool
    gain: Gain | None = Field(description="Null where the two were not timed here, each on the same kind of machine.")
    tolerances: list[ToleranceShown] = Field(description="Of each output.")
    knobs: list[KnobShown] = Field(description="Of the best schedule, beside the default's.")
    form: FormShown | None = Field(description="The best schedule in words and as loops; null where there is none.")
    default_form: FormShown | None = Field(description="The same of the default, where that is another one.")
    parts: list[TextPart] = Field(description="What schedules of it can be read as.")
    ceilings: CeilingsShown
    nearness: Nearness | None = Field(description="Of the best; null where that was not timed here.")
    judged: Judged | None = Field(description="What a sample of the trials says; null while that is being found out.")
    trials: int = Field(description="Trials of the task on the target that were made here, of all jobs.")
    imported: int = Field(description="The others, which were imported.")
    counts: dict[Status, int] = Field(description="How those ended that were not narrowed down to `status`.")
    shown: int = Field(description="Trials that the table has on all its pages.")
    rows: list[TrialBrief]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")

    @property
    def usable_rows(self) -> list[TrialBrief]:
        """The rows whose schedules this version has."""
        return [row for row in self.rows if row.is_usable]

    @property
    def unusable_rows(self) -> list[TrialBrief]:
        """The other rows, which are never used, however fast they were."""
        return [row for row in self.rows if not row.is_usable]

    @property
    def word_differences(self) -> tuple[list[str], list[str]]:
        """Sentences about the best schedule that differ from the default, and the other way round."""
        words = self.form.words if self.form else []
        default_words = self.default_form.words if self.default_form else []
        return [sentence for sentence in words if sentence not in default_words], [
            sentence for sentence in default_words if sentence not in words
        ]

    @property
    def changed_knobs(self) -> list[KnobShown]:
        """The knobs that differ from the default's."""
        return [knob for knob in self.knobs if knob.default_value not in (None, knob.value)]


# Charts

Kind = Literal["best", "default"]
"""Kinds of marks in charts."""

LINKED = 12
"""The fastest points of a picture are links: each is a stop of the keyboard."""


def task_charts(view: TaskPage) -> dict[str, Markup]:
    """`roofline`, `reasons`, `loops`, `default_loops`, and `agreement0`, ... of each model, as far as known."""
    charts: dict[str, Markup] = {}
    if view.form is not None:
        charts["loops"] = nest("The loops of the best schedule", view.form.parts)
    if view.default_form is not None:
        charts["default_loops"] = nest("The loops of the default schedule", view.default_form.parts)
    if view.judged is None:
        return charts
    charts["roofline"] = _roofline(view, view.judged.points).draw()
    if view.judged.reasons is not None:
        charts["reasons"] = effects("Feature effects: best schedule against default", view.judged.reasons)
    for number, model in enumerate(view.judged.calibrations):
        charts[f"agreement{number}"] = _agreement(view, view.judged.points, number, model.model).draw()
    return charts


EFFECT_HEADS = ("feature", "speed, by the model")


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


# View


@add_page(
    router,
    "/tasks/{task_key}",
    "task/page.html",
    summary="A task on a target",
    charts=task_charts,
    refusals=(ProblemKind.NO_SUCH_TASK, ProblemKind.NO_SUCH_TARGET, ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
)
async def task(
    service: ServiceDep, descriptions: DescriptionsDep, task_key: TaskInPath, query: Annotated[TaskQuery, Query()]
) -> TaskPage:
    """The best schedule known and why it won: in words, beside the default, below the roofline, and by the cost model.

    With them a table of all trials, a page at a time. What takes long to work out is null at first.
    """
    return await task_page(service.store, descriptions, TaskAsked(task=task_key, **dict(query)))


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The data of a task on a target, read from the database for one page."""

    known: Standing
    job: Job | None
    newest_event: int  # of the job
    compared: TaskComparisons | None
    newest: TrialPage  # the newest trial of all
    imported: int  # trials of all
    page: TrialPage

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that changes with what is analysed."""
        newest_id = self.newest.trials[0].id if self.newest.trials else 0
        counts = tuple(sorted(self.newest.counts.items()))  # taking back changes that alone
        return newest_id, counts, self.known.snapshot_id, self.known.schedule


async def task_page(store: Store, descriptions: Descriptions, query: TaskAsked) -> TaskPage:
    """The page that was asked for. Raises Problem for what is not known and for a bad cursor, StoreError."""
    facts = await in_thread(partial(_load_facts, store, query))
    known = facts.known
    analysis, best_form, default_form = await asyncio.gather(
        descriptions.analyse((query.task, query.target), facts.mark, partial(analyse, store, known)),
        known.form(descriptions, known.schedule),
        known.form(descriptions, known.default if known.best else None, known.schedule),
    )
    return await in_thread(partial(_page, query, facts, analysis, best_form, default_form))


def _load_facts(store: Store, query: TaskAsked) -> TaskFacts:
    key, target_key = query.task, query.target
    job = None if query.job is None else find_job(store, query.job)
    newest_event = store.jobs.newest_event(job.id) if job else 0  # before what the page says, so that none is missed
    known = Standing.load(store, key, target_key, job)
    return TaskFacts(
        known=known,
        job=job,
        newest_event=newest_event,
        compared=store.comparisons([key], target_key).get(key),
        newest=store.trials.page(key, target_key, order=TrialOrder.NEWEST, limit=1),
        imported=store.trials.imported(key, target_key),
        page=_trials(store, query),
    )


def find_job(store: Store, job_id: int) -> Job:
    """A job by its number. Raises Problem where there is none, StoreError."""
    try:
        return store.jobs.get(job_id)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_JOB, f"no job has the number {job_id}") from error


def _trials(store: Store, query: TaskAsked) -> TrialPage:
    try:
        return store.trials.page(
            query.task,
            query.target,
            job_id=query.job,
            statuses=query.status or None,
            order=ORDERS[query.sort, query.desc],
            cursor=query.cursor,
            limit=ROWS,
        )
    except ValueError as error:
        raise bad_cursor() from error


def _page(
    query: TaskAsked, facts: TaskFacts, analysis: Judged | None, form: FormShown | None, default_form: FormShown | None
) -> TaskPage:
    known, job = facts.known, facts.job
    best, default, shown_best = known.schedule, known.default, known.best_brief
    return TaskPage(
        asked=query,
        task=TaskHead.of(known.task),
        target=TargetName.of(known.target),
        job=JobName.show(job, dims=dims_of(job), newest=facts.newest_event) if job else None,
        best=shown_best,
        best_trial=known.brief(known.best_trial),
        default=known.brief(known.default_trial),
        is_default_best=best is not None and best == default,
        gain=_gain(facts, shown_best),
        tolerances=tolerances(known.task),
        knobs=knobs(best, default, best) if best else [],
        form=form,
        default_form=default_form,
        parts=text_parts(known.target),
        ceilings=CeilingsShown.show(ceilings(known.task, known.target, known.peak_gflops)),
        nearness=nearness(known, known.best_trial, known.best.median_s if known.best else None),
        judged=analysis.told_of(best) if analysis else None,
        trials=facts.newest.total - facts.imported,
        imported=facts.imported,
        counts=dict(facts.page.counts),
        shown=facts.page.total,
        rows=[row for line in facts.page.trials if (row := known.brief(line))],
        next=facts.page.next,
    )


def _gain(facts: TaskFacts, best: TrialBrief | None) -> Gain | None:
    """How much faster than the default the best is: both as confirmed, or as `KnownDefault` has it beside a trial."""
    if best is None or not best.median_ms or best.is_imported:
        return None
    known, compared = facts.known, KnownTimes.of_comparisons(facts.compared, facts.known.target)
    trial = known.default_trial if known.default_trial and not known.default_trial.line.is_imported else None
    if not best.is_confirmed and (trial is None or known.default == known.schedule):
        return None
    default = KnownDefault.beside_best(best.is_confirmed, trial.record.measurement if trial else None, compared)
    if default is None:  # maybe taken back
        return None
    default_ms = in_ms(default.time_s)
    interval_ms = None if default.interval_s is None else (1e3 * default.interval_s[0], 1e3 * default.interval_s[1])
    if default_ms is None:  # older versions kept none beside a confirmation
        return None
    edges, noise = (interval_ms, best.interval_ms), best.noise or default.noise
    is_side_by_side = best.is_confirmed and compared is not None and not compared.is_apart
    return Gain(
        default_ms=default_ms,
        best_ms=best.median_ms,
        default_interval_ms=interval_ms,
        best_interval_ms=best.interval_ms,
        interval=task_gain_interval(default_ms, best.median_ms, *edges, is_side_by_side),
        is_confirmed=best.is_confirmed,
        is_default_confirmed=default.is_confirmed,
        noise=noise,
        default_noise=noise if best.is_confirmed else default.noise,
    )

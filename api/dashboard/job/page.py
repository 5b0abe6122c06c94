"""The page of a job. Read `job_page` first; the table of tasks is in `tasks`, curves in `curves`, events in
`history`.

At a glance: how much faster it is now, where the time goes, which task still has something to gain, and whether more
budget is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from pydantic import Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.db.job import UNFINISHED, Job, JobState
from tunewright.db.store import Store
from tunewright.tuner.explain import values
from tunewright.tuner.explain.curves import active_s
from tunewright.tuner.explain.gain import ExpectedGain, GainBasis
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.explain.upgrade import upgrade_lines
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.report import ENDINGS, SearchEnd
from tunewright.tuner.search.scheduling.outlook import MINUTE_S, again_words
from tunewright.tuner.search.stage import AFTER_SEARCH, stage_words
from tunewright.tuner.search.view import CLEAR_GAIN
from tunewright.tuner.text import NOISE_MARK, gain, mark_noise, mark_trial, times
from tunewright.tuner.units import in_s

from ...http.problems import ProblemKind
from ...http.routes.jobs import of_job
from ...http.schemas.base import Answer, JobId
from ...http.schemas.jobs import dims_of, waits_for
from ...http.service import ServiceDep
from ..drawing.bars import Share, shares
from ..drawing.figure import Figure, Point, Series
from ..drawing.scales import AxisSpec, Unit
from ..html import task_url
from ..jobs import LITTLE_GAIN, JobLine, Outlook, line_of
from ..page import add_page
from ..views import LongText, Notes, Text
from .curves import Curve, model_curve, task_curves
from .history import FailureLine, Histories, JobHistory, LogLine, failure_lines, log_lines
from .tasks import (
    Latency,
    ModelRun,
    TaskLine,
    TaskSort,
    as_told,
    model_run,
    names,
    sort_tasks,
    task_lines,
    total_ms,
)

ROWS = 25
"""Tasks on one page."""

PARTS = 6
"""Tasks whose share of a run is shown apart."""

MOST = 0.5
"""More than this part of something is most of it."""

MOST_PROMISING = 3
"""Tasks that are named at once, of those that something is still expected of."""


class Abscissa(StrEnum):
    """What curves are drawn against."""

    TRIALS = "trials"
    SECONDS = "seconds"


class JobTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    TASKS = "tasks"
    TRIALS = "trials"
    EVENTS = "events"
    MACHINE = "machine"
    SETTINGS = "settings"


class JobPageAsked(Answer):
    """What of a job was asked for."""

    tab: JobTab = Field(default=JobTab.OVERVIEW, description="What the page shows; its data has all of it in any case.")
    x: Abscissa = Field(
        default=Abscissa.TRIALS, description="What the curves are drawn against: trials, or seconds of work on the job."
    )
    sort: TaskSort = Field(
        default=TaskSort.TIME,
        description="The order of the tasks, most first: `time` of a run, what was `saved`, is `expected` still.",
    )
    start: int = Field(default=0, ge=0, le=1_000_000, description="How many tasks to pass over.")
    before: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="List the events with numbers below this."
    )


class Prospect(Answer):
    """Whether the job is worth more budget."""

    outlook: Outlook
    again_s: float | None = Field(description="For so many seconds more ...")
    again_gain: float | None = Field(
        description="... of searching it is expected to become faster by this share, whatever the budget: a run of the "
        "whole model, or its tasks' time where that was not timed (see `parts_of`)."
    )
    ended_by: SearchEnd | None = Field(description="Why the search ended; null: it has not, or not by itself.")

    @property
    def again(self) -> str:
        """For how long more, in words."""
        return again_words(MINUTE_S if self.again_s is None else self.again_s)

    @property
    def ending(self) -> str:
        """Why the search ended, for people."""
        return ENDINGS[self.ended_by] if self.ended_by else ""


class Promise(Answer):
    """A task that something is still expected of."""

    key: Text
    op: Text
    expected_share: float = Field(
        description="What part of what `parts_of` says searching for as long again should save here."
    )


class Part(Answer):
    """What a task takes of a run of the model, or several together, or what no task does."""

    key: Text = Field(description="Of the task; empty where it is no single one.")
    name: Text = Field(description="For people.")
    before_ms: float | None
    after_ms: float | None
    is_tried: bool = Field(description="Whether a trial is in it, which nothing has confirmed.")
    is_default_tried: bool = Field(description="Whether one is in `before_ms`.")
    noise: Text = Field(description="Why the machine was too busy to rely on it; empty where it was not.")

    def mark_before(self, time: str) -> str:
        """The time before, marked as it needs to be."""
        return mark_trial(mark_noise(time, self.noise), self.is_default_tried)

    def mark_after(self, time: str) -> str:
        """The time after."""
        return mark_trial(mark_noise(time, self.noise), self.is_tried)


class JobDevice(Answer):
    """What candidates are timed on."""

    name: Text
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then.")
    reason: Text


class JobTuner(Answer):
    """A tuner process that is at work on the job."""

    id: Text
    host: Text
    pid: int
    pool: Text
    seen_at: datetime
    draining: bool
    devices: list[JobDevice]


class Settings(Answer):
    """What the search was asked to be like."""

    trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    seconds: float | None = Field(description="Most seconds of searching; null: no limit.")
    until: float | None = Field(description="It ends once another minute brings less than this; null: no limit.")
    strategy: Text
    seed: int | None
    dims: dict[Text, int] = Field(description="Sizes of the model's open dimensions, and values of inputs.")
    precision: Text = Field(description="What products are computed in.")
    priority: int
    attempts: int = Field(description="Tuner processes that took it up since the last new trial.")
    retimed: int = Field(description="Schedules of each stale task that it times again; 0: it searches.")
    is_attached: bool = Field(description="Whether it belongs to a command, so that no other process takes it up.")


class JobPage(Answer):
    """A job."""

    asked: JobPageAsked
    job: JobLine
    notes: Notes = Field(description="What people noted of it.")
    stage: Text = Field(
        description="What its tuner process is at, or was when the job was paused; empty where nothing goes "
        "on or is to."
    )
    confirmed: int = Field(description="Tasks whose default and best it has timed side by side, the search over.")
    to_confirm: int = Field(
        description="Of how many that is so in the end: others have nothing to compare. 0: not known yet."
    )
    latency: Latency
    prospect: Prospect
    promising: list[Promise] = Field(description="The tasks that most is still expected of.")
    parts: list[Part] = Field(description="Where a run's time goes: the heaviest tasks, and the rest.")
    parts_of: GainBasis = Field(
        description="What these come to: the run of the whole `model` that was timed; or the sum of what its `tasks` "
        "take, each measured by itself, which is another figure; or such a sum by `trials`. Shares and expected gains "
        "are parts of that, too."
    )
    parts_noise: Text = Field(description="Why the machine was too busy to rely on that; empty where it was not.")
    model: Curve = Field(description="Of the whole model.")
    curves: list[Curve] = Field(description="Of the tasks that are listed.")
    searched_s: float = Field(description="Seconds in which a process was at work on it: where curves end.")
    tasks: list[TaskLine]
    next_start: int | None = Field(description="`start` of the tasks behind these; null: there are none.")
    task_count: int
    trials: int = Field(description="That were counted, those that failed or were taken back among them.")
    voided: int = Field(description="Of them, those that people took back; they are none of the `failures`.")
    failures: list[FailureLine] = Field(description="The most frequent first.")
    fallback: dict[Text, int] = Field(description="Op -> nodes of the model that run without a kernel.")
    fallback_share: float | None = Field(description="The part of a run that these take; null: not known.")
    fallback_noise: Text = Field(description="Why the machine was too busy to rely on that; empty where it was not.")
    log: list[LogLine] = Field(
        description="The newest first; without progress and defaults, of which there are too many."
    )
    next_before: int | None = Field(description="`before` of the events behind these; null: there are none.")
    newest: int = Field(description="Number of the newest event: what follows has a higher one.")
    tuners: list[JobTuner]
    tuner_count: int = Field(description="Tuner processes that were heard of in the last minute, on whatever job.")
    waits_for: Text = Field(description="The kind of device that it waits for, in words; empty where it has a target.")
    most_threads: int = Field(description="The most threads of a device at work now; 0: there is none.")
    upgrade: list[LongText] = Field(
        description="What a job that times stale tasks again says of the upgrade, a sentence each; none of other jobs."
    )
    settings: Settings

    @property
    def stage_text(self) -> str:
        """The stage, for people."""
        words = stage_words(self.stage, self.confirmed, self.to_confirm)
        return f"while {words}" if words and self.job.state is JobState.PAUSED else words

    @property
    def is_promised_here(self) -> bool:
        """Whether the tasks in `promising` make most of what more searching is expected to save."""
        gain = self.prospect.again_gain or 0.0
        return sum(one.expected_share for one in self.promising) > MOST * gain / (1.0 + gain)

    @property
    def left_text(self) -> str:
        """What is left once the search is over, for people; empty before."""
        return AFTER_SEARCH.get(self.stage, "")

    @property
    def sides(self) -> tuple[str, str]:
        """Labels of the times before and after of `parts`."""
        of = ", its tasks one by one" if self.latency.is_timed and self.parts_of is not GainBasis.MODEL else ""
        return f"by default{of}", f"{'tuned' if self.job.is_searched else 'so far'}{of}"

    @property
    def why_no_speedup(self) -> str:
        """Why no speed-up of a job is known, where it never will be; empty where it is or may be."""
        if self.latency.speedup is not None or not self.job.is_searched:
            return ""
        return self.latency.default_fault or ("not every default was timed" if self.task_count else "it has no tasks")

    @property
    def why_no_parts(self) -> str:
        """Why nothing can be told of where the time goes; empty where it can."""
        if any(total_ms(side) for side in zip(*((part.before_ms, part.after_ms) for part in self.parts), strict=True)):
            return ""
        if not self.task_count:
            return "The model has no tasks: nothing of it runs on our kernels."
        if self.job.is_finished:
            return "Not every task was timed, so nothing is known of where the time of a run goes."
        return "Where the time of a run goes is known once each task's default was timed."

    def end(self, by: Abscissa) -> float:
        """Where curves end."""
        return float(self.trials) if by is Abscissa.TRIALS else self.searched_s

    def mark_before(self, time: str) -> str:
        """The sum of `parts` before, marked as it needs to be."""
        is_tried = self.parts_of is GainBasis.TRIALS and any(part.is_default_tried for part in self.parts)
        return mark_trial(mark_noise(time, self.parts_noise), is_tried)

    def mark_after(self, time: str) -> str:
        """The sum of `parts` after."""
        return mark_trial(mark_noise(time, self.parts_noise), self.parts_of is GainBasis.TRIALS)


# Charts

SPEEDUP = AxisSpec("times as fast as by default", Unit.TIMES, include=(1.0,))

ABSCISSAS = {
    Abscissa.TRIALS: AxisSpec("trials of the job", Unit.COUNT, include=(0.0,)),
    Abscissa.SECONDS: AxisSpec("time at work on the job", Unit.CLOCK, include=(0.0,)),
}


def job_charts(view: JobPage) -> dict[str, Markup]:
    """`parts`, `model` and `tasks`."""
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
    return {
        "parts": shares(
            "Time of a run, by task",
            parts,
            before=before,
            after=after,
            nothing=view.why_no_parts,
            marks=(view.mark_before, view.mark_after),
        ),
        "model": model_figure(view, view.asked.x).draw(),
        "tasks": _curve_figure(
            view,
            view.asked.x,
            "Speedup of each task listed below, by trials",
            [_task_series(view, view.asked.x, curve) for curve in view.curves],
        ).draw(),
    }


def model_figure(view: JobPage, by: Abscissa) -> Figure:
    """The speedup of the model's tasks on the way, and that of the whole model as timed at its end."""
    series = [_series(view, by, view.model, "sum of its tasks")]
    if view.latency.is_timed and view.latency.speedup and view.model.steps:
        speedup = mark_noise(times(view.latency.speedup), view.latency.noise)
        point = Point(view.end(by), view.latency.speedup, text=speedup)
        series.append(Series("timed", [point], note=view.latency.result_text))
    is_kept = view.latency.is_kept
    title = "Speedup of its tasks; the model keeps its defaults" if is_kept else "Speedup of the model, by its tasks"
    return _curve_figure(view, by, title, series)


def _url(view: JobPage, key: str) -> str | None:
    """URL of the page of a task of the job; None for a part that is no task."""
    return task_url(key, view.job.target.key, job=view.job.id) if key else None


def _curve_figure(view: JobPage, by: Abscissa, title: str, series: Sequence[Series]) -> Figure:
    nothing = "Nothing was found" if view.trials else "There were no trials"
    if view.why_no_speedup and view.trials:
        nothing = f"No speedup is known: {view.why_no_speedup}"
    if not view.job.is_finished:
        nothing = "Nothing was found yet" if view.trials else "There are no trials yet"
    return Figure("steps", title, ABSCISSAS[by], SPEEDUP, series, nothing=f"{nothing}.", until=view.end(by))


def _series(view: JobPage, by: Abscissa, curve: Curve, name: str) -> Series:
    points = [
        Point(
            float(step.trial) if by is Abscissa.TRIALS else step.at_s,
            step.speedup,
            text=mark_trial(f"{NOISE_MARK * step.is_noisy}{times(step.speedup)}", step.is_tried),
        )
        for step in curve.steps
    ]
    last = curve.steps[-1] if curve.steps else None
    note = mark_trial(mark_noise(gain(last.speedup), curve.noise), last.is_tried) if last else ""
    return Series(name, points, note=note, href=_url(view, curve.key))


def _task_series(view: JobPage, by: Abscissa, curve: Curve) -> Series:
    """The curve of a task; its figure only where a trial is in it.

    What was confirmed before the job is where its curve begins, and may have been confirmed anew since: of that the
    table tells.
    """
    series = _series(view, by, curve, curve.op)
    return series if curve.steps and curve.steps[-1].is_tried else replace(series, note="")


# View

router = APIRouter(tags=["pages"])


async def histories_of(request: Request) -> Histories:
    """The histories of the jobs that people look at."""
    return cast("Histories", request.app.state.histories)


@add_page(
    router,
    "/jobs/{job_id:int}",
    "job/page.html",
    summary="A job",
    charts=job_charts,
    refusals=(ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
)
def job(
    service: ServiceDep,
    histories: Annotated[Histories, Depends(histories_of)],
    job_id: JobId,
    query: Annotated[JobPageAsked, Query()],
) -> JobPage:
    """How much faster the model is, where its time goes, what each task got and brought, and what more would bring."""
    return of_job(lambda: job_page(service.store, histories, job_id, query), job_id)


def job_page(store: Store, histories: Histories, job_id: int, query: JobPageAsked) -> JobPage:
    """The job as it stands. Raises NotFound, StoreError."""
    [job] = mark_taken_back(store, [store.jobs.get(job_id)])
    history = histories.of(job, store.jobs, store.trials)
    job = as_told(job, history)
    ops = names(store, [task.task_key for task in job.spec.tasks])
    targets = [store.target(job.spec.target_key)] if job.spec.target_key else []
    tuners = store.fleet.tuners()
    run, progress = model_run(job, history), _forecast(job, history)
    ended_by = values.member(job.result, "ended_by", SearchEnd)
    is_exhausted = ended_by is SearchEnd.EXHAUSTED  # older versions told last what they expected before
    expected = ExpectedGain.nothing(len(run.times)) if is_exhausted else run.expected(progress)
    tasks = task_lines(job, history, run, expected.by_task, ops)
    page_tasks = sort_tasks(tasks, query.sort)[query.start : query.start + ROWS]
    behind = query.start + ROWS
    log, next_before = log_lines(history.events, ops, query.before)
    fallback = job.result.get("fallback") if job.result else None
    searched_s = active_s(history.spine, datetime.now(UTC) if job.state in UNFINISHED else job.updated_at)
    return JobPage(
        asked=query,
        job=line_of(job, {target.key: str(target) for target in targets}, store.keys.owner_names([job.owner])),
        notes=job.notes,
        stage=_stage(job),
        confirmed=int(values.number(job.progress, "confirmed") or 0),
        to_confirm=int(values.number(job.progress, "to_confirm") or 0),
        latency=run.latency,
        prospect=_prospect(progress, expected.gain, ended_by),
        promising=_promises(tasks),
        parts=_parts(tasks, _remainder(run)),
        parts_of=run.of,
        parts_noise=run.noise,
        model=model_curve(job, history, searched_s),
        curves=task_curves(history, page_tasks),
        searched_s=searched_s,
        tasks=page_tasks,
        next_start=behind if behind < len(tasks) else None,
        task_count=len(tasks),
        trials=history.trials,
        voided=history.voided,
        failures=failure_lines(history, ops),
        fallback={str(op): int(values.number(fallback, op) or 0) for op in fallback}
        if isinstance(fallback, dict)
        else {},
        fallback_share=values.number(job.result, "fallback_share"),
        fallback_noise=run.latency.noise or total_noise(times.noise for times in run.times),
        log=log,
        next_before=next_before,
        newest=history.newest,
        tuners=[JobTuner.show(tuner) for tuner in tuners if tuner.job_id == job.id],
        tuner_count=len(tuners),
        waits_for=waits_for(job),
        most_threads=max((target.threads for target in store.fleet.targets()), default=0),
        upgrade=upgrade_lines(job.result),
        settings=_settings(job),
    )


# At a glance


def _stage(job: Job) -> str:
    """What goes on in a job, or did when it was paused; a job that is out of time has all it was to have."""
    is_at_rest = job.state is JobState.PAUSED and job.result is None
    return values.word(job.progress, "stage") if job.holder or is_at_rest else ""


def _forecast(job: Job, history: JobHistory) -> Mapping[str, Any] | None:
    """The newest progress that tells what more budget would bring."""
    told = (job.progress, history.expected)
    return next((data for data in told if values.number(data, "again_gain") is not None), None)


def _prospect(progress: Mapping[str, Any] | None, gain: float | None, ended_by: SearchEnd | None) -> Prospect:
    """What more budget would bring."""
    outlook = Outlook.UNKNOWN
    if gain is not None:
        outlook = Outlook.LITTLE if gain < LITTLE_GAIN else Outlook.SOME
    spent_s = values.number(progress, "spent_s")
    return Prospect(
        outlook=outlook,
        again_s=None if spent_s is None else max(spent_s, MINUTE_S),
        again_gain=gain,
        ended_by=ended_by,
    )


def _promises(tasks: Sequence[TaskLine]) -> list[Promise]:
    return [
        Promise(key=task.key, op=task.op, expected_share=task.expected_share)
        for task in sort_tasks(tasks, TaskSort.EXPECTED)[:MOST_PROMISING]
        if task.expected_share is not None and task.expected_share >= CLEAR_GAIN
    ]


def _parts(tasks: Sequence[TaskLine], besides: Sequence[Part]) -> list[Part]:
    """Shares of a run: the heaviest tasks, the time besides tasks where the model was timed, and the rest."""
    used = [task for task in tasks if task.before_ms != 0 or task.after_ms != 0]
    most = PARTS - len(besides)
    parts = [
        Part.show(task, name=task.op, is_tried=not task.is_confirmed, is_default_tried=_is_default_tried([task]))
        for task in used[:most]
    ]
    rest = used[most:]
    name = f"{len(rest)} more tasks" if len(rest) > 1 else "1 more task"
    others = Part(
        key="",
        name=name,
        before_ms=total_ms([task.before_ms for task in rest]),
        after_ms=total_ms([task.after_ms for task in rest]),
        is_tried=not all(task.is_confirmed for task in rest),
        is_default_tried=_is_default_tried(rest),
        noise=total_noise(task.noise for task in rest),
    )
    return [*parts, *besides, *([others] if rest else [])]


def _is_default_tried(tasks: Iterable[TaskLine]) -> bool:
    """Whether a trial is in what these take of a run on default schedules."""
    return any(task.before_ms != 0 and not task.is_default_confirmed for task in tasks)


def _remainder(run: ModelRun) -> list[Part]:
    """The time of a run that no task takes: nodes without a kernel, and the time between kernels."""
    if run.besides_ms is None:
        return []
    before_ms, after_ms = run.besides_ms
    noise = total_noise([run.noise, *(times.noise for times in run.times)])
    return [
        Part(
            key="",
            name="besides its tasks",
            before_ms=before_ms,
            after_ms=after_ms,
            is_tried=not all(times.is_confirmed for times in run.times),
            is_default_tried=run.is_default_tried,
            noise=noise,
        )
    ]


def _settings(job: Job) -> Settings:
    settings = job.spec.settings
    seed = values.number(settings, "seed")
    return Settings.show(
        job.budget,
        job,
        seconds=None if job.budget.seconds == inf else job.budget.seconds,
        strategy=values.word(settings, "strategy"),
        seed=None if seed is None else int(seed),
        dims=dims_of(job),
        precision=job.spec.precision,
        retimed=job.spec.retimed,
        is_attached=job.attached,
    )

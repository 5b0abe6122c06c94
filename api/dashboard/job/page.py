"""The page of a job. Read `job_page` first; what it says at once is in `glance`, its charts are in `charts`, and each
other part of it is in a module of that name.

At a glance: how much faster it is now, where the time goes, which task still has something to gain, and whether more
budget is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from math import inf
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.db.job import UNFINISHED, EventKind, Job, JobState
from tunewright.db.store import Store
from tunewright.search_space.measurement import Status
from tunewright.tuner.explain import values
from tunewright.tuner.explain.curves import active_s
from tunewright.tuner.explain.gain import ExpectedGain, GainBasis
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.explain.upgrade import upgrade_lines
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.report import SearchEnd
from tunewright.tuner.search.stage import AFTER_SEARCH, stage_words
from tunewright.tuner.text import mark_noise, mark_trial

from ...http.descriptions import Descriptions, DescriptionsDep
from ...http.paging import Cursor
from ...http.problems import ProblemKind
from ...http.routes.jobs import of_job
from ...http.schemas.base import SHA256, Answer, JobId
from ...http.schemas.jobs import dims_of, waits_for
from ...http.service import ServiceDep, in_thread
from ..jobs import JobLine, line_of
from ..page import add_page
from ..views import LongText, Notes, Text
from .charts import job_charts
from .curves import Abscissa, Curve, model_curve, task_curves
from .glance import (
    Part,
    Promise,
    Prospect,
    Verdict,
    forecast_of,
    promises_of,
    prospect_of,
    stage_of,
    time_parts,
    trust_verdict,
    worth_verdict,
)
from .history import FailureLine, Histories, JobHistory, LogLine, failure_lines, listed_kinds, log_lines
from .judged import JobModels, ask_models, job_models
from .tasks import Latency, TaskLine, TaskSort, as_told, model_run, names, sort_tasks, task_lines, total_ms
from .trials import JobTrials, job_trials

ROWS = 25
"""Tasks on one page."""

MOST = 0.5
"""More than this part of something is most of it."""


class JobTab(StrEnum):
    """The parts of the page, of which it shows one: each is a template of that name."""

    OVERVIEW = "overview"
    TASKS = "tasks"
    TRIALS = "trials"
    COST_MODEL = "cost_model"
    EVENTS = "events"
    MACHINE = "machine"
    SETTINGS = "settings"


class JobPageAsked(Answer):
    """What of a job was asked for."""

    tab: JobTab = Field(
        default=JobTab.OVERVIEW,
        description="What the page shows. Its data has in any case what is not said to be of one of them.",
    )
    x: Abscissa = Field(
        default=Abscissa.TRIALS, description="What the curves are drawn against: trials, or seconds of work on the job."
    )
    sort: TaskSort = Field(
        default=TaskSort.TIME,
        description="The order of the tasks, most first: `time` of a run, what was `saved`, is `expected` still.",
    )
    start: int = Field(default=0, ge=0, le=1_000_000, description="How many tasks to pass over.")
    task: str = Field(default="", pattern=f"^({SHA256})?$", description="Only trials of this task are listed, if any.")
    status: tuple[Status, ...] = Field(
        default=(), max_length=len(Status), description="Only trials that ended in one of these ways."
    )
    cursor: Cursor = None
    kind: tuple[EventKind, ...] = Field(
        default=(), max_length=len(EventKind), description="Only events of these kinds are listed."
    )
    before: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="List the events with numbers below this."
    )


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
    worth: Verdict = Field(description="Whether it is worth more time.")
    trust: Verdict = Field(description="Whether its speed-up can be relied on.")
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
    trial_page: JobTrials | None = Field(description="Its trials; null but in the tab `trials`.")
    models: JobModels | None = Field(
        description="What the cost model makes of its trials; null but in the tab `cost_model`, and without a target."
    )
    kinds: dict[EventKind, int] = Field(description="How many events of each kind it has, of those that are listed.")
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
async def job(
    service: ServiceDep,
    histories: Annotated[Histories, Depends(histories_of)],
    descriptions: DescriptionsDep,
    job_id: JobId,
    query: Annotated[JobPageAsked, Query()],
) -> JobPage:
    """How much faster the model is, where its time goes, what each task got and brought, and what more would bring.

    Its trials and what the cost model makes of them come with the tabs that show them; what takes long to work out is
    null at first.
    """
    make = partial(job_page, service.store, histories, job_id, query)
    return await asked_models(service.store, descriptions, await in_thread(lambda: of_job(make, job_id)))


async def asked_models(store: Store, descriptions: Descriptions, view: JobPage) -> JobPage:
    """The page with what the cost models say, where it tells of them. Raises StoreError."""
    if view.models is None:
        return view
    models = await ask_models(store, descriptions, view.job, view.models)
    return view.model_copy(update={"models": models})


def job_page(store: Store, histories: Histories, job_id: int, query: JobPageAsked) -> JobPage:
    """The job as it stands. Raises NotFound, StoreError."""
    [job] = mark_taken_back(store, [store.jobs.get(job_id)])
    history = histories.of(job, store.jobs, store.trials)
    job = as_told(job, history)
    ops = names(store, [task.task_key for task in job.spec.tasks])
    targets = [store.target(job.spec.target_key)] if job.spec.target_key else []
    tuners = store.fleet.tuners()
    run, progress = model_run(job, history), forecast_of(job, history)
    ended_by = values.member(job.result, "ended_by", SearchEnd)
    is_exhausted = ended_by is SearchEnd.EXHAUSTED  # older versions told last what they expected before
    expected = ExpectedGain.nothing(len(run.times)) if is_exhausted else run.expected(progress)
    tasks = task_lines(job, history, run, expected.by_task, ops)
    page_tasks = sort_tasks(tasks, query.sort)[query.start : query.start + ROWS]
    behind = query.start + ROWS
    log, next_before = log_lines(history.events, ops, query.before, query.kind)
    fallback = job.result.get("fallback") if job.result else None
    line = line_of(job, {target.key: str(target) for target in targets}, store.keys.owner_names([job.owner]))
    prospect = prospect_of(progress, expected.gain, ended_by)
    searched_s = active_s(history.spine, datetime.now(UTC) if job.state in UNFINISHED else job.updated_at)
    return JobPage(
        asked=query,
        job=line,
        notes=job.notes,
        stage=stage_of(job),
        confirmed=int(values.number(job.progress, "confirmed") or 0),
        to_confirm=int(values.number(job.progress, "to_confirm") or 0),
        latency=run.latency,
        prospect=prospect,
        worth=worth_verdict(line, run.latency, prospect, run.of),
        trust=trust_verdict(line, run.latency),
        promising=promises_of(tasks),
        parts=time_parts(tasks, run),
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
        trial_page=_trial_page(store, job, history, ops, query),
        models=job_models(store, job, history, tasks) if query.tab is JobTab.COST_MODEL else None,
        kinds=listed_kinds(history.events),
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


def _trial_page(
    store: Store, job: Job, history: JobHistory, ops: Mapping[str, str], query: JobPageAsked
) -> JobTrials | None:
    if query.tab is not JobTab.TRIALS:
        return None
    return job_trials(store, job, history.counts, ops, task=query.task, statuses=query.status, cursor=query.cursor)

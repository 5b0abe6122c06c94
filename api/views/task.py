"""The view of a task on a target: which schedule won, by how much and why; and everything that was tried.

Which schedule is best is what a session would use (`Store.best`). What is drawn and what cost models are asked about is
a sample of all trials of the task, whichever jobs measured them; the table alone may be narrowed to those of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.errors import NotFound
from tunewright.db.jobs import UNFINISHED, Job, JobState
from tunewright.db.known import Best
from tunewright.db.sql_store import SqlStore
from tunewright.db.trials import Order, TrialDetail, TrialPage
from tunewright.graph.task import Task
from tunewright.search_space.measurement import NOISE, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.tuner.insight import told
from tunewright.tuner.units import in_ms

from ..looks import Looks
from ..paging import bad_cursor
from ..problems import Kind, Problem
from ..schemas import Answer, Digest
from ..service import in_thread
from .judged import CeilingsShown, Judged, Question, judged, measured_peak
from .said import Said
from .schedules import (
    FormShown,
    KnobShown,
    TaskHead,
    ToleranceShown,
    TrialBrief,
    default_of,
    interval_ms,
    knobs,
    target_of,
    task_of,
    tolerances,
)
from .targets import TargetName

ROWS = 50
"""Trials on one page."""


class TrialSort(StrEnum):
    """What the table of trials is sorted by. Those that failed have no time, and come last by it."""

    TIME = "time"
    CREATED = "created"


ORDERS = {
    (TrialSort.TIME, False): Order.FASTEST,
    (TrialSort.TIME, True): Order.SLOWEST,
    (TrialSort.CREATED, False): Order.OLDEST,
    (TrialSort.CREATED, True): Order.NEWEST,
}
"""By what, and whether descending."""


class TaskAsked(Answer):
    """What a page of a task was asked for."""

    task: Digest
    target: Digest
    job: int | None = Field(None, description="The job whose trials the table shows; null: all of them.")
    status: tuple[Status, ...] = Field((), description="Ways in which those ended that it shows; empty: any.")
    sort: TrialSort = TrialSort.TIME
    desc: bool = False
    cursor: str | None = None

    def query(self, **changes: Any) -> dict[str, Any]:
        """The query of the page that is asked for the same but for some changes; its first page, unless told."""
        asked = self.model_dump(exclude={"task", "cursor"}, mode="json") | changes
        return asked | {
            "desc": "true" if asked["desc"] else None,
            "sort": None if asked["sort"] == TrialSort.TIME else asked["sort"],
        }


class JobName(Answer):
    """A job, in short."""

    id: int
    label: Said
    state: JobState
    newest: int = Field(description="Number of its newest event.")

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
    is_confirmed: bool = Field(
        description="Whether both were timed in turn, in fresh processes. Else they are times of trials."
    )
    noise: Said = Field(description="Why the machine was too busy to rely on these; empty where it was not.")

    @property
    def factor(self) -> float:
        """The ratio of the times."""
        return self.default_ms / self.best_ms


class TaskPage(Answer):
    """A task on a target."""

    asked: TaskAsked
    task: TaskHead
    target: TargetName
    job: JobName | None = Field(description="The job whose trials the table shows; null: all of them.")
    best: TrialBrief | None = Field(
        description="What a session would use, with the time that it was chosen for; null: no trial has worked."
    )
    best_trial: TrialBrief | None = Field(description="The trial of that; null: there is none here.")
    default: TrialBrief | None = Field(description="The default schedule; null: it was not measured here.")
    is_default_best: bool
    gain: Gain | None
    tolerances: list[ToleranceShown] = Field(description="Of each output.")
    knobs: list[KnobShown] = Field(description="Of the best schedule, beside the default's.")
    form: FormShown | None = Field(description="The best schedule in words and as loops; null where there is none.")
    default_form: FormShown | None = Field(description="The same of the default, where that is another one.")
    ceilings: CeilingsShown
    judged: Judged | None = Field(description="What a sample of the trials says; null while that is being found out.")
    trials: int = Field(description="Trials of the task on the target, of all jobs.")
    counts: dict[Status, int] = Field(description="How those ended that were not narrowed down to `status`.")
    shown: int = Field(description="Trials that the table has on all its pages.")
    rows: list[TrialBrief]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")

    @property
    def unlike(self) -> tuple[list[str], list[str]]:
        """What is said of the best schedule and not of the default, and the other way round."""
        words = self.form.words if self.form else []
        default_words = self.default_form.words if self.default_form else []
        return [one for one in words if one not in default_words], [one for one in default_words if one not in words]

    @property
    def moved(self) -> list[KnobShown]:
        """The knobs that differ from the default's."""
        return [knob for knob in self.knobs if knob.default_value not in (None, knob.value)]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database has of a task on a target, read for one page."""

    task: Task
    target: Target
    job: Job | None
    newest_event: int  # of the job
    best: Best | None
    confirmed: Record | None  # the newest comparison, of the best where that is confirmed
    best_trial: TrialDetail | None
    default: Schedule | None
    default_trial: TrialDetail | None
    result: Mapping[str, Any] | None  # of the job that the table is of, or that measured the best
    newest: TrialPage  # the newest trial of all
    page: TrialPage
    snapshot_id: int

    @property
    def schedule(self) -> Schedule | None:
        """The best."""
        return self.best.schedule if self.best else None

    @property
    def question(self) -> Question:
        """What there is to explain."""
        best_s = self.best.median_s if self.best else None
        return Question(self.task, self.target, self.default, self.schedule, best_s, measured_peak(self.result))

    @property
    def mark(self) -> tuple[object, ...]:
        """Changes with what is judged."""
        newest_id = self.newest.trials[0].id if self.newest.trials else 0
        return newest_id, self.snapshot_id, self.question.peak_gflops, self.schedule


async def task_page(store: SqlStore, looks: Looks, asked: TaskAsked) -> TaskPage:
    """The page that was asked for. Raises Problem for what is not known and for a bad cursor, StoreError."""
    facts = await in_thread(partial(_read, store, asked))
    other = facts.default if facts.default != facts.schedule else None
    found, form, default_form = await asyncio.gather(
        looks.judged((asked.task, asked.target), facts.mark, partial(judged, store, facts.question)),
        _form(looks, facts, facts.schedule),
        _form(looks, facts, other if facts.best else None),
    )
    return await in_thread(partial(_page, asked, facts, found, form, default_form))


async def _form(looks: Looks, facts: Facts, schedule: Schedule | None) -> FormShown | None:
    return None if schedule is None else FormShown.of(await looks.form(facts.task, facts.target, schedule))


def _read(store: SqlStore, asked: TaskAsked) -> Facts:
    task, target = task_of(store, asked.task), target_of(store, asked.target)
    job = None if asked.job is None else _job(store, asked.job)
    newest_event = store.jobs.newest_event(job.id) if job else 0  # before what the page says, so that none is missed
    trials = store.trials
    best = store.known.best([task.key], [target.key]).get((task.key, target.key))
    best_trial = trials.one(task.key, target.key, best.schedule.key) if best else None
    default = default_of(task, target)
    by = job if job or not best_trial or best_trial.line.job_id is None else _job(store, best_trial.line.job_id)
    snapshots = store.costs.list(target.kind, limit=1)
    return Facts(
        task=task,
        target=target,
        job=job,
        newest_event=newest_event,
        best=best,
        confirmed=store.confirmed_many([task.key], target.key).get(task.key) if best and best.is_confirmed else None,
        best_trial=best_trial,
        default=default,
        default_trial=trials.one(task.key, target.key, default.key) if default else None,
        result=by.result if by else None,
        newest=trials.page(task.key, target.key, order=Order.NEWEST, limit=1),
        page=_trials(store, asked),
        snapshot_id=snapshots[0].id if snapshots else 0,
    )


def _job(store: SqlStore, job_id: int) -> Job:
    try:
        return store.jobs.get(job_id)
    except NotFound as error:
        raise Problem(Kind.NO_SUCH_JOB, f"no job has the number {job_id}") from error


def _trials(store: SqlStore, asked: TaskAsked) -> TrialPage:
    try:
        return store.trials.page(
            asked.task,
            asked.target,
            job_id=asked.job,
            statuses=asked.status or None,
            order=ORDERS[asked.sort, asked.desc],
            cursor=asked.cursor,
            limit=ROWS,
        )
    except ValueError as error:
        raise bad_cursor() from error


def _page(
    asked: TaskAsked, facts: Facts, found: Judged | None, form: FormShown | None, default_form: FormShown | None
) -> TaskPage:
    best, default, job = facts.schedule, facts.default, facts.job
    return TaskPage(
        asked=asked,
        task=TaskHead.of(facts.task),
        target=TargetName.of(facts.target),
        job=JobName(id=job.id, label=job.label, state=job.state, newest=facts.newest_event) if job else None,
        best=TrialBrief.chosen(facts.best, facts.best_trial.line if facts.best_trial else None) if facts.best else None,
        best_trial=TrialBrief.of(facts.best_trial.line) if facts.best_trial else None,
        default=TrialBrief.of(facts.default_trial.line) if facts.default_trial else None,
        is_default_best=best is not None and best == default,
        gain=_gain(facts),
        tolerances=tolerances(facts.task),
        knobs=knobs(best, default, best) if best else [],
        form=form,
        default_form=default_form,
        ceilings=CeilingsShown.of(facts.target, facts.question.peak_gflops),
        judged=found,
        trials=facts.newest.total,
        counts=dict(facts.page.counts),
        shown=facts.page.total,
        rows=list(map(TrialBrief.of, facts.page.trials)),
        next=facts.page.next,
    )


def _gain(facts: Facts) -> Gain | None:
    """How much faster than the default the best is: both as confirmed, or both by their trials."""
    best, confirmed = facts.best, facts.confirmed
    if best is None:
        return None
    if best.is_confirmed:
        if confirmed is None or confirmed.measurement.incumbent_s is None:  # of before that was kept
            return None
        default_s, default_ms = confirmed.measurement.incumbent_s, None
        reported = _reported(facts.result, facts.task.key)
        if told.number(reported, "default_ms") == in_ms(default_s):
            default_ms = told.interval(reported, "default_interval_ms")
        return Gain(
            default_ms=1e3 * default_s,
            best_ms=1e3 * best.median_s,
            default_interval_ms=default_ms,
            best_interval_ms=interval_ms(best.low_s, best.high_s),
            is_confirmed=True,
            noise=best.measurement.provenance.get(NOISE, ""),
        )
    trial = facts.default_trial.line if facts.default_trial else None
    if trial is None or trial.median_s is None or facts.default == facts.schedule:
        return None
    return Gain(
        default_ms=1e3 * trial.median_s,
        best_ms=1e3 * best.median_s,
        default_interval_ms=interval_ms(trial.low_s, trial.high_s),
        best_interval_ms=interval_ms(best.low_s, best.high_s),
        is_confirmed=False,
        noise="",
    )


def _reported(result: Mapping[str, Any] | None, task_key: str) -> Mapping[str, Any] | None:
    """What a job's report says of the task."""
    tasks = result.get("tasks") if result else None
    for one in tasks if isinstance(tasks, Sequence) else ():
        if isinstance(one, Mapping) and one.get("key") == task_key:
            return one
    return None

"""The page of a task on a target: which schedule won, by how much and why; and everything that was tried.

Read `task_page` first; what it says is in `view`, its charts are in `charts`.

Which schedule is best is what a session would use (`Store.best`). What is drawn and what cost models are asked about is
a sample of all trials of the task, whichever jobs measured them. Who comes from a job is told of its best first, and
the table has the trials of that job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tunewright.db.best import TaskComparisons
from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.db.trial import TrialOrder, TrialPage
from tunewright.tuner.explain.gain import task_gain_interval
from tunewright.tuner.explain.roofline import ceilings
from tunewright.tuner.known_times import KnownDefault, KnownTimes
from tunewright.tuner.units import in_ms

from ...http.descriptions import Descriptions, DescriptionsDep
from ...http.paging import bad_cursor
from ...http.problems import ProblemKind
from ...http.routes.jobs import of_job
from ...http.schemas.jobs import dims_of
from ...http.service import ServiceDep, in_thread
from ..job.history import Histories, histories_of
from ..page import add_page
from ..views import TargetName
from .analysis import Analysis, CeilingsShown, analyse, nearness
from .charts import task_charts
from .job_best import JobBest
from .schedules import (
    FormShown,
    Standing,
    TaskHead,
    TaskInPath,
    TrialBrief,
    knobs,
    text_parts,
    tolerances,
)
from .view import Gain, JobName, TaskAsked, TaskPage, TaskQuery, TrialSort

router = APIRouter(tags=["pages"])

ROWS = 20
"""Trials on one page."""

ORDERS = {
    (TrialSort.TIME, False): TrialOrder.FASTEST,
    (TrialSort.TIME, True): TrialOrder.SLOWEST,
    (TrialSort.CREATED, False): TrialOrder.OLDEST,
    (TrialSort.CREATED, True): TrialOrder.NEWEST,
}
"""Orders by sort key, and whether descending."""


@add_page(
    router,
    "/tasks/{task_key}",
    "task/page.html",
    summary="A task on a target",
    charts=task_charts,
    refusals=(ProblemKind.NO_SUCH_TASK, ProblemKind.NO_SUCH_TARGET, ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID),
)
async def task(
    service: ServiceDep,
    histories: Annotated[Histories, Depends(histories_of)],
    descriptions: DescriptionsDep,
    task_key: TaskInPath,
    query: Annotated[TaskQuery, Query()],
) -> TaskPage:
    """The best schedule known and why it won: in words, beside the default, below the roofline, and by the cost model.

    With them a table of all trials, a page at a time. What takes long to work out is null at first.
    """
    return await task_page(service.store, histories, descriptions, TaskAsked(task=task_key, **dict(query)))


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The data of a task on a target, read from the database for one page."""

    known: Standing
    job: Job | None
    job_best: JobBest | None
    newest_event: int  # of the job
    compared: TaskComparisons | None
    newest: TrialPage  # the newest trial of all
    imported: int  # trials of all
    page: TrialPage

    @classmethod
    def load(cls, store: Store, histories: Histories, query: TaskAsked) -> TaskFacts:
        """By what was asked for. Raises Problem, StoreError."""
        key, target_key = query.task, query.target
        job = None if query.job is None else of_job(partial(store.jobs.get, query.job), query.job)
        # Before what the page says, so that none is missed.
        newest_event = store.jobs.newest_event(job.id) if job else 0
        known = Standing.load(store, key, target_key, job)
        return cls(
            known=known,
            job=job,
            job_best=JobBest.load(store, histories, job, known) if job else None,
            newest_event=newest_event,
            compared=store.comparisons([key], target_key).get(key),
            newest=store.trials.page(key, target_key, order=TrialOrder.NEWEST, limit=1),
            imported=store.trials.imported(key, target_key),
            page=_trials(store, query),
        )


async def task_page(store: Store, histories: Histories, descriptions: Descriptions, query: TaskAsked) -> TaskPage:
    """The page that was asked for. Raises Problem for what is not known and for a bad cursor, StoreError."""
    facts = await in_thread(partial(TaskFacts.load, store, histories, query))
    known = facts.known
    analysis, best_form, default_form = await asyncio.gather(
        descriptions.analyse((query.task, query.target), known.mark(facts.newest), partial(analyse, store, known)),
        known.form(descriptions, known.best_schedule),
        known.form(descriptions, known.default if known.best else None, known.best_schedule),
    )
    return await in_thread(partial(_page, query, facts, analysis, best_form, default_form))


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
    query: TaskAsked,
    facts: TaskFacts,
    analysis: Analysis | None,
    form: FormShown | None,
    default_form: FormShown | None,
) -> TaskPage:
    known, job = facts.known, facts.job
    best, default, shown_best = known.best_schedule, known.default, known.best_brief
    return TaskPage(
        asked=query,
        task=TaskHead.of(known.task),
        target=TargetName.of(known.target),
        job=JobName.show(job, dims=dims_of(job), newest=facts.newest_event) if job else None,
        job_best=facts.job_best,
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
        analysis=analysis.told_of(best) if analysis else None,
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
    if not best.is_confirmed and (trial is None or known.default == known.best_schedule):
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

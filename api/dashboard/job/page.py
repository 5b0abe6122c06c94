"""The page of a job. Read `job_page` first; what it says is in `view`, its charts are in `charts`, and each part of it
is in a module of that name.

At a glance: how much faster it is now, where the time goes, which task still has something to gain, and whether more
budget is worth it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tunewright.db.job import Job
from tunewright.db.store import Store
from tunewright.tuner.explain import values
from tunewright.tuner.explain.gain import ExpectedGain
from tunewright.tuner.explain.taken_back import mark_taken_back
from tunewright.tuner.explain.upgrade import upgrade_lines
from tunewright.tuner.models.task_graph import TaskGraph
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.report import SearchEnd

from ...http.descriptions import Descriptions, DescriptionsDep
from ...http.problems import ProblemKind
from ...http.routes.jobs import of_job
from ...http.schemas.base import JobId
from ...http.schemas.jobs import waits_for
from ...http.service import ServiceDep, in_thread
from ..job_line import line_of
from ..page import add_page
from .charts import job_charts
from .cost_model import ask_models, job_models
from .curves import model_curve, task_curves
from .earlier import earlier_job
from .history import Histories, JobHistory, failure_lines, histories_of, listed_kinds, log_lines
from .machine import machine_view
from .model import GraphRun, ModelGraph, model_graph, named_ops, stored_graph
from .overview import (
    forecast_of,
    promises_of,
    prospect_of,
    stage_of,
    time_parts,
    trust_verdict,
    worth_verdict,
)
from .tasks import ModelRun, as_told, model_run, names, sort_tasks, task_lines
from .trials import JobTrials, job_trials
from .view import JobPage, JobPageAsked, JobTab, JobTuner, Settings

ROWS = 25
"""Tasks on one page."""

router = APIRouter(tags=["pages"])


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


def job_page(
    store: Store,
    histories: Histories,
    job_id: int,
    query: JobPageAsked,
    tabs: Collection[JobTab] = (),
    graph: TaskGraph | None = None,
) -> JobPage:
    """The job as it stands, with what more of its tabs say than the one that is asked for.

    `graph` is that of its model with names, in the place of what the database has. Raises NotFound, StoreError.
    """
    tabs = {query.tab, *tabs}
    [job] = mark_taken_back(store, [store.jobs.get(job_id)])
    history = histories.of(job, store.jobs, store.trials)
    job = as_told(job, history)
    ops = names(store, [task.task_key for task in job.spec.tasks])
    ops = ops if graph is None else named_ops(job, ops, graph)
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
    prospect = prospect_of(progress, expected.gain, ended_by, line.noise)
    searched_s = history.searched_s(job)
    return JobPage(
        asked=query,
        job=line,
        notes=job.notes,
        earlier=earlier.id if (earlier := earlier_job(store, job)) else None,
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
        trial_page=_trial_page(store, job, history, ops, query) if JobTab.TRIALS in tabs else None,
        models=job_models(store, job, history, tasks) if JobTab.COST_MODEL in tabs else None,
        kinds=listed_kinds(history.events),
        log=log,
        next_before=next_before,
        newest=history.newest,
        machine=machine_view(history, ops),
        tuners=[JobTuner.show(tuner) for tuner in tuners if tuner.job_id == job.id],
        tuner_count=len(tuners),
        waits_for=waits_for(job),
        most_threads=max((target.threads for target in store.fleet.targets()), default=0),
        upgrade=upgrade_lines(job.result),
        settings=Settings.of(job),
        graph=_graph(store, job, run, query.run, graph) if JobTab.MODEL in tabs else None,
    )


def _graph(store: Store, job: Job, run: ModelRun, side: GraphRun, graph: TaskGraph | None) -> ModelGraph:
    """The graph of a job's model, by default as the database has it."""
    ops = store.catalog.ops([task.task_key for task in job.spec.tasks])
    known = (graph, "") if graph else stored_graph(job, store.jobs.graph(job))
    return model_graph(job, run, ops, *known, side)


def _trial_page(store: Store, job: Job, history: JobHistory, ops: Mapping[str, str], query: JobPageAsked) -> JobTrials:
    return job_trials(store, job, history.counts, ops, task=query.task, statuses=query.status, cursor=query.cursor)

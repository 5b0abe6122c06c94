"""The page of a job. Read `job_page` first; what it says is in `view`, its charts are in `charts`, and each part of it
is in a module of that name.

At a glance: how much faster it is now, where the time goes, which task still has something to gain, and whether more
budget is worth it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from tunewright.db.fleet import Tuner
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
from ..job_line import JobLine, line_of
from ..page import add_page
from .charts import job_charts
from .cost_model import ask_models, job_models
from .curves import model_curve, task_curves
from .earlier import earlier_job
from .history import Histories, JobHistory, failure_lines, histories_of, listed_kinds, log_lines
from .machine import machine_view
from .model import GraphRun, ModelGraph, model_graph, named_ops, stored_graph
from .overview import (
    Prospect,
    forecast_of,
    promises_of,
    prospect_of,
    stage_of,
    time_parts,
    trust_answer,
    worth_answer,
)
from .tasks import ModelRun, TaskLine, as_told, model_run, names, sort_tasks, task_lines
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


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is read from the database for one page, and what all of its parts go by."""

    job: Job  # as its events tell it
    history: JobHistory
    searched_s: float  # by now
    earlier: Job | None  # that it is compared with
    ops: Mapping[str, str]  # names by task key
    run: ModelRun
    tasks: Sequence[TaskLine]  # all of them, the heaviest first
    line: JobLine
    prospect: Prospect
    tuners: Sequence[Tuner]  # all that were heard of
    most_threads: int

    @staticmethod
    def load(store: Store, histories: Histories, job_id: int, graph: TaskGraph | None) -> JobFacts:
        """By its number. `graph` is that of its model with names, if any. Raises NotFound, StoreError."""
        [job] = mark_taken_back(store, [store.jobs.get(job_id)])
        history = histories.of(job, store.jobs, store.trials)
        job = as_told(job, history)
        ops = names(store, [task.task_key for task in job.spec.tasks])
        ops = ops if graph is None else named_ops(job, ops, graph)
        run, progress = model_run(job, history), forecast_of(job, history)
        ended_by = values.member(job.result, "ended_by", SearchEnd)
        is_exhausted = ended_by is SearchEnd.EXHAUSTED  # older versions told last what they expected before
        expected = ExpectedGain.nothing(len(run.times)) if is_exhausted else run.expected(progress)
        targets = [store.target(job.spec.target_key)] if job.spec.target_key else []
        line = line_of(job, {target.key: str(target) for target in targets}, store.keys.owner_names([job.owner]))
        return JobFacts(
            job=job,
            history=history,
            searched_s=history.searched_s(job),
            earlier=earlier_job(store, job),
            ops=ops,
            run=run,
            tasks=task_lines(job, history, run, expected.by_task, ops),
            line=line,
            prospect=prospect_of(progress, expected.gain, ended_by, line.noise),
            tuners=store.fleet.tuners(),
            most_threads=max((target.threads for target in store.fleet.targets()), default=0),
        )


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
    facts = JobFacts.load(store, histories, job_id, graph)
    job, history = facts.job, facts.history
    return JobPage(
        asked=query,
        **_standing(facts),
        **_at_a_glance(facts),
        **_listed_tasks(facts, query),
        **_fallback(facts),
        **_listed_events(facts, query),
        trial_page=_trial_page(store, facts, query) if JobTab.TRIALS in tabs else None,
        models=job_models(store, job, history, facts.tasks) if JobTab.COST_MODEL in tabs else None,
        machine=machine_view(history, facts.ops),
        graph=_graph(store, facts, query.run, graph) if JobTab.MODEL in tabs else None,
    )


def _standing(facts: JobFacts) -> dict[str, Any]:
    """What a job is, how far it is, and who is at work on it."""
    job, history = facts.job, facts.history
    return {
        "job": facts.line,
        "notes": job.notes,
        "earlier": facts.earlier.id if facts.earlier else None,
        "stage": stage_of(job),
        "confirmed": int(values.number(job.progress, "confirmed") or 0),
        "to_confirm": int(values.number(job.progress, "to_confirm") or 0),
        "searched_s": facts.searched_s,
        "trials": history.trials,
        "voided": history.voided,
        "tuners": [JobTuner.show(tuner) for tuner in facts.tuners if tuner.job_id == job.id],
        "tuner_count": len(facts.tuners),
        "waits_for": waits_for(job),
        "most_threads": facts.most_threads,
        "upgrade": upgrade_lines(job.result),
        "settings": Settings.of(job),
    }


def _at_a_glance(facts: JobFacts) -> dict[str, Any]:
    """How much faster it is, what answers the questions about it, and where a run's time goes."""
    run = facts.run
    return {
        "latency": run.latency,
        "prospect": facts.prospect,
        "worth": worth_answer(facts.line, run.latency, facts.prospect, run.of),
        "trust": trust_answer(facts.line, run.latency),
        "promising": promises_of(facts.tasks),
        "parts": time_parts(facts.tasks, run),
        "parts_of": run.of,
        "parts_noise": run.noise,
        "model": model_curve(facts.job, facts.history, facts.searched_s),
    }


def _listed_tasks(facts: JobFacts, query: JobPageAsked) -> dict[str, Any]:
    """The tasks that were asked for, and which are behind them."""
    behind = query.start + ROWS
    listed = sort_tasks(facts.tasks, query.sort)[query.start : behind]
    return {
        "tasks": listed,
        "curves": task_curves(facts.history, listed),
        "next_start": behind if behind < len(facts.tasks) else None,
        "task_count": len(facts.tasks),
    }


def _fallback(facts: JobFacts) -> dict[str, Any]:
    """What runs without a kernel."""
    result, run = facts.job.result, facts.run
    told = result.get("fallback") if result else None
    counts = told if isinstance(told, dict) else {}
    return {
        "fallback": {str(op): int(values.number(counts, op) or 0) for op in counts},
        "fallback_share": values.number(result, "fallback_share"),
        "fallback_noise": run.latency.noise or total_noise(times.noise for times in run.times),
    }


def _listed_events(facts: JobFacts, query: JobPageAsked) -> dict[str, Any]:
    """The events that were asked for, and in which ways trials failed."""
    history = facts.history
    log, next_before = log_lines(history.events, facts.ops, query.before, query.kind)
    return {
        "failures": failure_lines(history, facts.ops),
        "kinds": listed_kinds(history.events),
        "log": log,
        "next_before": next_before,
        "newest": history.newest,
    }


def _graph(store: Store, facts: JobFacts, which: GraphRun, graph: TaskGraph | None) -> ModelGraph:
    """The graph of a job's model, by default as the database has it."""
    job = facts.job
    ops = store.catalog.ops([task.task_key for task in job.spec.tasks])
    known = (graph, "") if graph else stored_graph(job, store.jobs.graph(job))
    return model_graph(job, facts.run, ops, *known, which)


def _trial_page(store: Store, facts: JobFacts, query: JobPageAsked) -> JobTrials:
    counts = facts.history.counts
    return job_trials(store, facts.job, counts, facts.ops, task=query.task, statuses=query.status, cursor=query.cursor)

"""The page of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ...charts.job import job_charts
from ...problems import Kind
from ...schemas import LARGEST_ID, JobId
from ...service import Here
from ...views.job import Abscissa, JobPage, JobPageAsked, job_page
from ...views.job_tasks import TaskSort
from ..jobs import of_job
from .offering import offer

router = APIRouter(tags=["pages"])


def job(
    here: Here,
    job_id: JobId,
    x: Annotated[
        Abscissa, Query(description="What the curves are drawn against: trials, or seconds of work on the job.")
    ] = Abscissa.TRIALS,
    sort: Annotated[
        TaskSort,
        Query(
            description="The order of the tasks, most first: `time` of a run, what was `saved`, is `expected` still."
        ),
    ] = TaskSort.TIME,
    start: Annotated[int, Query(ge=0, le=1_000_000, description="How many tasks to pass over.")] = 0,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST_ID, description="List the events with numbers below this.")
    ] = None,
) -> JobPage:
    """How much faster the model is, where its time goes, what each task got and brought, and what more would bring."""
    asked = JobPageAsked(x=x, sort=sort, start=start, before=before)
    return of_job(lambda: job_page(here.store, here.histories, job_id, asked), job_id)


offer(
    router,
    "/jobs/{job_id:int}",
    "job.html",
    job,
    summary="A job",
    charts=job_charts,
    refusals=(Kind.NO_SUCH_JOB, Kind.INVALID),
)

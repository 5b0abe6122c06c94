"""The page of all jobs, where a model may be sent to be tuned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tunewright.db.jobs import JobState

from ...paging import Cursor
from ...problems import Kind
from ...schemas import SHA256
from ...service import Here
from ...views.jobs import JobsAsked, JobSort, JobsPage, jobs_page
from .offering import offer

router = APIRouter(tags=["pages"])


def jobs(
    here: Here,
    state: Annotated[
        list[JobState] | None, Query(max_length=6, description="Only jobs in one of these states.")
    ] = None,
    model: Annotated[
        str, Query(max_length=200, description="Only jobs with this in their label, or at the begin of their digest.")
    ] = "",
    target: Annotated[
        str, Query(pattern=f"^({SHA256})?$", description="Only jobs for the target of this key; empty: for any.")
    ] = "",
    sort: Annotated[
        JobSort,
        Query(description="`gain`: unfinished jobs which a minute helps least, `left`: which go on for longest."),
    ] = JobSort.NEWEST,
    cursor: Cursor = None,
) -> JobsPage:
    """The jobs that meet all conditions, what is expected of them still, and a form that submits one."""
    asked = JobsAsked(state=tuple(state or ()), model=model, target=target, sort=sort, cursor=cursor)
    return jobs_page(here.store, asked)


offer(router, "/", "jobs.html", jobs, summary="The jobs", refusals=(Kind.INVALID,))

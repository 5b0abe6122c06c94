"""The page of a task on a target: which schedule won, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from tunewright.search_space.measurement import Status

from ...charts.task import task_charts
from ...looks import Looking
from ...paging import Cursor
from ...problems import Kind
from ...schemas import LARGEST_ID, SHA256
from ...service import Here
from ...views.task import TaskAsked, TaskPage, TrialSort, task_page
from .offering import offer

router = APIRouter(tags=["pages"])

TaskInPath = Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of the task.")]
TargetAsked = Annotated[str, Query(pattern=f"^{SHA256}$", description="Key of the target that it was measured on.")]


async def task(
    here: Here,
    looks: Looking,
    task_key: TaskInPath,
    target: TargetAsked,
    job: Annotated[
        int | None, Query(ge=1, le=LARGEST_ID, description="Only trials of this job are in the table.")
    ] = None,
    status: Annotated[
        list[Status] | None, Query(max_length=len(Status), description="Only trials that ended in one of these ways.")
    ] = None,
    sort: Annotated[
        TrialSort, Query(description="What the table is sorted by; trials that failed come last by time.")
    ] = TrialSort.TIME,
    desc: Annotated[bool, Query(description="Whether it begins with the slowest, or with the newest.")] = False,
    cursor: Cursor = None,
) -> TaskPage:
    """The best schedule known and why it won: in words, beside the default, below the roofline, and by the cost model.

    With them a table of all trials, a page at a time. What takes long to work out is null at first.
    """
    asked = TaskAsked(
        task=task_key, target=target, job=job, status=tuple(status or ()), sort=sort, desc=desc, cursor=cursor
    )
    return await task_page(here.store, looks, asked)


offer(
    router,
    "/tasks/{task_key}",
    "task.html",
    task,
    summary="A task on a target",
    charts=task_charts,
    refusals=(Kind.NO_SUCH_TASK, Kind.NO_SUCH_TARGET, Kind.NO_SUCH_JOB, Kind.INVALID),
)

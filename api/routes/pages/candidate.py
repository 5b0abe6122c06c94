"""The page of one candidate: what it is, what it becomes, and what came of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ...charts.candidate import candidate_charts
from ...looks import Looking
from ...problems import Kind
from ...schemas import SHA256
from ...service import Here
from ...views.candidate import Against, CandidateAsked, CandidatePage, TextPart, candidate_page
from .offering import offer
from .task import TargetAsked, TaskInPath

router = APIRouter(tags=["pages"])


async def candidate(
    here: Here,
    looks: Looking,
    task_key: TaskInPath,
    schedule_key: Annotated[str, Path(pattern=f"^{SHA256}$", description="Key of the schedule.")],
    target: TargetAsked,
    text: Annotated[TextPart | None, Query(description="What it becomes, as this.")] = None,
    against: Annotated[
        Against | None, Query(description="How the text differs from that of the default, or of the best known.")
    ] = None,
) -> CandidatePage:
    """A schedule in words and as loops, what it becomes, how that differs, what was measured, and what is predicted.

    What takes long to work out is null at first.
    """
    asked = CandidateAsked(task=task_key, schedule=schedule_key, target=target, text=text, against=against)
    return await candidate_page(here.store, looks, asked)


offer(
    router,
    "/tasks/{task_key}/schedules/{schedule_key}",
    "candidate.html",
    candidate,
    summary="A schedule of a task",
    charts=candidate_charts,
    refusals=(Kind.NO_SUCH_TASK, Kind.NO_SUCH_TARGET, Kind.NO_SUCH_SCHEDULE, Kind.INVALID),
)

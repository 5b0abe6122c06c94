"""Changes as server-sent events: tells pages of no single job when to look again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import anyio
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tunewright.db.access import Scope

from ..access import is_allowed, needs
from ..changes import Changes
from ..openapi import problems
from ..problems import Kind, Problem
from ..schemas import ChangeShown
from ..service import Here, place_in

LEAST_S = 1.0
"""Between two events: jobs that measure change many times a second."""

router = APIRouter(prefix="/v1", tags=["jobs"])


async def place(here: Here) -> AsyncIterator[None]:
    """A place among the event streams. Raises Problem where there is none."""
    if here.draining.is_set():
        raise Problem(Kind.BUSY, "this process is about to end", retry_after_s=1)
    # here, since FastAPI does not close the generator of a stream that is broken off
    with place_in(here.following, "too many event streams are open"), here.metrics.streams.track_inprogress():
        yield


@router.get(
    "/changes",
    response_class=EventSourceResponse,
    summary="Follow all jobs",
    response_description="An event for each time that something changed, for as long as somebody listens.",
    responses=problems(Kind.BUSY),
    dependencies=[needs(Scope.JOBS_READ), Depends(place)],
)
async def follow_changes(request: Request, here: Here) -> AsyncIterator[ChangeShown]:
    """A `change` whenever any job, or any tuner process, may have changed: at once, and then at most one a second.

    There is nothing to catch up with: whoever comes back is told at once. Every 15 s without an event there is a
    comment. The stream ends when the service is stopped or the key revoked.
    """
    still_allowed = partial(is_allowed, request, Scope.JOBS_READ)
    seen: int | None = None
    while not here.changes.stopped and await still_allowed():
        change = here.changes.next()  # taken before the look, so that no change falls in between
        number = here.store.jobs.changes()
        if number == seen:
            await change.wait()
            continue
        seen = number
        told = ChangeShown(number=number)
        yield ServerSentEvent(raw_data=told.model_dump_json(), event="change")  # type: ignore[misc]  # as in `events`
        await _pause(here.changes)


async def _pause(changes: Changes) -> None:
    """Wait for `LEAST_S`, but not beyond the end of the service."""
    with anyio.move_on_after(LEAST_S):
        while not changes.stopped:
            await changes.next().wait()

"""Changes as server-sent events: tells pages of no single job when to look again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import anyio
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tunewright.db.access import KeyScope

from ..access import is_allowed, needs
from ..changes import Changes
from ..openapi import problems
from ..problems import ProblemKind
from ..schemas.events import ChangeShown
from ..service import ServiceDep, stream_slot

LEAST_S = 1.0
"""Between two events: jobs that measure change many times a second."""

router = APIRouter(prefix="/v1", tags=["jobs"])


async def place(service: ServiceDep) -> AsyncIterator[None]:
    """A place among the event streams. Raises Problem where there is none."""
    with stream_slot(service):
        yield


@router.get(
    "/changes",
    response_class=EventSourceResponse,
    summary="Follow all jobs",
    response_description="An event for each time that something changed, for as long as somebody listens.",
    responses=problems(ProblemKind.BUSY),
    dependencies=[needs(KeyScope.JOBS_READ), Depends(place)],
)
async def follow_changes(request: Request, service: ServiceDep) -> AsyncIterator[ChangeShown]:
    """A `change` whenever any job, or any tuner process, may have changed: at once, and then at most one a second.

    There is nothing to catch up with: whoever comes back is told at once. Every 15 s without an event there is a
    comment. The stream ends when the service is stopped or the key revoked.
    """
    still_allowed = partial(is_allowed, request, KeyScope.JOBS_READ)
    last_number: int | None = None
    while not service.changes.is_stopped and await still_allowed():
        change = service.changes.next()  # taken before the look, so that no change falls in between
        number = service.store.jobs.changes()
        if number == last_number:
            await change.wait()
            continue
        last_number = number
        event = ChangeShown(number=number)
        yield ServerSentEvent(raw_data=event.model_dump_json(), event="change")  # type: ignore[misc]  # as in `events`
        await _pause(service.changes)


async def _pause(changes: Changes) -> None:
    """Wait for `LEAST_S`, but not beyond the end of the service."""
    with anyio.move_on_after(LEAST_S):
        while not changes.is_stopped:
            await changes.next().wait()

"""Events of a job as server-sent events, read from the database: what a client missed is sent when it comes back.

The id of an event is its number within the job. A client that says which one it saw last (`Last-Event-ID`, which
browsers send themselves, or `after`) gets all behind it, each once and in order, from whichever process it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from tunewright.db.access import Scope
from tunewright.db.errors import StoreError
from tunewright.db.jobs import UNFINISHED, Event, EventKind

from ..access import is_allowed, needs
from ..openapi import also, problems
from ..problems import Kind, Problem
from ..schemas import LARGEST_ID, EventShown, JobId
from ..service import Here, Service, in_thread, place_in
from .jobs import of_job

AT_ONCE = 500
"""Events read at once."""

LAST = {EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED}
"""Kinds behind which a job has no more events."""

READING = 8
"""Threads that the streams of a service may read with, so that there are always some for other requests."""

AWAY_S = 2.0
"""Between two attempts to read where the database is away."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class Over(Exception):
    """The job is finished and the client has seen all of it: it need not come back (204)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream that may begin."""

    job_id: int
    after: int


async def opened(
    here: Here,
    job_id: JobId,
    after: Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="Number of the last event seen.")] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern="^[0-9]{1,15}$", description="As `after`, and goes before it: browsers send it when they reconnect."
        ),
    ] = None,
) -> AsyncIterator[Opened]:
    """Where a stream begins. Raises Problem for an unknown job, and Over."""
    seen = int(last_event_id) if last_event_id is not None else after or 0
    job = await in_thread(partial(of_job, partial(here.store.jobs.get, job_id), job_id))
    if job.state not in UNFINISHED and not await in_thread(partial(here.store.jobs.events, job_id, seen, 1)):
        raise Over
    if here.draining.is_set():
        raise Problem(Kind.BUSY, "this process is about to end", retry_after_s=1)
    # here, since FastAPI does not close the generator of a stream that is broken off
    with place_in(here.following, "too many event streams are open"), here.metrics.streams.track_inprogress():
        yield Opened(job_id, seen)


@router.get(
    "/{job_id:int}/events",
    response_class=EventSourceResponse,
    summary="Follow a job",
    response_description="The events, until the job's last one.",
    responses=also(204, "The job is finished, and there are no events behind the one named.")
    | problems(Kind.NO_SUCH_JOB, Kind.INVALID, Kind.BUSY),
    dependencies=[needs(Scope.JOBS_READ)],
)
async def follow_job(
    request: Request, here: Here, stream: Annotated[Opened, Depends(opened)]
) -> AsyncIterator[EventShown]:
    """The job's events from its first one on, then each as it happens, as server-sent events.

    `id` is the event's number, `event` its kind, `data` the event. The stream ends with the job, or when the service
    is stopped or the key revoked; reconnect with `Last-Event-ID` to go on. Every 15 s without an event there is a
    comment.
    """
    still_allowed = partial(is_allowed, request, Scope.JOBS_READ)
    async for event in _events(here, stream, still_allowed):
        yield ServerSentEvent(  # type: ignore[misc]  # FastAPI takes either, and documents what is declared
            raw_data=EventShown.of(event).model_dump_json(), event=event.kind.value, id=str(event.number)
        )


async def _events(here: Service, stream: Opened, still_allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[Event]:
    """Events behind the one seen, for ever, or until the last one or the end of the service or of the key."""
    seen = stream.after
    while await still_allowed():
        change = here.changes.next()  # taken before the look, so that no change falls in between
        events = await _read(here, stream.job_id, seen, change)
        for event in events:
            yield event
            seen = event.number
            if event.kind in LAST:
                return
        if here.changes.stopped:
            return
        if not events:
            await change.wait()


async def _read(here: Service, job_id: int, seen: int, change: asyncio.Event) -> list[Event]:
    """The next events. Streams that were woken by the same change and have seen the same share one read."""
    asked = (change, job_id, seen)
    read = here.reads.get(asked)
    if read is None:
        read = here.reads[asked] = asyncio.ensure_future(_fetched(here, job_id, seen))
        read.add_done_callback(lambda _: here.reads.pop(asked, None))
    return await asyncio.shield(read)  # who goes away takes it from nobody else


async def _fetched(here: Service, job_id: int, seen: int) -> list[Event]:
    """The next events. Where the database is away for a while, the stream stays open and is silent."""
    try:
        read = partial(here.store.jobs.events, job_id, seen, AT_ONCE)
        return await anyio.to_thread.run_sync(read, limiter=here.reading)
    except StoreError:
        await anyio.sleep(AWAY_S)
        return []


def install(app: FastAPI) -> None:
    """Answer streams that have nothing left to say."""

    @app.exception_handler(Over)
    async def over(_: Request, __: Over) -> Response:
        return Response(status_code=204)

"""Events of a job as server-sent events, read from the database: what a client missed is sent when it comes back.

The id of an event is its number within the job. A client that says which one it saw last (`Last-Event-ID`, which
browsers send themselves, or `after`) gets all behind it, each once and in order, from whichever process it asks. It
need not be there any more: of a job that finished long ago, most of the progress is removed.
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

from tunewright.db.access import KeyScope
from tunewright.db.bounds import LARGEST_ID
from tunewright.db.errors import NotFound, StoreError
from tunewright.db.job import UNFINISHED, Event, EventKind

from ..access import is_allowed, needs
from ..openapi import also, problems
from ..problems import ProblemKind
from ..schemas.base import JobId
from ..schemas.events import EventShown
from ..service import Service, ServiceDep, in_thread, stream_slot
from .jobs import of_job

AT_ONCE = 500
"""Events read at once."""

LAST = {EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED}
"""Kinds behind which a job has no more events."""

STREAM_THREADS = 8
"""Threads that the streams of a service may read with, so that there are always some for other requests."""

AWAY_S = 2.0
"""Between two attempts to read where the database is away."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class StreamEnd(Exception):
    """The job is finished and the client has all events: it need not come back (204)."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The start of a stream: events of a job after a number."""

    job_id: int
    after: int


async def stream_start(
    service: ServiceDep,
    job_id: JobId,
    after: Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="Number of the last event seen.")] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern="^[0-9]{1,15}$", description="As `after`, and goes before it: browsers send it when they reconnect."
        ),
    ] = None,
) -> AsyncIterator[StreamStart]:
    """A place among the event streams, and where this one starts. Raises Problem for an unknown job, and StreamEnd."""
    last_number = int(last_event_id) if last_event_id is not None else after or 0
    job = await in_thread(partial(of_job, partial(service.store.jobs.get, job_id), job_id))
    if job.state not in UNFINISHED and not await in_thread(partial(service.store.jobs.events, job_id, last_number, 1)):
        raise StreamEnd
    with stream_slot(service):
        yield StreamStart(job_id, last_number)


@router.get(
    "/{job_id:int}/events",
    response_class=EventSourceResponse,
    summary="Follow a job",
    response_description="The events, until the job's last one.",
    responses=also(204, "The job is finished, and there are no events behind the one named.")
    | problems(ProblemKind.NO_SUCH_JOB, ProblemKind.INVALID, ProblemKind.BUSY),
    dependencies=[needs(KeyScope.JOBS_READ)],
)
async def follow_job(
    request: Request, service: ServiceDep, stream: Annotated[StreamStart, Depends(stream_start)]
) -> AsyncIterator[EventShown]:
    """The job's events from its first one on, then each as it happens, as server-sent events.

    `id` is the event's number, `event` its kind, `data` the event. The stream ends with the job, or when the service
    is stopped or the key revoked; reconnect with `Last-Event-ID` to go on. Every 15 s without an event there is a
    comment.
    """
    still_allowed = partial(is_allowed, request, KeyScope.JOBS_READ)
    async for event in _events(service, stream, still_allowed):
        yield ServerSentEvent(  # type: ignore[misc]  # FastAPI takes either, and documents what is declared
            raw_data=EventShown.show(event).model_dump_json(), event=event.kind.value, id=str(event.number)
        )


async def _events(
    service: Service, stream: StreamStart, still_allowed: Callable[[], Awaitable[bool]]
) -> AsyncIterator[Event]:
    """Events behind the one seen, for ever, or until the last one or the end of the service or of the key."""
    last_number = stream.after
    while await still_allowed():
        change = service.changes.next()  # taken before the look, so that no change falls in between
        try:
            events = await _read(service, stream.job_id, last_number, change)
        except NotFound:  # it was deleted
            return
        for event in events:
            yield event
            last_number = event.number
            if event.kind in LAST:
                return
        if service.changes.is_stopped:
            return
        if not events:
            await change.wait()


async def _read(service: Service, job_id: int, last_number: int, change: asyncio.Event) -> list[Event]:
    """The next events. Streams that were woken by the same change and have seen the same share one read."""
    key = (change, job_id, last_number)
    future = service.reads.get(key)
    if future is None:
        future = service.reads[key] = asyncio.ensure_future(_fetch(service, job_id, last_number))
        future.add_done_callback(lambda _: service.reads.pop(key, None))
    return await asyncio.shield(future)  # who goes away takes it from nobody else


async def _fetch(service: Service, job_id: int, last_number: int) -> list[Event]:
    """The next events. Where the database is away for a while, the stream stays open and is silent.

    Raises NotFound where the job was deleted.
    """
    try:
        query = partial(service.store.jobs.events, job_id, last_number, AT_ONCE)
        return await anyio.to_thread.run_sync(query, limiter=service.stream_threads)
    except NotFound:
        raise
    except StoreError:
        await anyio.sleep(AWAY_S)
        return []


def install(app: FastAPI) -> None:
    """Answer streams that have nothing left to say."""

    @app.exception_handler(StreamEnd)
    async def over(_: Request, __: StreamEnd) -> Response:
        return Response(status_code=204)
